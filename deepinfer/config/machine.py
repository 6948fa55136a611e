"""What a machine has, and what that decides: the device, and how much memory caches may take."""

from dataclasses import dataclass
from typing import get_args

from deepinfer.config.option_checks import one_of
from deepinfer.config.words import Device, Kernels
from deepinfer.errors import ConfigError

# Share of a CPU machine's memory that caches may take where nothing is said. It is touched only as
# it fills.
_CPU_CACHE_SHARE = 0.25
# SM90, the major number: others lack instructions of the kernels, or shared memory, or Triton does
# not compile all of them (docs/hopper.md).
_TRITON_CAPABILITY = 9


@dataclass(frozen=True)
class Machine:
    """The facts about the machine that `resolve` needs.

    memory_bytes: of the CPU. cuda_reason: why torch can use no GPU, where it says so.
    cuda_capability: of the first GPU, (9, 0) for Hopper. has_triton: it can be imported.
    """

    has_cuda: bool
    has_npu: bool
    num_cpus: int
    memory_bytes: int
    cuda_reason: str = ""
    cuda_capability: tuple[int, int] = (0, 0)
    has_triton: bool = False


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
            f"{wanted} was asked for, but this Python sees none"
            + (f": {machine.cuda_reason}" if wanted == "cuda" and machine.cuda_reason else ""),
            where="device",
            hint=f"it needs {needs[wanted]}; device=cpu runs anywhere",
        )
    return wanted


def choose_kernels(
    device: str, dtype: str, weight_dtype: str, machine: Machine
) -> tuple[Kernels, str]:
    """Which backend's ops run, and, where a GPU gets the slow ones, why."""
    if device != "cuda":
        return "reference", ""
    why = ""
    if not machine.has_triton:
        why = "triton is not installed: pip install 'deepinfer[nvidia]'"
    elif machine.cuda_capability[0] != _TRITON_CAPABILITY:
        have = ".".join(map(str, machine.cuda_capability))
        why = f"the GPU's compute capability is {have}, and they need 9.0"
    elif dtype != "bfloat16" or weight_dtype != "auto":
        why = "they compute in bfloat16, from weights as released"
    return ("reference", why) if why else ("triton", "")


def decide_invariance(wanted: bool | None, device: str, kernels: Kernels, slow: str) -> bool:
    """Whether a row has the same bits in any batch: free on a CPU, else where it is asked for."""
    if device == "cpu":
        return True
    if wanted and kernels == "reference":
        raise ConfigError(
            f"not with these kernels on {device}" + (f": {slow}" if slow else ""),
            where="batch_invariant",
            hint="use device=cpu, or a GPU that the Triton kernels run on",
        )
    return bool(wanted)


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
