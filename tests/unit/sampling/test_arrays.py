"""Arrays on their way to a device: many by one copy."""

import numpy as np
import torch

from deepinfer.sampling.arrays import pack, together, unpack

ARRAYS = [
    np.arange(5, dtype=np.int32),
    np.empty((0, 3), np.int64),
    np.array([[-1, 2**40], [7, 8]]),
    np.array([True, False]),
]


def test_each_comes_as_it_was() -> None:
    """Numbers end up in another array, or lose their shape."""
    for array, tensor in zip(ARRAYS, together(ARRAYS, "cpu"), strict=True):
        assert tensor.dtype == torch.int64
        assert tensor.shape == array.shape
        assert tensor.tolist() == array.astype(np.int64).tolist()
        assert tensor.is_contiguous()


def test_all_start_where_wide_loads_may() -> None:
    """Kernels built for aligned tensors are built once more, or read from somewhere else."""
    flat = torch.from_numpy(pack(ARRAYS))
    for tensor in unpack(flat, ARRAYS):
        assert tensor.storage_offset() * tensor.itemsize % 128 == 0


def test_a_copy_of_its_own() -> None:
    """The host changes an array that a step still reads."""
    array = np.array([1, 2])
    (tensor,) = together([array], "cpu")
    array[0] = 9
    assert tensor.tolist() == [1, 2]
