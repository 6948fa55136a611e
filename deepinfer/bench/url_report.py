"""`deepinfer bench --url`: the lines of its report. Knows results; measures nothing."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from deepinfer.bench.client import Target
from deepinfer.bench.load import UrlResult, UrlWorkload, bench_url


def main(
    target: Target,
    workload: UrlWorkload,
    pid: int | None,
    *,
    as_json: bool,
    show: Callable[[str], None],
) -> int:
    """Measure and report. 1 if a request failed or delivered less than asked.

    Raises ConfigError.
    """
    result = asyncio.run(bench_url(target, workload, pid))
    if as_json:
        show(json.dumps(url_record(target, result)))
    else:
        for line in url_lines(target, result):
            show(line)
    return 1 if result.faults else 0


def url_lines(target: Target, result: UrlResult) -> Iterator[str]:
    """The report."""
    w, answers = result.workload, result.answers
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    yield f"{result.model} at {target.host}:{target.port}{target.path}"
    yield (
        f"asked      {w.requests:,} requests, {w.streams} at once, of {w.input_words:,} words and "
        f"{w.output_len:,} new tokens"
    )
    yield (
        f"delivered  {sum(answer.error is None for answer in answers):,} answers, "
        f"{prompt_tokens:,} prompt tokens, {result.output_tokens:,} new ones in "
        f"{result.wall_s:.2f} s"
    )
    yield (
        f"sampling   temperature {w.temperature:g}, top_p {w.top_p:g}, top_k {w.top_k}, "
        f"ignore_eos True, seed {w.seed}"
    )
    yield f"cached     {cached:,} prompt tokens ({100 * _over(cached, prompt_tokens):.1f} %)"
    if result.server.get("deepinfer_drafts_drafted_total", 0):
        kept = result.server["deepinfer_drafts_accepted_total"]
        rounds = result.server["deepinfer_draft_rounds_total"]
        yield f"drafts     {_over(kept, rounds):.2f} accepted for each sequence in each step"
    yield f"{'ms':16}{'p50':>9}{'p90':>9}{'p99':>9}{'most':>9}"
    yield _times_line("first token", result.first_token_s)
    yield _times_line("between pieces", result.between_s)
    yield f"speed      {_over(result.output_tokens, result.wall_s):,.1f} tokens/s"
    if result.cpu_s is not None:
        per_token = 1000 * _over(result.cpu_s, result.output_tokens)
        yield f"processor  {result.cpu_s:.2f} s of the server's process: {per_token:.3f} ms a token"
    for fault, count in result.faults.most_common():
        yield f"fault: {fault} ({count} times)"


def url_record(target: Target, result: UrlResult) -> dict[str, Any]:
    """The same for a program to read."""
    return {
        "url": f"{target.host}:{target.port}{target.path}",
        "model": result.model,
        "workload": asdict(result.workload),
        "wall_s": result.wall_s,
        "prompt_tokens": sum(answer.prompt_tokens for answer in result.answers),
        "cached_tokens": sum(answer.cached_tokens for answer in result.answers),
        "output_tokens": result.output_tokens,
        "first_token_s": _percentiles(result.first_token_s),
        "between_pieces_s": _percentiles(result.between_s),
        "tokens_per_s": _over(result.output_tokens, result.wall_s),
        "cpu_s": result.cpu_s,
        "faults": dict(result.faults),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{share}": percentile(values, share / 100) for share in (50, 90, 99, 100)}


def _times_line(name: str, values: Sequence[float]) -> str:
    cells = "".join(f"{1000 * value:9.1f}" for value in _percentiles(values).values())
    return f"{name:16}{cells}"


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
