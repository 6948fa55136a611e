"""What kernels need to know of the GPU that they are launched on."""

from functools import cache

import torch


@cache
def is_hopper(device: torch.device) -> bool:
    """SM90, for instructions that no other GPU has."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@cache
def num_processors(device: torch.device) -> int:
    """Multiprocessors."""
    return torch.cuda.get_device_properties(device).multi_processor_count
