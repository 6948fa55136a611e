"""From a model argument to a model that can run: the stages of starting, in order.

One of the two places where host and device meet; the other is `generate.py`.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import torch

from deepinfer.checkpoint.load import open_checkpoint
from deepinfer.checkpoint.source import find_model
from deepinfer.checkpoint.tiny import write_tiny
from deepinfer.config.engine import EngineArgs, EngineConfig, Machine, resolve
from deepinfer.config.env import Accelerator, environment
from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.config.words import Device
from deepinfer.kernels.kernelset import load_kernels
from deepinfer.model.network import Network
from deepinfer.tokenizer.compress import build_token_map, check_token_map
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from deepinfer.worker.build import build_network

# Raise this when the toy's bytes change: an older one in a user's cache is then left alone.
_TOY_VERSION = 1
_DEVICES: dict[Accelerator, Device] = {"nvidia": "cuda", "ascend": "npu", "cpu": "cpu"}


@dataclass(frozen=True)
class LoadedModel:
    """All that generation needs. folder: where it came from."""

    folder: Path
    config: ModelConfig
    engine: EngineConfig
    tokenizer: Tokenizer
    network: Network


def load_model(
    model: str | None,
    args: EngineArgs,
    *,
    may_download_large: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> LoadedModel:
    """Find, check and load a model. `report` gets lines that a user should see.

    None is the demo model that ships with the project; without one, a random toy. The options are
    checked before any weight is read. DEEPINFER_ACCELERATOR stands for device when that is auto.
    Raises ConfigError or CheckpointError.
    """
    seen = environment()
    for warning in seen.warnings:
        report(f"warning: {warning}")
    if args.device == "auto" and seen.accelerator is not None:
        args = replace(args, device=_DEVICES[seen.accelerator])
    folder = (
        default_model(report)
        if model is None
        else find_model(model, may_download_large=may_download_large, report=report)
    )
    config = read_model_config(folder)
    engine = resolve(args, config, this_machine(args.device))
    tokenizer = load_tokenizer(folder, config)
    token_map = build_token_map(folder / "tokenizer.json")
    check_token_map(token_map, config)
    checkpoint = open_checkpoint(folder, config)
    for warning in checkpoint.index.warnings:
        report(f"warning: {warning}")
    torch.set_num_threads(engine.num_threads)
    network = build_network(
        config,
        checkpoint,
        token_map.tolist(),
        load_kernels(act_quant=engine.act_quant),
        dtype=getattr(torch, engine.dtype),
        weight_dtype=getattr(torch, engine.weight_dtype),
        device=engine.device,
    )
    return LoadedModel(folder, config, engine, tokenizer, network)


def this_machine(device: str) -> Machine:
    """What torch finds here. An NPU is looked for only when it is asked for."""
    return Machine(
        has_cuda=torch.cuda.is_available(),
        has_npu=device == "npu" and _has_npu(),
        num_cpus=os.cpu_count() or 1,
    )


def _has_npu() -> bool:
    """Importing torch_npu adds the device to torch; it fails in many ways without its driver."""
    try:
        import_module("torch_npu")
    except (ImportError, OSError, RuntimeError):
        return False
    return bool(torch.npu.is_available())


def demo_folder() -> Path | None:
    """The demo model that ships with the project: in the working folder or in the source tree."""
    source_tree = Path(__file__).parents[2]
    places = (root / "models" / "demo" for root in (Path.cwd(), source_tree))
    return next((place for place in places if (place / "config.json").exists()), None)


def default_model(report: Callable[[str], None]) -> Path:
    """The demo model; without one the random toy, said loudly."""
    demo = demo_folder()
    if demo is not None:
        return demo
    report(
        "NO MODEL GIVEN: this is a RANDOM TOY in the released format, made on the spot. "
        "Its text is noise by design; it shows that every part runs."
    )
    return toy_model()


def toy_model() -> Path:
    """The toy checkpoint in the user's cache; written there first if it is missing."""
    cache = Path.home() / ".cache" / "deepinfer"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        cache = Path(tempfile.mkdtemp(prefix="deepinfer-"))
    toy = cache / f"toy-{_TOY_VERSION}"
    if not toy.exists():
        # Written aside and renamed, so that a toy that exists is a whole one.
        fresh = Path(tempfile.mkdtemp(prefix="toy-", dir=cache))
        write_tiny(fresh)
        try:
            fresh.rename(toy)
        except OSError:
            # Someone else was faster; theirs is the same to the byte.
            return toy if toy.exists() else fresh
    return toy
