"""What options are decided by beside what a user says: the environment, and the machine."""

import os
import warnings
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from deepinfer.config.engine import EngineArgs
from deepinfer.config.env import Accelerator, Environment
from deepinfer.config.machine import Machine
from deepinfer.config.words import Device
from deepinfer.errors import DeviceError

# What device=auto stands for; None is no DEEPINFER_ACCELERATOR.
DEVICES: dict[Accelerator | None, Device] = {
    None: "auto",
    "nvidia": "cuda",
    "ascend": "npu",
    "cpu": "cpu",
}


def with_environment(args: EngineArgs, seen: Environment) -> EngineArgs:
    """The environment stands where the user said nothing."""
    device = DEVICES[seen.accelerator] if args.device == "auto" else args.device
    replay = seen.replay if args.replay is None else args.replay
    keep_tokens = seen.keep_tokens if args.keep_tokens is None else args.keep_tokens
    schedule = seen.draft_schedule if args.draft_schedule is None else args.draft_schedule
    is_ahead = seen.async_scheduling if args.async_scheduling is None else args.async_scheduling
    is_invariant = seen.batch_invariant if args.batch_invariant is None else args.batch_invariant
    is_eager = seen.enforce_eager if args.enforce_eager is None else args.enforce_eager
    on_device = args.engram_memory == "auto" and seen.engram_on_device
    # 0 of them is a schedule: there is no such option.
    num_drafts = (seen.num_drafts or None) if args.num_drafts is None else args.num_drafts
    return replace(
        args,
        device=device,
        replay=replay,
        keep_tokens=keep_tokens,
        draft_schedule=schedule,
        num_drafts=num_drafts,
        async_scheduling=is_ahead,
        batch_invariant=is_invariant,
        enforce_eager=is_eager,
        engram_memory="device" if on_device else args.engram_memory,
    )


def this_machine(device: str) -> Machine:
    """What torch finds here. An NPU is looked for only when it is asked for."""
    capability, reason = _cuda()
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        has_cuda=capability is not None,
        has_npu=device == "npu" and _has_npu(),
        num_cpus=os.cpu_count() or 1,
        memory_bytes=pages * page_bytes,
        cuda_reason=reason,
        cuda_capability=capability or (0, 0),
        has_triton=find_spec("triton") is not None,
    )


def _cuda() -> tuple[tuple[int, int] | None, str]:
    """The first GPU's compute capability, or why torch can use none: an old driver, no device, a
    lost one."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        is_there = torch.cuda.is_available()
    if torch.version.cuda is None:
        return None, "this is a build of torch without CUDA"
    if said and not is_there:
        return None, str(said[-1].message).splitlines()[0]
    try:
        # The driver may count a device that does not start; and if it counts none it says why here.
        capability = torch.cuda.get_device_capability() if is_there else torch.cuda.init()
        return capability, "" if is_there else "it finds no device"
    except (RuntimeError, AssertionError) as error:
        return None, (str(error).splitlines() or ["it does not say why"])[0]


def refuse_too_large(need: int) -> None:
    """Raise DeviceError, before weights of so many bytes are read, if the GPU has no room."""
    free, total = torch.cuda.mem_get_info()
    if need > free:
        raise DeviceError(
            f"the weights take {need:,} bytes, and {free:,} of the GPU's {total:,} are free",
            where="weights",
            hint="end what else runs on the GPU (nvidia-smi lists it), take a larger one, or hold "
            "a share of the experts (expert_shard)",
        )


def _has_npu() -> bool:
    """Importing torch_npu adds the device to torch; it fails in many ways without its driver."""
    try:
        import_module("torch_npu")
    except (ImportError, OSError, RuntimeError):
        return False
    return bool(torch.npu.is_available())


def device_bytes(device: str) -> int:
    """Memory of the device, used or not."""
    if device == "cpu":
        return this_machine(device).memory_bytes
    module: Any = getattr(torch, device)
    return int(module.get_device_properties(0).total_memory)
