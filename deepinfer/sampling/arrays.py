"""Arrays to a device and back, without waiting for it.

Knows copies. A copy from ordinary memory would make the host wait until the device comes to it, so
arrays go by way of pinned memory, and results are looked at only when somebody asks.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


def on_device(
    array: np.ndarray, device: torch.device | str, dtype: torch.dtype | None = None
) -> Tensor:
    """A copy of the array, taken now, in its own dtype or another one."""
    tensor = torch.tensor(array, dtype=dtype)
    if torch.device(device).type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


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
