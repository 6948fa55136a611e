"""Arrays to a device and back, without waiting for it.

Knows copies. A copy from ordinary memory would make the host wait until the device comes to it, so
arrays go by way of pinned memory, and results are looked at only when somebody asks.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

# Numbers of 8 bytes: kernels that read 16 bytes at a time are built for tensors that start so.
_ALIGNED = 16


def on_device(
    array: np.ndarray, device: torch.device | str, dtype: torch.dtype | None = None
) -> Tensor:
    """A copy of the array, taken now, in its own dtype or another one."""
    tensor = torch.tensor(array, dtype=dtype)
    if torch.device(device).type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def pack(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """All numbers as one int64 array, each of the arrays from a multiple of `_ALIGNED` on."""
    flat = np.zeros(sum(map(_room, arrays)), np.int64)
    at = 0
    for array in arrays:
        flat[at : at + array.size] = array.reshape(-1)
        at += _room(array)
    return flat


def unpack(flat: Tensor, arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """Tensors of the shapes of `arrays`, each a part of what `pack` made of such ones."""
    parts = flat.split([_room(array) for array in arrays])
    return [part[: array.size].view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def together(arrays: Sequence[np.ndarray], device: torch.device | str) -> list[Tensor]:
    """int64 copies of all arrays, by one copy: each to a device takes as long as a kernel."""
    return unpack(on_device(pack(arrays), device), arrays)


def _room(array: np.ndarray) -> int:
    return -(-array.size // _ALIGNED) * _ALIGNED


def fetch(tensors: Sequence[Tensor]) -> Callable[[], list[np.ndarray]]:
    """Start to copy tensors to the host. The function that it returns waits for them."""
    if not tensors or tensors[0].device.type == "cpu":
        return lambda: [tensor.numpy() for tensor in tensors]
    copies = []
    for tensor in tensors:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copies.append(copy.copy_(tensor, non_blocking=True))
    done = torch.Event(tensors[0].device)
    done.record()

    def wait() -> list[np.ndarray]:
        done.synchronize()
        return [copy.numpy() for copy in copies]

    return wait
