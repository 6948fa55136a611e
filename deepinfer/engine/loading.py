"""From a model argument to an engine that can run: the stages of starting, in order and timed."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import torch

from deepinfer.checkpoint.fingerprint import fingerprint
from deepinfer.checkpoint.load import open_checkpoint
from deepinfer.checkpoint.source import find_model
from deepinfer.config.engine import EngineArgs, check_options, resolve
from deepinfer.config.engine_config import EngineConfig
from deepinfer.config.env import environment
from deepinfer.config.layers import hold_layers
from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.engine.default_model import default_model
from deepinfer.engine.engine import Engine
from deepinfer.engine.grammars import Grammars, new_compiler
from deepinfer.engine.load_drafts import check_drafts, make_drafting
from deepinfer.engine.machine import device_bytes, refuse_too_large, this_machine, with_environment
from deepinfer.engine.parts import (
    lay_out,
    log_account,
    make_prefix_cache,
    make_scheduler,
    make_worker,
)
from deepinfer.kernels.backends import load_kernels
from deepinfer.logs import Stages
from deepinfer.model.network import Network
from deepinfer.tokenizer.compress import build_token_map, check_token_map
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from deepinfer.worker.blobs import blob_bytes
from deepinfer.worker.build import build_dummy, build_network, network_bytes
from deepinfer.worker.engram_memory import decide_memory, hold_tables
from deepinfer.worker.faults import named_faults

_LOG = logging.getLogger("deepinfer")


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready. folder: where it came from. stages: of the start, in seconds."""

    folder: Path
    config: ModelConfig
    options: EngineConfig
    tokenizer: Tokenizer
    engine: Engine
    stages: dict[str, float]


def load_model(
    model: str | Path | None,
    args: EngineArgs,
    *,
    may_download_large: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> LoadedModel:
    """Find, check and load a model. `report` gets lines that a user should see.

    None is DEEPINFER_HF_MODEL_DIR; without it, the demo model that ships with the project; without
    one, a random toy. The options are checked before anything is downloaded or read.
    The environment stands for a device that is auto, and for replay, keep_tokens, draft_schedule,
    num_drafts and async_scheduling that are None.
    Raises ConfigError or CheckpointError.
    """
    seen = environment()
    for warning in seen.warnings:
        report(f"warning: {warning}")
    args = with_environment(args, seen)
    machine = this_machine(args.device)
    if machine.cuda_reason:
        _LOG.info("no GPU: %s", machine.cuda_reason)
    check_options(args, machine)
    model, stages = seen.model_dir if model is None else model, Stages()
    with stages("find"):
        folder = (
            default_model(report)
            if model is None
            else find_model(model, may_download_large=may_download_large, report=report)
        )
    with stages("check"):
        whole = read_model_config(folder)
        config = hold_layers(whole, args.layers)
        options = resolve(args, config, machine)
        check_drafts(config, options, seen)
        tokenizer = load_tokenizer(folder, config)
        token_map = build_token_map(folder / "tokenizer.json")
        check_token_map(token_map, config)
    torch.set_num_threads(options.num_threads)
    with stages("weights"), named_faults("weights"):
        network = _network(folder, (whole, config), options, token_map.tolist(), report)
    with stages("caches"), named_faults("caches"):
        options = _after_weights(options, args)
        options, sizes = lay_out(config, options, network.kernels.storage)
        worker = make_worker(network, options, sizes, seen.confidence_temperatures)
    with stages("step times"), named_faults("step times"):
        drafting = make_drafting(worker, options, folder, seen)
        model_id, storage = _model_id(folder, options, config), network.kernels.storage
        prefix = make_prefix_cache(config, options, model_id, storage, blob_bytes(worker.pools))
        scheduler = make_scheduler(options, sizes, drafting.step_time, prefix)
    log_account(network, options, sizes)
    stages.log(_LOG)
    engine = Engine(
        scheduler,
        worker,
        tokenizer.eos_ids,
        tokenizer.thinking_ids,
        Grammars(partial(new_compiler, tokenizer, config.vocab_size, seen), config.vocab_size),
        None if options.replay == "off" else options.keep_tokens,
        drafting,
        is_ahead=options.async_scheduling,
    )
    return LoadedModel(folder, config, options, tokenizer, engine, stages.seconds)


def _network(
    folder: Path,
    configs: tuple[ModelConfig, ModelConfig],
    options: EngineConfig,
    token_map: list[int],
    report: Callable[[str], None],
) -> Network:
    whole, config = configs
    kernels = load_kernels(
        options.kernels,
        act_quant=options.act_quant,
        is_invariant=options.batch_invariant and options.device != "cpu",
    )
    if options.slow_kernels:
        report(f"warning: the reference's kernels run on this GPU: {options.slow_kernels}")
    dtype = getattr(torch, options.dtype)
    kept = options.weight_dtype
    weight_dtype = None if kept == "auto" else getattr(torch, kept)
    if options.expert_shard != (0, 1):
        number, count = options.expert_shard
        report(f"warning: share {number} of {count} of the experts: answers are not the model's")
    if config.held_layers is not None:
        first, end = config.held_layers
        report(f"warning: layers {first} to {end - 1} alone: answers are not the model's")
    if options.device == "cuda":
        need = network_bytes(
            config,
            kernels,
            dtype=dtype,
            weight_dtype=weight_dtype,
            expert_shard=options.expert_shard,
        )
        refuse_too_large(need)
    if options.load_format == "dummy":
        report("load_format is dummy: the weights are random, and so is the text")
        return build_dummy(
            config,
            token_map,
            kernels,
            dtype=dtype,
            weight_dtype=weight_dtype,
            expert_shard=options.expert_shard,
            device=options.device,
        )
    checkpoint = open_checkpoint(folder, whole)
    for warning in checkpoint.index.warnings:
        report(f"warning: {warning}")
    network = build_network(
        config,
        checkpoint,
        token_map,
        kernels,
        dtype=dtype,
        weight_dtype=weight_dtype,
        expert_shard=options.expert_shard,
        device=options.device,
    )
    where = decide_memory(options.engram_memory, checkpoint.index, device_bytes("cpu"))
    hold_tables(network, where, options.device)
    return network


def _model_id(folder: Path, options: EngineConfig, config: ModelConfig) -> str:
    """What tells weights apart. Random ones are others in each process, and what a part of a model
    computes is nothing for the whole one."""
    is_part = options.expert_shard != (0, 1) or config.held_layers is not None
    is_own = options.load_format == "dummy" or is_part
    return uuid4().hex if is_own else fingerprint(folder)


def _after_weights(options: EngineConfig, args: EngineArgs) -> EngineConfig:
    """On a GPU the caches share what the weights have left, which is known only now."""
    if options.device != "cuda" or args.kv_cache_bytes is not None:
        return options
    free_bytes, _ = torch.cuda.mem_get_info()
    return replace(options, kv_cache_bytes=int(free_bytes * args.gpu_memory_utilization))
