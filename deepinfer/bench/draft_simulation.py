"""What verifying by confidence brings, simulated in the shape of the published measurement.

Published for the released model: with 60 sequences a rank 4 to 7 % more tokens a second than
verifying all 5 drafts, with 16 sequences 1.5 % fewer; 3.2 to 4.4 drafts verified instead of 5, and
3.20 tokens a step of a sequence instead of 3.29. Here the scheduler's own functions decide about
drafts whose fate is drawn. No model and no device: acceptance, confidences and times are simulated.

Acceptance. The log-odds that a draft is accepted, given those before it, are a sum of normal parts:
of the sequence, which stays; of the round; of the draft; and one that the confidence head does not
see. Its confidence is the mean over what it does not see: right on average, wrong in each case. The
mean of the log-odds is set so that 5 drafts give the published 3.29 tokens, their spread so that
3.20 are left when the likeliest 3.8 drafts (the middle of 3.2 and 4.4) are verified.

Times. A forward on one of 8 H200 ranks with 48 experts in each layer, by two curves. The scheduler
is told the curve alone. Contexts cost more than it says, every step varies, and one in 500 takes
ten times as long; it sees those times and corrects itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from deepinfer.scheduler.draft_schedule import (
    Float64,
    choose_budget,
    fill_rates,
    share_drafts,
    survival_rates,
)
from deepinfer.scheduler.step_time import StepTime, curve_sizes
from deepinfer.step import Int32

NUM_SEQUENCES = (60, 16)
NUM_DRAFTS = 5
_PUBLISHED = {60: "+4 to +7 %", 16: "-1.5 %"}
_SEEDS = range(5)

# Rows -> ms of a forward, a context of 131,072 tokens.
CURVES = {
    # Measured times of its kernels, summed. Of 26.9 ms at 256 rows: experts (FP4 weights, FP8 rows)
    # 11.3, attention projections (bfloat16) 5.3, sparse attention 3.3, norms and hyper-connections
    # 2.9, selection 1.6, launches 1.0, shared expert 1.0, head 0.5.
    "kernels as measured": dict(
        zip(
            (1, 8, 32, 64, 128, 256, 512, 1024),
            (7.5, 12.6, 16.7, 17.8, 20.3, 26.9, 41.1, 70.7),
            strict=True,
        )
    ),
    # What reading the bytes and computing the products takes at the least.
    "limits of the hardware": {1: 3.2, 32: 11.6, 128: 13.2, 512: 22.5, 1024: 37.8},
}
_CONTEXT_MS = 0.01  # for each row: what the curve does not know
_NOISE = 0.02
_STALL_CHANCE, _STALL = 0.002, 10.0
# What the schedule itself takes on the host, as if nothing hid it; as measured: a step, a sequence.
_CHOICE_MS, _CHOICE_SEQUENCE_MS = 0.05, 0.002
_END_CHANCE = 1 / 100  # that a new sequence takes the place of one, each step

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(8)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Log-odds of acceptance: mean, standard deviations of the parts, and a fault of the head.

    sharpness: the head says sharpness * (the log-odds it should say); above 1 it is too sure.
    """

    mean: float = 1.473
    of_sequence: float = 0.6
    of_round: float = 1.0
    of_draft: float = 1.1
    unseen: float = 1.0
    sharpness: float = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Per sequence and step: drafts verified, tokens emitted. And tokens per second of all."""

    verified: float
    emitted: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class _Round:
    """A round of drafts: survival rates float64 [S, n]; int32 [S], how many would be accepted."""

    rates: Float64
    num_good: Int32


def simulate(
    acceptance: Acceptance,
    num_sequences: int,
    fixed: int | None,
    *,
    forward_ms: Mapping[int, float],
    num_steps: int,
    seed: int,
) -> Outcome:
    """So many steps, each verifying `fixed` drafts of every sequence, or by confidence if None.

    forward_ms: rows -> ms, a line between them. With one seed, drafts, confidences and noise of the
    times are the same however many are verified: differences are those of the schedule.
    """
    rng = np.random.default_rng(seed)
    max_rows = num_sequences * (1 + NUM_DRAFTS)
    curve = {size: _at(forward_ms, size) for size in curve_sizes(max_rows)}
    step_time = StepTime(curve, graphs=True)
    choice_ms = _CHOICE_MS + _CHOICE_SEQUENCE_MS * num_sequences if fixed is None else 0.0
    of_sequence = rng.standard_normal(num_sequences)
    rates_before: list[Float64 | None] = [None] * num_sequences
    last = _draft(acceptance, of_sequence, rng)
    verified = emitted = milliseconds = 0.0
    for _ in range(num_steps):
        if fixed is None:
            rates = fill_rates(rates_before, [NUM_DRAFTS] * num_sequences)
            budget = choose_budget(rates, step_time.of_rows(num_sequences), max_rows)
            shares = share_drafts(last.rates, budget)
        else:
            shares = np.full(num_sequences, fixed, np.int32)
        num_rows = num_sequences + int(shares.sum())
        forward, after = _times(curve, num_sequences, num_rows, rng)
        step_time.record(num_sequences, num_rows, forward, after)
        milliseconds += forward + after + choice_ms
        verified += float(shares.sum())
        emitted += num_sequences + float(np.minimum(shares, last.num_good).sum())
        ended = rng.random(num_sequences) < _END_CHANCE
        of_sequence = np.where(ended, rng.standard_normal(num_sequences), of_sequence)
        rates_before = [None if new else row for new, row in zip(ended, last.rates, strict=True)]
        last = _draft(acceptance, of_sequence, rng)
    total = num_steps * num_sequences
    return Outcome(verified / total, emitted / total, 1000 * emitted / milliseconds)


def _draft(acceptance: Acceptance, of_sequence: Float64, rng: np.random.Generator) -> _Round:
    """The next drafts of every sequence, their rates and their fate."""
    a, shape = acceptance, (len(of_sequence), NUM_DRAFTS)
    seen = a.mean + a.of_sequence * of_sequence[:, None]
    seen = seen + a.of_round * rng.standard_normal((len(of_sequence), 1))
    seen = seen + a.of_draft * rng.standard_normal(shape)
    chance = _probability(seen + a.unseen * rng.standard_normal(shape))
    good = rng.random(shape) < chance
    known = _probability(seen[..., None] + a.unseen * _NODES) @ (_WEIGHTS / _WEIGHTS.sum())
    said = _probability(a.sharpness * np.log(known / (1 - known)))
    return _Round(survival_rates(said), np.cumprod(good, axis=1).sum(axis=1).astype(np.int32))


def _probability(log_odds: Float64) -> Float64:
    result: Float64 = 1 / (1 + np.exp(-log_odds))
    return result


def _at(forward_ms: Mapping[int, float], num_rows: int) -> float:
    return float(np.interp(num_rows, list(forward_ms), list(forward_ms.values())))


def _times(
    curve: Mapping[int, float], num_sequences: int, num_rows: int, rng: np.random.Generator
) -> tuple[float, float]:
    """True ms of the forward, and of choosing tokens and drafting, which has its own 3 layers.

    The forward is that of the smallest size of the curve that holds the rows.
    """
    run_rows = min(size for size in curve if size >= num_rows)
    noise = np.exp(_NOISE * rng.standard_normal(2))
    noise[0] *= _STALL if rng.random() < _STALL_CHANCE else 1.0
    forward = curve[run_rows] + _CONTEXT_MS * run_rows
    return float(forward * noise[0]), float((1.6 + 0.027 * num_sequences) * noise[1])


def simulation_lines(num_steps: int = 500) -> Iterator[str]:
    """The report: every fixed number of drafts, then by confidence; gains are over 5 fixed."""
    yield (
        f"{len(_SEEDS)} times {num_steps} simulated steps; verified drafts and tokens are those of "
        "a sequence in a step"
    )
    for curve in CURVES:
        yield f"time of a step: {curve}"
        heads = f"{'verified':>8}{'tokens':>8}{'tokens/s':>10}   gain"
        yield f"{'sequences':>9}  {'schedule':27}{heads}"
        for num_sequences in NUM_SEQUENCES:
            yield from _gains(curve, num_sequences, num_steps)
            yield f"{num_sequences:9,}  published: {_PUBLISHED[num_sequences]}"


def _gains(curve: str, num_sequences: int, num_steps: int) -> Iterator[str]:
    def outcomes(fixed: int | None, sharpness: float = 1.0) -> list[Outcome]:
        return [
            simulate(
                Acceptance(sharpness=sharpness),
                num_sequences,
                fixed,
                forward_ms=CURVES[curve],
                num_steps=num_steps,
                seed=seed,
            )
            for seed in _SEEDS
        ]

    base = outcomes(NUM_DRAFTS)
    for fixed in range(NUM_DRAFTS):
        yield _line(num_sequences, f"fixed {fixed}", outcomes(fixed), base)
    yield _line(num_sequences, f"fixed {NUM_DRAFTS}", base, base)
    for name, sharpness in (("", 1.0), (", head too sure", 1.5), (", head too unsure", 0.67)):
        yield _line(num_sequences, f"confidence{name}", outcomes(None, sharpness), base)


def _line(num_sequences: int, name: str, found: list[Outcome], base: list[Outcome]) -> str:
    gains = [
        100 * (one.tokens_per_s / other.tokens_per_s - 1)
        for one, other in zip(found, base, strict=True)
    ]
    verified = fmean(one.verified for one in found)
    emitted = fmean(one.emitted for one in found)
    tokens_per_s = fmean(one.tokens_per_s for one in found)
    return (
        f"{num_sequences:9,}  {name:27}{verified:>8.2f}{emitted:>8.2f}{tokens_per_s:>10,.0f}   "
        f"{fmean(gains):+.1f} % ({min(gains):+.1f} to {max(gains):+.1f})"
    )
