"""What will be done: every option decided (`deepinfer.config.engine.resolve`)."""

from dataclasses import dataclass
from pathlib import Path

from deepinfer.config.words import (
    Accept,
    ActQuant,
    DraftSchedule,
    EngramMemory,
    Kernels,
    LoadFormat,
    PrefixReplay,
    Replay,
    WeightDtype,
)


@dataclass(frozen=True)
class EngineConfig:
    """What will be done; never changed after `resolve`.

    max_model_len: an upper bound until the caches are laid out. asked_model_len: the user named it,
    so that less is an error. keep_tokens: of replay, should it be on. num_drafts: 0 if there are
    none. kernels: whose ops run; slow_kernels: why a GPU has to do with the reference's.
    """

    device: str
    kernels: Kernels
    slow_kernels: str
    dtype: str
    weight_dtype: WeightDtype
    act_quant: ActQuant
    load_format: LoadFormat
    expert_shard: tuple[int, int]
    layers: tuple[int, int]
    engram_memory: EngramMemory
    max_model_len: int
    asked_model_len: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_bytes: int
    async_scheduling: bool
    batch_invariant: bool
    enforce_eager: bool
    num_threads: int
    seed: int | None
    replay: Replay
    keep_tokens: int
    enable_prefix_caching: bool
    prefix_replay: PrefixReplay
    kv_host_bytes: int
    kv_disk_dir: Path | None
    kv_disk_bytes: int
    draft_schedule: DraftSchedule
    num_drafts: int
    accept: Accept
