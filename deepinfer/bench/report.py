"""What was run, where and how: the lines around the figures. Knows results; measures nothing."""

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from deepinfer.bench.offline import OfflineResult, StepGroup
from deepinfer.scheduler.draft_stats import DraftStats


@dataclass(frozen=True, slots=True)
class Ground:
    """What the figures stand on. load: of the machine over the last minute, at the start."""

    model: str
    num_parameters: int
    dtype: str
    num_threads: int
    processor: str
    num_cpus: int
    vector_unit: str
    load: float
    torch: str

    @property
    def line(self) -> str:
        """All of it."""
        return (
            f"{self.model}: {self.num_parameters / 1e6:.1f} M parameters, {self.dtype}, "
            f"{self.num_threads} of {self.num_cpus} CPUs ({self.processor}, {self.vector_unit}), "
            f"load {self.load:.1f}, torch {self.torch}"
        )


def survey_ground(model: str, num_parameters: int, dtype: str) -> Ground:
    """The facts, as they are now."""
    return Ground(
        model=model,
        num_parameters=num_parameters,
        dtype=dtype,
        num_threads=torch.get_num_threads(),
        processor=_processor(),
        num_cpus=os.cpu_count() or 1,
        vector_unit=torch.backends.cpu.get_cpu_capability(),
        load=os.getloadavg()[0],
        torch=torch.__version__,
    )


def _processor() -> str:
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        facts = []
    names = [fact.split(":", 1)[1].strip() for fact in facts if fact.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def offline_lines(ground: Ground, result: OfflineResult) -> Iterator[str]:
    """The report of a throughput run."""
    w, output_tokens = result.workload, sum(result.delivered)
    num_ended = sum(bool(reason) for reason in result.reasons)
    yield ground.line
    yield f"asked      {w.batch} requests of {w.input_len:,} prompt and {w.output_len:,} new tokens"
    yield (
        f"delivered  {num_ended} requests, {result.prompt_tokens:,} prompt tokens, "
        f"{output_tokens:,} new ones ({min(result.delivered)} to {max(result.delivered)} each)"
    )
    yield (
        f"sampling   temperature {w.temperature:g}, top_p {w.top_p:g}, top_k {w.top_k}, "
        f"ignore_eos {w.ignore_eos}, seed {w.seed}"
    )
    yield f"state      {'cold' if w.cold else 'warm: one request before, of another prompt'}"
    share = result.cached_tokens / result.prompt_tokens
    yield f"cached     {result.cached_tokens:,} prompt tokens ({100 * share:.1f} %)"
    yield f"preempted  {result.num_preemptions} times"
    yield from draft_lines(result.drafts)
    yield f"{'steps':10}{'number':>8}{'median ms':>11}{'prompt rows':>13}{'decode rows':>13}"
    yield _group_line("prompt", result.prompt_steps)
    yield _group_line("mixed", result.mixed_steps)
    yield _group_line("decode", result.decode_steps)
    yield f"prefill    {result.prefill_tokens_per_s:,.1f} tokens/s"
    yield f"decode     {result.decode_tokens_per_s:,.1f} tokens/s"
    if result.first_token_s:
        mean = sum(result.first_token_s) / len(result.first_token_s)
        yield f"first token after {mean:.2f} s on average; all done after {result.wall_s:.2f} s"
    for fault in result.faults:
        yield f"fault: {fault}"


def offline_record(ground: Ground, result: OfflineResult) -> dict[str, Any]:
    """The same for a program to read."""
    return {
        "ground": asdict(ground),
        **asdict(result),
        "drafts": draft_record(result.drafts),
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "prefill_tokens_per_s": result.prefill_tokens_per_s,
        "decode_tokens_per_s": result.decode_tokens_per_s,
    }


def draft_lines(stats: DraftStats) -> Iterator[str]:
    """What became of drafts, if there were any."""
    if not stats.num_drafted:
        return
    yield (
        f"drafts     {stats.num_drafted:,} proposed, {stats.num_verified:,} verified, "
        f"{stats.num_accepted:,} accepted; {stats.accepted_len:.2f} tokens of a request in a step"
    )
    by_slot = zip(stats.accepted_by_slot, stats.verified_by_slot, strict=True)
    shares = ", ".join(f"{100 * accepted / verified:.0f} %" for accepted, verified in by_slot)
    yield f"accepted   of those verified, by place in the block: {shares}"
    pairs = (f"{said:.2f}: {true:.2f} ({count:,})" for said, true, count in stats.calibration())
    yield f"confidence said: accepted (drafts)  {', '.join(pairs)}"


def draft_record(stats: DraftStats) -> dict[str, Any]:
    """The same for a program to read."""
    return {
        "num_drafted": stats.num_drafted,
        "num_verified": stats.num_verified,
        "num_accepted": stats.num_accepted,
        "accepted_len": stats.accepted_len,
        "tokens_per_step": stats.num_tokens / stats.num_steps if stats.num_steps else 0.0,
        "verified_by_slot": stats.verified_by_slot.tolist(),
        "accepted_by_slot": stats.accepted_by_slot.tolist(),
        "calibration": stats.calibration(),
    }


def _group_line(name: str, group: StepGroup) -> str:
    return (
        f"{name:10}{group.num_steps:>8}{group.median_ms:>11.1f}{group.prompt_rows:>13,}"
        f"{group.decode_rows:>13,}"
    )
