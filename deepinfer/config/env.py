"""The environment, read in one place: what is honoured, warned of, or refused.

No other module reads os.environ. Names and treatment are data in `env_names.py`. A setting that is
silently ignored is a wrong answer in waiting, so it is refused, and so is a name that nobody
knows. Knows nothing of how the values are used.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast

from deepinfer.config.env_names import ENV_NAMES, OFF, EnvName
from deepinfer.config.words import DraftSchedule, Replay
from deepinfer.errors import ConfigError

PREFIX = "DEEPINFER_"
MODEL_DIR = "DEEPINFER_HF_MODEL_DIR"
ACCELERATOR = "DEEPINFER_ACCELERATOR"
REPLAY = "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE"
NUM_DRAFTS = "DEEPINFER_USE_NEXTN_DECODE"
BY_CONFIDENCE = "DEEPINFER_ENABLE_MTP_VARLEN"
AHEAD = "DEEPINFER_ZERO_OVERHEAD_SCHEDULING"
BATCH_INVARIANT = "DEEPINFER_BATCH_INVARIANT"
EAGER = "DEEPINFER_ENFORCE_EAGER"
ENGRAM_ON_DEVICE = "DEEPINFER_ENGRAM_FORCE_GPU_STORAGE"
TEMPERATURES = "DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE"
API_KEY = "DEEPINFER_API_KEY"
CURVE_DIR = "DEEPINFER_DECODE_PERF_CACHE_DIR"

Accelerator = Literal["nvidia", "ascend", "cpu"]

# For GNU's OpenMP, and for Intel's and LLVM's.
THREAD_POLICY = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}

# name -> (field of Environment, kind of number, lowest value)
_NUMBERS: dict[str, tuple[str, type, float]] = {
    "DEEPINFER_XGRAMMAR_TIMEOUT": ("grammar_timeout_s", float, 0.001),
    "DEEPINFER_XGRAMMAR_CACHE_LIMIT_BYTES": ("grammar_cache_bytes", int, -math.inf),
    "DEEPINFER_SO_BUILDER_CPUS": ("grammar_workers", int, 1),
    "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS": ("keep_tokens", int, 0),
    "DEEPINFER_DECODE_PERF_CACHE_TTL_SEC": ("curve_ttl_s", float, 0),
    NUM_DRAFTS: ("num_drafts", int, 0),
}

_LEAST_TEMPERATURE = 1e-5

_BY_NAME = {row.name: row for row in ENV_NAMES}


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says; None where it says nothing.

    warnings: one line for each name that is set and has no effect here.
    grammar_timeout_s: in which a grammar must be compiled. grammar_cache_bytes: compiled grammars
        to keep; 0 and below: all. grammar_workers: processes that compile.
    replay, keep_tokens, draft_schedule, num_drafts, async_scheduling, batch_invariant,
        enforce_eager: the options of these names; num_drafts 0 comes with draft_schedule off.
    engram_on_device: engram_memory device.
    confidence_temperatures: of drafts, one for all or one for each. curve_dir, curve_ttl_s: where
        step times are kept, None for nowhere, and for how long.
    api_key: what the server asks for; never shown.
    """

    model_dir: Path | None = None
    accelerator: Accelerator | None = None
    warnings: tuple[str, ...] = ()
    grammar_timeout_s: float = 20.0
    grammar_cache_bytes: int = 2**30
    grammar_workers: int = 2
    replay: Replay | None = None
    keep_tokens: int | None = None
    draft_schedule: DraftSchedule | None = None
    num_drafts: int | None = None
    async_scheduling: bool | None = None
    batch_invariant: bool | None = None
    enforce_eager: bool | None = None
    engram_on_device: bool | None = None
    confidence_temperatures: tuple[float, ...] = (1.0,)
    curve_dir: Path | None = None
    curve_ttl_s: float = 3600.0
    api_key: str | None = field(default=None, repr=False)


def environment() -> Environment:
    """The process's own environment. Raises ConfigError as `read_environment` does."""
    return read_environment(os.environ)


def set_thread_policy() -> None:
    """Let OpenMP's threads sleep when they wait, unless the user said otherwise.

    By default they spin, which on two cores with a busy neighbour makes a chain of small products
    some forty times slower. OpenMP reads these names once, when torch is imported: this must run
    before that.
    """
    for name, value in THREAD_POLICY.items():
        os.environ.setdefault(name, value)


def read_environment(environ: Mapping[str, str]) -> Environment:
    """Check every name in `environ` that is ours to judge and return what is honoured.

    An empty value counts as not set. Raises ConfigError naming the first name, in alphabetical
    order, that is unknown, refused, or has a bad value.
    """
    found = {
        name: environ[name]
        for name in sorted(environ)
        if environ[name] and (name.startswith(PREFIX) or name in _BY_NAME)
    }
    rows = [_known(name, value) for name, value in found.items()]
    for row in rows:
        _check_value(row, found[row.name])
    numbers = {
        field: _number(name, found[name], kind, lowest)
        for name, (field, kind, lowest) in _NUMBERS.items()
        if name in found
    }
    return Environment(
        model_dir=_path(found.get(MODEL_DIR)),
        curve_dir=_path(found.get(CURVE_DIR)),
        api_key=found.get(API_KEY),
        draft_schedule=_draft_schedule(numbers.get("num_drafts"), found.get(BY_CONFIDENCE)),
        async_scheduling=_yes(found.get(AHEAD)),
        # "No" is what happens anyway, and on a CPU it would give up what is free.
        batch_invariant=_yes(found.get(BATCH_INVARIANT)) or None,
        enforce_eager=_yes(found.get(EAGER)),
        engram_on_device=_yes(found.get(ENGRAM_ON_DEVICE)),
        confidence_temperatures=tuple(
            max(_number(TEMPERATURES, one, float, 0), _LEAST_TEMPERATURE)
            for one in found.get(TEMPERATURES, "1").split(",")
        ),
        accelerator=cast(Accelerator | None, found.get(ACCELERATOR)),
        replay=cast(Replay | None, found.get(REPLAY)),
        warnings=tuple(
            f"environment {row.name}: not used: {row.reason}"
            for row in rows
            if row.status == "not needed"
        ),
        **numbers,
    )


def _yes(value: str | None) -> bool | None:
    return None if value is None else value not in OFF


def _path(value: str | None) -> Path | None:
    return Path(value) if value else None


def _draft_schedule(num_drafts: int | None, by_confidence: str | None) -> DraftSchedule | None:
    """No drafts at all is the stronger word. What is not a no is a yes."""
    if num_drafts == 0:
        return "off"
    if by_confidence is not None and by_confidence not in OFF:
        return "confidence"
    return None if num_drafts is None else "fixed"


def _known(name: str, value: str) -> EnvName:
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = get_close_matches(name, _BY_NAME, n=1)
    raise ConfigError(
        f"unknown name, set to {value!r}",
        where=f"environment {name}",
        hint=f"did you mean {near[0]}?" if near else "docs/environment.md lists all; unset it",
    )


def _check_value(row: EnvName, value: str) -> None:
    """Raise unless `value` is one that this row accepts. "Not needed" accepts all."""
    where = f"environment {row.name}"
    if row.status == "honoured" and row.accepted and value not in row.accepted:
        raise ConfigError(
            f"value {value!r}, expected {_any_of(row.accepted)}",
            where=where,
            hint=row.hint,
        )
    if row.status == "refused" and value not in row.accepted:
        raise ConfigError(
            f"value {value!r} cannot be honoured: {row.reason}",
            where=where,
            hint=f"unset it, or set it to {_any_of(row.accepted)}" if row.accepted else "unset it",
        )


def _number(name: str, value: str, kind: type, lowest: float) -> Any:
    try:
        found = kind(value)
    except ValueError:
        found = math.nan
    if not lowest <= found < math.inf:
        whole = "a whole number" if kind is int else "a number"
        least = "" if lowest == -math.inf else f" of at least {lowest:g}"
        raise ConfigError(
            f"value {value!r}, expected {whole}{least}",
            where=f"environment {name}",
            hint="correct it, or unset it",
        )
    return found


def _any_of(values: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(values[:-1]), values[-1])))
