"""What a device does wrong, in words that a user can act on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from deepinfer.errors import DeviceError

# How torch's messages of a failed driver call begin. Such a failure shows at whatever call comes
# next, and nothing on the device can be trusted after it.
_DRIVER_WORDS = ("CUDA error", "CUDA driver error", "NCCL error", "cuBLAS error", "CUBLAS_STATUS")


@contextmanager
def named_faults(doing: str) -> Iterator[None]:
    """Raise DeviceError for what a device cannot do or has done wrong; other errors pass.

    doing: what is going on, as the error's place ("weights", "a step").
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"the device has no memory left: {_first_line(error)}",
            where=doing,
            hint="lower gpu_memory_utilization or kv_cache_bytes, max_num_seqs or "
            "max_num_batched_tokens; deepinfer plan says what takes how much",
        ) from error
    except RuntimeError as error:
        if not _is_drivers(error):
            raise
        raise DeviceError(
            f"the device failed: {_first_line(error)}",
            where=doing,
            hint="start the engine anew: what the device holds is lost. If it comes again, look "
            "at nvidia-smi and the system's log for the GPU's own errors",
        ) from error


def _is_drivers(error: RuntimeError) -> bool:
    lost = getattr(torch, "AcceleratorError", ())
    return isinstance(error, lost) or any(word in str(error) for word in _DRIVER_WORDS)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
