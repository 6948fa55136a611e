"""How many drafts each request of a step verifies, within the rows and blocks that are left.

Knows requests and numbers. The choice itself is in `draft_schedule`; what may be known of drafts
when it is made is told there.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from deepinfer.config.words import DraftSchedule
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.draft_schedule import (
    Float64,
    choose_budget,
    choose_threshold,
    fill_rates,
    share_drafts,
    verify_above,
)
from deepinfer.scheduler.memory import Memory
from deepinfer.scheduler.request import Request
from deepinfer.scheduler.step_time import StepTime
from deepinfer.step import Int32

# Rounds by which the threshold of a sequence that runs alone is chosen.
_ROUNDS = 32


@dataclass
class VerifyLengths:
    """The schedule of one engine: fixed or confidence.

    config: its bounds of rows and lengths hold for drafts, too. step_time: for confidence; None
    knows no times, so that all are verified.
    """

    config: SchedulerConfig
    schedule: DraftSchedule = "fixed"
    step_time: StepTime | None = None
    _rounds: deque[Float64] = field(default_factory=lambda: deque(maxlen=_ROUNDS))

    @property
    def needs_confidences(self) -> bool:
        """Nothing can be chosen before the drafts are known."""
        return self.schedule == "confidence"

    def choose_drafts(
        self, requests: list[Request], num_rows: list[int], sampled: list[int], memory: Memory
    ) -> list[int]:
        """How many drafts each request of a step verifies, by place; `num_rows` grows by them.

        sampled: places of those that draw a token. Blocks are taken from `memory` as far as any
        are free: where they end, fewer drafts are verified.
        """
        num_drafts = [0] * len(requests)
        drawing = [requests[place] for place in sampled]
        if not any(request.num_drafts for request in drawing):
            return num_drafts
        most = [self._most_drafts(request) for request in drawing]
        lengths = self._choose(drawing, most, sum(num_rows) - len(sampled)).tolist()
        for place, request, length in zip(sampled, drawing, lengths, strict=True):
            if length:
                assert num_rows[place] == 1, "drafts follow the only token that is not computed"
                num_tokens = request.most_tokens
                num_drafts[place] = memory.reach(request, num_tokens + length) - num_tokens
                num_rows[place] += num_drafts[place]
        return num_drafts

    def _most_drafts(self, request: Request) -> int:
        """Those that could still be emitted together with the token after them, even if all that
        are being verified are accepted."""
        num_left = request.tokens_left(self.config.max_model_len) - request.num_verifying
        return max(0, min(request.num_drafts, num_left - 1))

    def _choose(
        self, requests: Sequence[Request], most: Sequence[int], num_other_rows: int
    ) -> Int32:
        """int32 [S], for the S requests that each draw a token.

        most: drafts of each that may be verified. num_other_rows: rows beside one of each request.
        """
        max_rows = self.config.max_num_batched_tokens
        room = max(0, max_rows - len(requests) - num_other_rows)
        if self.schedule == "fixed" or self.step_time is None:
            # One of each before a second of any.
            return share_drafts([_falling(count) for count in most], room)
        rates = [_rates(request, count) for request, count in zip(requests, most, strict=True)]
        time_of_rows = self.step_time.of_rows(len(requests))
        if len(requests) == 1 and not num_other_rows and time_of_rows is not None:
            # What is known of this round's later drafts stays out: only earlier rounds count.
            threshold = choose_threshold(list(self._rounds), time_of_rows)
            if requests[0].rates is not None:
                self._rounds.append(requests[0].rates)
            return np.array([min(room, verify_above(rates[0], threshold))], np.int32)
        before = fill_rates([request.rates_before for request in requests], most)
        budget = choose_budget(before, time_of_rows, max_rows, num_other_rows)
        return share_drafts(rates, min(budget, room))


def _falling(count: int) -> Float64:
    """Rates by which the first draft of everybody comes before anybody's second."""
    falling: Float64 = -np.arange(count, dtype=np.float64)
    return falling


def _rates(request: Request, count: int) -> Float64:
    if not count:
        return np.empty(0)
    assert request.rates is not None, "drafts come with their rates"
    return request.rates[:count]
