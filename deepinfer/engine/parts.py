"""The parts of an engine, made from options that are decided: sizes, worker, scheduler."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deepinfer.cache.account import Account, account_lines, workspace_bytes
from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.disk_tier import DiskTier
from deepinfer.cache.host_tier import HostTier
from deepinfer.cache.layout import (
    BLOCK_TOKENS,
    PoolSizes,
    block_parts,
    blocks_for,
    pool_sizes,
    slot_parts,
    total_bytes,
)
from deepinfer.cache.slots import SlotPool
from deepinfer.cache.tiers import Tiers
from deepinfer.config.engine_config import EngineConfig
from deepinfer.config.model import ModelConfig
from deepinfer.config.words import Storage
from deepinfer.engine.machine import device_bytes
from deepinfer.errors import ConfigError
from deepinfer.model.network import Network
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.prefix_cache import PrefixCache
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.scheduler.step_time import StepTime
from deepinfer.scheduler.verify_lengths import VerifyLengths
from deepinfer.worker.drafter import Drafter
from deepinfer.worker.engram_memory import asks_host
from deepinfer.worker.graphs import Recorder, record_graph
from deepinfer.worker.pools import make_pools
from deepinfer.worker.worker import Worker

_LOG = logging.getLogger("deepinfer")


def lay_out(
    config: ModelConfig, options: EngineConfig, storage: Storage
) -> tuple[EngineConfig, PoolSizes]:
    """Sizes of the pools, and the options with the longest sequence that they hold.

    A length that the user named is an error if it does not fit; else as much as fits, and the log
    says so.
    """
    budget, num_seqs = options.kv_cache_bytes, options.max_num_seqs
    longest = options.max_model_len
    if not options.asked_model_len:
        left = budget - num_seqs * total_bytes(slot_parts(config, storage))
        fits = left // total_bytes(block_parts(config, storage)) * BLOCK_TOKENS
        if fits < 2:
            raise ConfigError(
                f"{budget} bytes hold no block beside {num_seqs} slots",
                where="kv_cache_bytes",
                hint="raise it, or lower max_num_seqs",
            )
        longest = min(longest, fits)
        if longest < options.max_model_len:
            _LOG.info("max_model_len is %d: memory holds no more", longest)
    sizes = pool_sizes(config, storage, budget, num_seqs, longest)
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
    pools = make_pools(
        config,
        sizes.num_blocks,
        sizes.num_slots,
        storage=network.kernels.storage,
        device=options.device,
    )
    record: Recorder[Any] | None = None
    if not options.enforce_eager and not asks_host(network):
        record = record_graph()
    drafter = Drafter(network, pools, temperatures, record) if options.num_drafts else None
    is_compact = options.replay == "compact"
    return Worker(network, pools, options.device, drafter, is_compact=is_compact, record=record)


def make_prefix_cache(
    config: ModelConfig, options: EngineConfig, model_id: str, storage: Storage, num_bytes: int
) -> PrefixCache | None:
    """The rules by which prefixes are found, and the tiers; None without.

    model_id: tells weights apart. storage, num_bytes: of a block. Raises ConfigError for a folder
    that cannot be used.
    """
    if not options.enable_prefix_caching:
        return None
    how = (storage, options.device, options.dtype, options.weight_dtype, options.act_quant)
    cache_format = " ".join(how)
    host = HostTier(options.kv_host_bytes) if options.kv_host_bytes else None
    disk = None
    if options.kv_disk_dir is not None:
        identity = f"{model_id} {cache_format} {num_bytes}".encode()
        disk = DiskTier(options.kv_disk_dir, options.kv_disk_bytes, identity)
    return PrefixCache(
        model_id,
        cache_format,
        tiers=Tiers(num_bytes, host, disk) if host or disk else None,
        window=config.sliding_window,
        depth=config.num_hidden_layers,
        replay=options.prefix_replay,
    )


def make_scheduler(
    options: EngineConfig,
    sizes: PoolSizes,
    step_time: StepTime | None = None,
    prefix: PrefixCache | None = None,
) -> Scheduler:
    """A scheduler with pools of these sizes. step_time: for drafts by confidence. prefix: None
    finds no prefixes."""
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
        prefix,
    )


def log_account(network: Network, options: EngineConfig, sizes: PoolSizes) -> None:
    """Where the memory goes, in the log."""
    config, draft = network.setup.config, network.draft
    drafts = 0 if draft is None else sum(one.nbytes for one in draft.parameters())
    num_drawn = options.max_num_seqs * (1 + options.num_drafts)
    num_rows, value_bytes = options.max_num_batched_tokens, network.setup.dtype.itemsize
    account = Account(
        memory=device_bytes(options.device),
        weights=sum(one.nbytes for one in network.parameters()) - drafts,
        drafts=drafts,
        num_blocks=sizes.num_blocks,
        block_bytes=sizes.block_bytes,
        num_slots=sizes.num_slots,
        slot_bytes=sizes.slot_bytes,
        workspace=workspace_bytes(
            config, num_rows, min(num_rows, num_drawn), value_bytes, sizes.block_bytes
        ),
    )
    _LOG.info("bytes of memory, for %d tokens of context in all:", sizes.num_tokens)
    for line in account_lines(account):
        _LOG.info("  %s", line)
    if account.remains < 0:
        _LOG.warning("the largest steps may need %d bytes more than there are", -account.remains)
    _LOG.info("%s, computed in %s, %d threads", options.device, options.dtype, options.num_threads)
