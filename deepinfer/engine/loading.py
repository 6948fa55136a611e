"""From a model argument to an engine that can run: the stages of starting, in order and timed."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.layout import (
    BLOCK_TOKENS,
    PoolSizes,
    Storage,
    block_parts,
    blocks_for,
    pool_sizes,
    slot_parts,
    total_bytes,
)
from deepinfer.cache.slots import SlotPool
from deepinfer.checkpoint.load import open_checkpoint
from deepinfer.checkpoint.source import find_model
from deepinfer.config.engine import EngineArgs, EngineConfig, check_options, resolve
from deepinfer.config.env import environment
from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.engine.default_model import default_model
from deepinfer.engine.engine import Engine
from deepinfer.engine.grammars import Grammars, new_compiler
from deepinfer.engine.load_drafts import check_drafts, make_drafting
from deepinfer.engine.machine import this_machine, with_environment
from deepinfer.errors import ConfigError
from deepinfer.kernels.kernelset import load_kernels
from deepinfer.logs import Stages
from deepinfer.model.network import Network
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.scheduler.step_time import StepTime
from deepinfer.scheduler.verify_lengths import VerifyLengths
from deepinfer.tokenizer.compress import build_token_map, check_token_map
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from deepinfer.worker.build import build_dummy, build_network
from deepinfer.worker.drafter import Drafter
from deepinfer.worker.pools import make_pools
from deepinfer.worker.worker import Worker

# Every value of the caches' formats is exact in bfloat16, whatever is computed in.
_STORAGE: Storage = "bfloat16"
_LOG = logging.getLogger("deepinfer")


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready. folder: where it came from."""

    folder: Path
    config: ModelConfig
    options: EngineConfig
    tokenizer: Tokenizer
    engine: Engine


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
    check_options(args, machine)
    model = seen.model_dir if model is None else model
    stages = Stages()
    with stages("find"):
        folder = (
            default_model(report)
            if model is None
            else find_model(model, may_download_large=may_download_large, report=report)
        )
    with stages("check"):
        config = read_model_config(folder)
        options = resolve(args, config, machine)
        check_drafts(config, options, seen)
        tokenizer = load_tokenizer(folder, config)
        token_map = build_token_map(folder / "tokenizer.json")
        check_token_map(token_map, config)
    torch.set_num_threads(options.num_threads)
    with stages("weights"):
        network = _network(folder, config, options, token_map.tolist(), report)
    with stages("caches"):
        options = _after_weights(options, args)
        options, sizes = lay_out(config, options)
        worker = make_worker(network, options, sizes, seen.confidence_temperatures)
    with stages("step times"):
        drafting = make_drafting(worker, options, folder, seen)
        scheduler = make_scheduler(options, sizes, drafting.step_time)
    _log_pools(config, options, sizes)
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
    return LoadedModel(folder, config, options, tokenizer, engine)


def _network(
    folder: Path,
    config: ModelConfig,
    options: EngineConfig,
    token_map: list[int],
    report: Callable[[str], None],
) -> Network:
    kernels = load_kernels(act_quant=options.act_quant)
    dtype = getattr(torch, options.dtype)
    kept = options.weight_dtype
    weight_dtype = None if kept == "auto" else getattr(torch, kept)
    if options.load_format == "dummy":
        report("load_format is dummy: the weights are random, and so is the text")
        return build_dummy(
            config,
            token_map,
            kernels,
            dtype=dtype,
            weight_dtype=weight_dtype,
            device=options.device,
        )
    checkpoint = open_checkpoint(folder, config)
    for warning in checkpoint.index.warnings:
        report(f"warning: {warning}")
    return build_network(
        config,
        checkpoint,
        token_map,
        kernels,
        dtype=dtype,
        weight_dtype=weight_dtype,
        device=options.device,
    )


def lay_out(config: ModelConfig, options: EngineConfig) -> tuple[EngineConfig, PoolSizes]:
    """Sizes of the pools, and the options with the longest sequence that they hold.

    A length that the user named is an error if it does not fit; else as much as fits, and the log
    says so.
    """
    budget, num_seqs = options.kv_cache_bytes, options.max_num_seqs
    longest = options.max_model_len
    if not options.asked_model_len:
        left = budget - num_seqs * total_bytes(slot_parts(config, _STORAGE))
        fits = left // total_bytes(block_parts(config, _STORAGE)) * BLOCK_TOKENS
        if fits < 2:
            raise ConfigError(
                f"{budget} bytes hold no block beside {num_seqs} slots",
                where="kv_cache_bytes",
                hint="raise it, or lower max_num_seqs",
            )
        longest = min(longest, fits)
        if longest < options.max_model_len:
            _LOG.info("max_model_len is %d: memory holds no more", longest)
    sizes = pool_sizes(config, _STORAGE, budget, num_seqs, longest)
    # More blocks than all sequences could ever fill would only make the tables wider.
    most = num_seqs * blocks_for(longest)
    if sizes.num_blocks > most:
        sizes = replace(sizes, num_blocks=most, num_tokens=most * BLOCK_TOKENS)
    return replace(options, max_model_len=longest), sizes


def make_worker(
    network: Network,
    options: EngineConfig,
    sizes: PoolSizes,
    temperatures: Sequence[float] = (1.0,),
) -> Worker:
    """A worker with pools of these sizes. temperatures: of its drafts' confidences."""
    config = network.setup.config
    pools = make_pools(config, sizes.num_blocks, sizes.num_slots, device=options.device)
    drafter = Drafter(network, pools, temperatures) if options.num_drafts else None
    return Worker(network, pools, options.device, drafter)


def make_scheduler(
    options: EngineConfig, sizes: PoolSizes, step_time: StepTime | None = None
) -> Scheduler:
    """A scheduler with pools of these sizes. step_time: for drafts by confidence."""
    bounds = SchedulerConfig(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.max_model_len,
    )
    return Scheduler(
        bounds,
        BlockPool(sizes.num_blocks),
        SlotPool(sizes.num_slots),
        VerifyLengths(bounds, options.draft_schedule, step_time),
    )


def _after_weights(options: EngineConfig, args: EngineArgs) -> EngineConfig:
    """On a GPU the caches share what the weights have left, which is known only now."""
    if options.device != "cuda" or args.kv_cache_bytes is not None:
        return options
    free_bytes, _ = torch.cuda.mem_get_info()
    return replace(options, kv_cache_bytes=int(free_bytes * args.gpu_memory_utilization))


def _log_pools(config: ModelConfig, options: EngineConfig, sizes: PoolSizes) -> None:
    per_token = sizes.block_bytes / BLOCK_TOKENS
    _LOG.info(
        "caches: %d blocks of %d bytes (%.0f a token, %d tokens), %d slots of %d bytes",
        sizes.num_blocks,
        sizes.block_bytes,
        per_token,
        sizes.num_tokens,
        sizes.num_slots,
        sizes.slot_bytes,
    )
    for part in (*block_parts(config, _STORAGE), *slot_parts(config, _STORAGE)):
        _LOG.info("  %s: %d layers, %d bytes each", part.name, part.num_layers, part.num_bytes)
    _LOG.info("%s, computed in %s, %d threads", options.device, options.dtype, options.num_threads)
