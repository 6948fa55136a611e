"""Drafts replayed from traces: what a schedule verifies, and how much of it was for nothing.

A trace knows, for every place in a text that the model itself wrote, how many drafts in a row are
the model's own tokens, and how confident the draft module was of each. At temperature 0 that is all
that a round depends on, so any schedule can be replayed exactly without the model. Knows numbers
and schedules; no network.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepinfer.scheduler.draft_schedule import Float64, share_drafts

# Traces that run at each place of a batch, at least.
_TURNS = 6


@dataclass(frozen=True)
class Trace:
    """One text. leading: int64 [L], right drafts in a row at each place. rates: float64 [L, n], the
    chance of each draft to be emitted, as `survival_rates` gives it."""

    leading: np.ndarray
    rates: Float64


@dataclass(frozen=True)
class Replayed:
    """num_rounds: sequences in steps, each counted in each step. verified, accepted: drafts."""

    num_rounds: int
    verified: int
    accepted: int

    @property
    def accepted_len(self) -> float:
        """Tokens of a sequence in a step: its accepted drafts and the one that always comes."""
        return 1 + self.accepted / self.num_rounds

    @property
    def rejected(self) -> int:
        """Drafts that were verified for nothing."""
        return self.verified - self.accepted


def replay(
    traces: Sequence[Trace], batch: int, drafts_each: float | None, turns: int = _TURNS
) -> Replayed:
    """Run all traces, `batch` at a time; one that ends makes room for the next.

    The traces come again and again, at least `turns` of them for each place, and the replay ends
    where a step would not be full: at the end only texts that are hard to draft would be
    left, which is no batch that a server has.

    drafts_each: drafts that a step verifies for each sequence on average, shared by confidence;
    None verifies every draft.
    """
    waiting = list(traces)[::-1] * -(-turns * batch // len(traces))
    running: list[tuple[Trace, int]] = []
    num_rounds = verified = accepted = 0
    while len(running) + len(waiting) >= batch:
        while len(running) < batch:
            running.append((waiting.pop(), 0))
        rates = [trace.rates[place] for trace, place in running]
        total = sum(map(len, rates))
        budget = total if drafts_each is None else min(total, round(drafts_each * len(rates)))
        after = []
        for (trace, place), num in zip(running, share_drafts(rates, budget).tolist(), strict=True):
            num_right = min(num, int(trace.leading[place]))
            num_rounds, verified, accepted = num_rounds + 1, verified + num, accepted + num_right
            if place + 1 + num_right < len(trace.leading):
                after.append((trace, place + 1 + num_right))
        running = after
    return Replayed(num_rounds, verified, accepted)


def least_budget(
    traces: Sequence[Trace], batch: int, share: float
) -> tuple[float, Replayed, Replayed]:
    """The smallest budget, in tenths of a draft, that keeps `share` of the accepted length.

    Returns (drafts a sequence, replayed by confidence, replayed in full).
    """
    full = replay(traces, batch, None)
    most = len(traces[0].rates[0])
    # More drafts are never fewer tokens, so the search may halve.
    found: dict[int, Replayed] = {10 * most: full}

    def accepted_len(tenths: int) -> float:
        if tenths not in found:
            found[tenths] = replay(traces, batch, tenths / 10)
        return found[tenths].accepted_len

    tenths = bisect_left(range(10 * most), share * full.accepted_len, key=accepted_len)
    return tenths / 10, found[tenths], full
