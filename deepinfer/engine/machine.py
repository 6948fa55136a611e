"""What options are decided by beside what a user says: the environment, and the machine."""

import os
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from deepinfer.config.engine import EngineArgs
from deepinfer.config.env import Accelerator, Environment
from deepinfer.config.machine import Machine
from deepinfer.config.words import Device

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
    )


def this_machine(device: str) -> Machine:
    """What torch finds here. An NPU is looked for only when it is asked for."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        has_cuda=torch.cuda.is_available(),
        has_npu=device == "npu" and _has_npu(),
        num_cpus=os.cpu_count() or 1,
        memory_bytes=pages * page_bytes,
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
