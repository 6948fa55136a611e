"""What a machine has, and what that decides: the device, and how much memory caches may take."""

from dataclasses import dataclass
from typing import get_args

from deepinfer.config.option_checks import one_of
from deepinfer.config.words import Device
from deepinfer.errors import ConfigError

# Share of a CPU machine's memory that caches may take where nothing is said. It is touched only as
# it fills.
_CPU_CACHE_SHARE = 0.25


@dataclass(frozen=True)
class Machine:
    """The facts about the machine that `resolve` needs. memory_bytes: of the CPU."""

    has_cuda: bool
    has_npu: bool
    num_cpus: int
    memory_bytes: int


def usable_device(wanted: str, machine: Machine) -> str:
    """cpu, cuda or npu. Raises ConfigError for one that is not there, before anything is loaded."""
    one_of("device", wanted, get_args(Device))
    if wanted == "auto":
        return "cuda" if machine.has_cuda else "cpu"
    missing = (wanted == "cuda" and not machine.has_cuda) or (
        wanted == "npu" and not machine.has_npu
    )
    if missing:
        needs = {
            "cuda": "a CUDA build of torch and an NVIDIA GPU",
            "npu": "torch_npu and an Ascend NPU",
        }
        raise ConfigError(
            f"{wanted} was asked for, but this Python sees none",
            where="device",
            hint=f"it needs {needs[wanted]}; device=cpu runs anywhere",
        )
    return wanted


def cache_bytes(share: object, machine: Machine) -> int:
    """Bytes that caches take where nothing is said; share: gpu_memory_utilization, checked here."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ConfigError(
            f"found {share!r}, expected a number above 0 and at most 1",
            where="gpu_memory_utilization",
            hint="it is the share of a GPU's free memory that caches may take",
        )
    # On a GPU it is a share of what the weights will leave: whoever loads them knows that later.
    return int(machine.memory_bytes * _CPU_CACHE_SHARE)
