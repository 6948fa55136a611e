"""What a user asks for (`EngineArgs`, all optional), and how `EngineConfig` is decided from it.

`resolve` is pure: the machine's facts are passed in. How much fits into memory is decided where the
layout is known (deepinfer.cache), by the figures given here.
"""

from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import gcd
from pathlib import Path
from typing import Any, get_args

from deepinfer.config.drafts import check_words, decide_num_drafts, decide_schedule
from deepinfer.config.elsewhere import ELSEWHERE
from deepinfer.config.engine_config import EngineConfig
from deepinfer.config.machine import (
    Machine,
    cache_bytes,
    choose_kernels,
    decide_invariance,
    usable_device,
)
from deepinfer.config.model import ModelConfig
from deepinfer.config.option_checks import (
    check_disk,
    one_of,
    share,
    span,
    whole,
    whole_or,
    yes_or_no,
)
from deepinfer.config.replay import decide_keep_tokens, decide_prefix_replay
from deepinfer.config.words import (
    Accept,
    ActQuant,
    Device,
    DraftSchedule,
    Dtype,
    EngramMemory,
    LoadFormat,
    PrefixReplay,
    Replay,
    WeightDtype,
)
from deepinfer.errors import ConfigError

# Below this width a matrix product ends sooner than a second thread could join it.
_ONE_THREAD_BELOW_HIDDEN = 1024
# Rows of a step where nothing is said: more would make each step longer, and rows no faster.
_STEP_ROWS = {"cpu": 512, "cuda": 8192, "npu": 8192}


@dataclass(frozen=True)
class EngineArgs:
    """What a user says.

    device: where to run; auto takes a GPU that torch can use, else the CPU.
    dtype: what is computed in.
    weight_dtype: how weights are kept; auto keeps them as they are computed with.
    act_quant: fp8 adds the release's rounding of activations before FP8 and FP4 weights.
    load_format: dummy fills the network with random weights and needs no shards.
    expert_shard: "i/n" holds the i-th, from 0, of n equal shares of every layer's experts, and
        leaves out what the others would add: to measure one rank, not for answers. None holds all.
    layers: "a:b" holds layers a to b - 1 alone: to measure one rank, likewise. None holds all.
    engram_memory: where Engram's tables are: file maps the checkpoint, host and device hold them.
    max_model_len: most tokens of prompt and output together; None is what the checkpoint and the
        memory allow.
    max_num_seqs: most sequences that run at once.
    max_num_batched_tokens: most rows of a step.
    kv_cache_bytes: memory for blocks and slots; None is a quarter of the machine's on a CPU, and
        gpu_memory_utilization of what the weights leave on a GPU.
    gpu_memory_utilization: see there.
    async_scheduling: the next step is planned and launched while one runs; None is on where the
        device runs by itself, and off on a CPU, which then has a thread for it. Answers are the
        same.
    batch_invariant: a row's result does not depend on its batch, to the bit; None is on on the CPU,
        where it is free, and off on a GPU.
    enforce_eager: steps run op by op on a GPU too, where None and False replay decode steps as CUDA
        graphs.
    num_threads: CPU threads; None chooses by the model's width.
    seed: seeds the requests that have none of their own; None leaves them to chance.
    replay: mask hides all but the last keep_tokens tokens of a prompt from the windows of the
        second half of the layers, which is how the release serves long prompts (docs/limits.md);
        None is off. keep_tokens: None is 140.
    enable_prefix_caching: what was computed of a prompt or an answer serves later requests that
        begin with the same tokens. prefix_replay: bounded runs the last window before a hit's end
        again, an approximation (docs/limits.md); exact as much as it takes to give the same as
        without a hit. None is exact where rows do not depend on their batch, as on a CPU, else
        bounded; batch_invariant=True is always exact.
    kv_host_bytes: of host memory for what the device's blocks hold no more; 0 is none.
    kv_disk_dir, kv_disk_bytes: a folder for the same, which outlives the process and may be shared
        by processes of this machine, and how much it may take; None and 0 are none.
    draft_schedule: fixed verifies num_drafts drafts of each sequence in each step, confidence those
        that are worth their time, off none; None is fixed, and off without a draft module.
    num_drafts: drafts of a block, 1 to 5; None is as many as the model was trained for.
    accept: coupled gives one answer for one seed, with drafts or without; rejection accepts more;
        auto is coupled for requests with a seed, rejection for others. Neither changes what tokens
        are likely, and at temperature 0 they do not differ.
    data_parallel_size, context_parallel_size, expert_parallel_size: only 1.
    """

    device: Device = "auto"
    dtype: Dtype = "bfloat16"
    weight_dtype: WeightDtype = "auto"
    act_quant: ActQuant = "off"
    load_format: LoadFormat = "auto"
    expert_shard: str | None = None
    layers: str | None = None
    engram_memory: EngramMemory = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    async_scheduling: bool | None = None
    batch_invariant: bool | None = None
    enforce_eager: bool | None = None
    num_threads: int | None = None
    seed: int | None = None
    replay: Replay | None = None
    keep_tokens: int | None = None
    enable_prefix_caching: bool = True
    prefix_replay: PrefixReplay | None = None
    kv_host_bytes: int = 0
    kv_disk_dir: str | Path | None = None
    kv_disk_bytes: int = 0
    draft_schedule: DraftSchedule | None = None
    num_drafts: int | None = None
    accept: Accept = "auto"
    data_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_parallel_size: int = 1


def engine_args(options: dict[str, Any]) -> EngineArgs:
    """EngineArgs from keyword options. Raises ConfigError for a name that does not exist."""
    known = [f.name for f in fields(EngineArgs)]
    for name in options:
        if name in known:
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"options are: {', '.join(known)}"
        if name in ELSEWHERE:
            hint = f"leave it out: {ELSEWHERE[name]}"
        raise ConfigError("no such option", where=name, hint=hint)
    return EngineArgs(**options)


def check_options(args: EngineArgs, machine: Machine) -> None:
    """Refuse what can be refused before a model is looked for. Raises ConfigError."""
    usable_device(args.device, machine)
    for name, words in (
        ("dtype", Dtype),
        ("weight_dtype", WeightDtype),
        ("act_quant", ActQuant),
        ("load_format", LoadFormat),
        ("engram_memory", EngramMemory),
    ):
        one_of(name, getattr(args, name), get_args(words))
    if args.replay is not None:
        one_of("replay", args.replay, get_args(Replay))
    if args.prefix_replay is not None:
        one_of("prefix_replay", args.prefix_replay, get_args(PrefixReplay))
    check_words(args.draft_schedule, args.accept)
    check_disk(args.kv_disk_dir, args.kv_disk_bytes)
    for name in ("data_parallel_size", "context_parallel_size", "expert_parallel_size"):
        whole(name, getattr(args, name), 1, 1)


def resolve(args: EngineArgs, model: ModelConfig, machine: Machine) -> EngineConfig:
    """Decide every option. Raises ConfigError for a value that cannot be honoured here."""
    check_options(args, machine)
    device = usable_device(args.device, machine)
    for name in ("batch_invariant", "enforce_eager", "async_scheduling", "enable_prefix_caching"):
        yes_or_no(name, getattr(args, name))
    kernels, slow = choose_kernels(device, args.dtype, args.weight_dtype, machine)
    is_invariant = decide_invariance(args.batch_invariant, device, kernels, slow)
    max_num_seqs = whole("max_num_seqs", args.max_num_seqs, 1, 65_536)
    longest = model.max_position_embeddings
    one_thread = model.hidden_size < _ONE_THREAD_BELOW_HIDDEN
    replay = args.replay or "off"
    draft_schedule = decide_schedule(args.draft_schedule, args.num_drafts, model)
    return EngineConfig(
        device=device,
        kernels=kernels,
        slow_kernels=slow,
        dtype=args.dtype,
        weight_dtype=args.weight_dtype,
        act_quant=args.act_quant,
        load_format=args.load_format,
        expert_shard=_shard(args, model),
        layers=span("layers", args.layers, model.num_hidden_layers),
        engram_memory="file" if device == "cpu" else args.engram_memory,
        max_model_len=whole_or(longest, "max_model_len", args.max_model_len, 2, longest),
        asked_model_len=args.max_model_len is not None,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=whole_or(
            max(_STEP_ROWS[device], max_num_seqs),
            "max_num_batched_tokens",
            args.max_num_batched_tokens,
            max_num_seqs,
            2**20,
        ),
        kv_cache_bytes=whole_or(
            cache_bytes(args.gpu_memory_utilization, machine),
            "kv_cache_bytes",
            args.kv_cache_bytes,
            1,
            2**60,
        ),
        async_scheduling=(
            device != "cpu" if args.async_scheduling is None else args.async_scheduling
        ),
        batch_invariant=is_invariant,
        enforce_eager=kernels != "triton" or args.enforce_eager is True,
        num_threads=whole_or(
            1 if one_thread else machine.num_cpus, "num_threads", args.num_threads, 1, 1024
        ),
        seed=None if args.seed is None else whole("seed", args.seed, -(2**63), 2**64 - 1),
        replay=replay,
        keep_tokens=decide_keep_tokens(replay, args.keep_tokens, model),
        enable_prefix_caching=args.enable_prefix_caching is not False,
        kv_host_bytes=whole("kv_host_bytes", args.kv_host_bytes, 0, 2**60),
        kv_disk_dir=None if args.kv_disk_dir is None else Path(args.kv_disk_dir),
        kv_disk_bytes=args.kv_disk_bytes,
        prefix_replay=decide_prefix_replay(args.prefix_replay, args.batch_invariant, device),
        draft_schedule=draft_schedule,
        num_drafts=decide_num_drafts(draft_schedule, args.num_drafts, model),
        accept=args.accept,
    )


def _shard(args: EngineArgs, model: ModelConfig) -> tuple[int, int]:
    of_drafts = model.dspark_n_routed_experts if model.num_nextn_predict_layers else 0
    return share("expert_shard", args.expert_shard, gcd(model.n_routed_experts, of_drafts))
