"""Every environment name of DeepInfer 0.1, and what this version does when it is set.

Data only; `env.py` acts on it and docs/environment.md shows it. Knows nothing of the environment.
"""

from dataclasses import dataclass
from typing import Literal

Status = Literal["honoured", "not needed", "refused"]

OFF = ("0", "false", "False")  # with the empty value, all that DeepInfer takes for "no"
ZERO = ("0", "0.0")


@dataclass(frozen=True, slots=True)
class EnvName:
    """One name.

    status: "honoured": it does what `reason` says. "not needed": answers, limits and outputs are
        the same without it, for the given reason; a warning says so. "refused": to ignore it would
        give something else than was asked for.
    accepted: for "honoured" the only good values (none listed: any), for "refused" the values that
        ask for what happens anyway.
    hint: for "honoured", what to do about another value.
    """

    name: str
    status: Status
    accepted: tuple[str, ...]
    reason: str
    hint: str = "set it to one of these, or unset it"


_NO_RANKS = "one process computes all: there are no ranks to talk to or to balance"
_SIZES = "steps are captured as CUDA graphs in the sizes that come again"
_NO_PREFIXES = "no state of a sequence is kept for another one yet"
_NO_IMAGES = "there is no image input yet"
_NO_STATISTICS = "no running statistics are logged yet"
_FAKE_ROUTING = "it replaces the router's choice, and with it the answer"
_NO_PROFILER = "there is no profiler to switch on, so what it would write would be missing"
_FOREIGN_TEST = "it belongs to tests of kernels that are not part of this package"
_ASCEND = "Ascend's own runtime reads it; this package does not"


def _not_needed(reason: str, *names: str) -> tuple[EnvName, ...]:
    return tuple(EnvName(f"DEEPINFER_{name}", "not needed", (), reason) for name in names)


def _refused(name: str, accepted: tuple[str, ...], reason: str) -> EnvName:
    return EnvName(f"DEEPINFER_{name}", "refused", accepted, reason)


ENV_NAMES: tuple[EnvName, ...] = (
    EnvName(
        "DEEPINFER_HF_MODEL_DIR",
        "honoured",
        (),
        "the checkpoint when no model is given, except to bench",
    ),
    EnvName(
        "DEEPINFER_ACCELERATOR",
        "honoured",
        ("nvidia", "ascend", "cpu"),
        "the device when none is given (--device): cuda, npu or cpu",
    ),
    EnvName("DEEPINFER_API_KEY", "honoured", (), "a key that the server asks for, as --api-key"),
    _refused("COMPUTE_SUM_SMALLER_PROBS", OFF, "such probabilities are not returned"),
    *_not_needed("nothing is compiled at run time", "JIT_CACHE_DIR"),
    *_not_needed(
        _NO_RANKS,
        *("NCCL_NUM_SMS", "USERBUFFER_COMM_SMS", "GLOO_TIMEOUT", "REARRANGE_P2P_GROUPS"),
        *("OVERRIDE_NUM_EXTRA_EXPERTS", "EXPERT_COUNT_WINDOW_SIZE"),
        *("EXPERT_REARRANGEMENT_STEP_INTERVAL", "REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE"),
        *("MOE_LB_STAT_INTERVAL", "SHOW_EPLB_DETAIL", "NCCL_MEMORY_SAMPLE_INTERVAL_STEPS"),
        *("PREFILL_ATTEMPT_INTERVAL", "PREFILL_ANY_ATTEMPT_INTERVAL"),
    ),
    _refused("FORCE_IMBALANCE_RATIO", ZERO, _FAKE_ROUTING),
    _refused("FORCE_LOAD_BALANCE", OFF, _FAKE_ROUTING),
    _refused("INDEX_ATTN_MEMORY_LIMIT", (), "index scores take what they need: no limit is kept"),
    EnvName(
        "DEEPINFER_USE_NEXTN_DECODE",
        "honoured",
        (),
        "num_drafts, when the option is left out, 1 to 5; 0 is draft_schedule off",
    ),
    EnvName(
        "DEEPINFER_ENABLE_MTP_VARLEN",
        "honoured",
        (),
        "draft_schedule confidence, when the option is left out; not for 0, false, False",
    ),
    EnvName(
        "DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE",
        "honoured",
        (),
        "confidences of drafts are divided by it; one number, or one for each draft; default 1",
    ),
    *_not_needed("drafts take back no more rows than there is room for", "MAX_BACKTRACKING_TOKENS"),
    _refused("ENGRAM_PAD_TOKEN", (), "config.json says which it is: engram_pad_token_id"),
    EnvName(
        "DEEPINFER_ENGRAM_FORCE_GPU_STORAGE",
        "honoured",
        (),
        "engram_memory device on a GPU, when the option is auto; not for 0, false, False",
    ),
    _refused("SAMPLER_FORCE_TOPK", ("0",), "say it for each request: top_k"),
    _refused("DECODE_TOKEN_BLACKLIST", (), "tokens cannot be forbidden for all requests yet"),
    EnvName(
        "DEEPINFER_ENFORCE_EAGER",
        "honoured",
        (),
        "enforce_eager, when the option is left out; not for 0, false, False",
    ),
    *_not_needed(_SIZES, "CUDAGRAPH_BATCH_SIZE_INTERVAL", "DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL"),
    *_not_needed("ENFORCE_EAGER stands for drafts, too", "DFLASH_ENFORCE_EAGER"),
    EnvName(
        "DEEPINFER_DECODE_PERF_CACHE_DIR",
        "honoured",
        (),
        "where step times that were measured at a start are kept; unset keeps none",
    ),
    EnvName(
        "DEEPINFER_DECODE_PERF_CACHE_TTL_SEC",
        "honoured",
        (),
        "how many seconds they are used; default 3600",
    ),
    *_not_needed("there is one slot for each of max_num_seqs", "NUM_STATE_SLOTS_RATIO"),
    *_not_needed(_NO_PREFIXES, "PREFILL_STORE_EXTRA_STATE", "PREFILL_STORE_EXTRA_SIZE"),
    EnvName(
        "DEEPINFER_XGRAMMAR_TIMEOUT",
        "honoured",
        (),
        "seconds in which a grammar must be compiled; default 20",
    ),
    EnvName(
        "DEEPINFER_XGRAMMAR_CACHE_LIMIT_BYTES",
        "honoured",
        (),
        "bytes of compiled grammars to keep; default 1 GiB, at most 0 keeps all",
    ),
    EnvName(
        "DEEPINFER_SO_BUILDER_CPUS",
        "honoured",
        (),
        "processes that compile grammars at once; default 2",
    ),
    *_not_needed("keeping compiled grammars changes no answer", "XGRAMMAR_DISABLE_CACHE"),
    *_not_needed("a grammar's errors name their place", "XGRAMMAR_DEBUG"),
    *_not_needed("max_num_batched_tokens bounds a step", "PREFILL_MAX_SUM_SEQLEN_K"),
    EnvName(
        "DEEPINFER_ZERO_OVERHEAD_SCHEDULING",
        "honoured",
        (),
        "async_scheduling, when the option is left out; not for 0, false, False",
    ),
    *_not_needed(_NO_STATISTICS, "LOGGING_INTERVAL_STEP", "RINGBUFFER_WARNING_INTERVAL"),
    *_not_needed("Python's own garbage collection is left alone", "GC_INTERVAL_STEP"),
    EnvName(
        "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE",
        "honoured",
        ("off", "mask", "compact"),
        "bounded replay of prompts, when the option replay is left out; a bench of a toy has none",
        "give off, mask or compact, or unset it",
    ),
    EnvName(
        "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS",
        "honoured",
        (),
        "tokens that replay keeps, when the option keep_tokens is left out; default 140",
    ),
    EnvName(
        "DEEPINFER_BATCH_INVARIANT",
        "honoured",
        (),
        "batch_invariant, when the option is left out; not for 0, false, False",
    ),
    *_not_needed("there is no such guard", "DISABLE_SYNC_GUARD"),
    _refused("PROFILE_TORCH_CUDA_MEMORY", OFF, _NO_PROFILER),
    _refused("ENABLE_MEMORY_TRACING", OFF, _NO_PROFILER),
    _refused("PROFILE_HTTP_ENABLE", OFF, _NO_PROFILER),
    *_not_needed("there is no profiler", "PROFILE_HTTP_PORT_BASE", "TORCH_PROFILER_DIR"),
    *_not_needed(
        _NO_IMAGES,
        *("USE_MULTIMODAL_POOL", "MULTIMODAL_POOL_SIZE_GB"),
        *("MULTI_MODAL_BUFFER_SIZE", "MULTI_MODAL_WORKER_TIMEOUT"),
    ),
    *_not_needed("there is no C++ part", "CPP_LOG_LEVEL"),
    *_not_needed(_FOREIGN_TEST, "FUSED_SAMPLE_STRESS_TEST", "FUSED_SAMPLE_DETAIL_LOG"),
    EnvName("ASCEND_LAUNCH_BLOCKING", "not needed", (), _ASCEND),
    EnvName("ASCEND_SLOG_PRINT_TO_STDOUT", "not needed", (), _ASCEND),
)
