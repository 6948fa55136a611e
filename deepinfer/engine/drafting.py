"""Drafts from the engine's side: for whom they are proposed, and what became of them.

Knows requests and arrays. They are proposed at the start of the step that verifies them: by then
the tokens before them have left the engine, so whoever was ended by one of them needs no drafts,
and an interrupt meanwhile loses nothing.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

import numpy as np

from deepinfer.config.words import Accept
from deepinfer.scheduler.draft_schedule import survival_rates
from deepinfer.scheduler.draft_stats import DraftStats
from deepinfer.scheduler.plan import Scheduled
from deepinfer.scheduler.request import Request, RequestId, State
from deepinfer.scheduler.step_time import StepTime
from deepinfer.scheduler.update import Progress
from deepinfer.step import DraftPlan, Float32
from deepinfer.worker.worker import Worker

# By request: drafts that were proposed for a step, and those of them that it verified.
Counts = dict[RequestId, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A token that may be followed by drafts: of which request, and where the last step has it."""

    request: Request
    place: int
    row: int


@dataclass
class Drafting:
    """What an engine keeps about drafts.

    num_drafts: of each block; 0 drafts nothing. accept: see `is_rejection`. step_time: told what
    steps take; None where nobody asks.
    """

    num_drafts: int = 0
    accept: Accept = "auto"
    step_time: StepTime | None = None
    stats: DraftStats = field(default_factory=DraftStats)
    _anchors: list[_Anchor] = field(default_factory=list)
    # Of the drafts that the next step may verify, by request.
    _confidences: dict[RequestId, Float32] = field(default_factory=dict)
    # Of the last step, if it only generated: sequences, rows, milliseconds.
    _forward: tuple[int, int, float] | None = None

    def is_rejection(self, has_seed: bool) -> bool:
        """How a request's drafts are accepted: "auto" gives one answer for one seed."""
        return self.accept == "rejection" or (self.accept == "auto" and not has_seed)

    def propose(self, worker: Worker, max_model_len: int) -> None:
        """Drafts for all that go on after the last step, except where one token is left."""
        anchors, self._anchors = self._anchors, []
        self._confidences = {}
        wanted = [
            anchor
            for anchor in anchors
            if anchor.request.state is State.RUNNING
            and anchor.request.tokens_left(max_model_len) > 1
        ]
        start = time.perf_counter()
        if wanted:
            plan = DraftPlan(
                sequences=np.array([anchor.place for anchor in wanted], np.int32),
                rows=np.array([anchor.row for anchor in wanted], np.int32),
                num_drafts=self.num_drafts,
            )
            drafts = worker.draft(plan)
            rates = survival_rates(drafts.confidence)
            for anchor, token_ids, of_draft, confidence in zip(
                wanted, drafts.token_ids.tolist(), rates, drafts.confidence, strict=True
            ):
                anchor.request.propose(token_ids, of_draft)
                self._confidences[anchor.request.request_id] = confidence
            self.stats.drafted(len(wanted) * self.num_drafts)
        if self._forward is not None and self.step_time is not None:
            num_sequences, num_rows, forward_ms = self._forward
            self.step_time.record(
                num_sequences, num_rows, forward_ms, 1000 * (time.perf_counter() - start)
            )
        self._forward = None

    def after(self, scheduled: Scheduled, progress: Sequence[Progress], forward_s: float) -> Counts:
        """Take note of a step: how many drafts each request had that drew a token.

        forward_s: time of its rows and of the choice of its tokens.
        """
        counts: Counts = {}
        if progress:
            self.stats.step()
        of_request = {
            request.request_id: list(news)
            for request, news in groupby(progress, attrgetter("request"))
        }
        for place in scheduled.sampled:
            request, draft_ids = scheduled.requests[place], scheduled.drafts[place]
            news = of_request.get(request.request_id)
            if news is None:
                continue  # aborted meanwhile
            confidence = self._confidences.get(request.request_id)
            if confidence is not None:
                counts[request.request_id] = (len(confidence), len(draft_ids))
            self.stats.round(
                confidence,
                len(draft_ids),
                sum(one.is_draft for one in news),
                sum(one.token_id is not None for one in news),
            )
            if self.num_drafts and news[-1].finish_reason is None:
                self._anchors.append(_Anchor(request, place, news[-1].row))
        # Steps with prompts take as long as their chunks: nothing to learn from.
        num_extra = sum(map(len, scheduled.drafts))
        num_sequences, num_rows = len(scheduled.requests), sum(scheduled.num_rows)
        if num_rows == num_sequences + num_extra:
            self._forward = (num_sequences, num_rows, 1000 * forward_s)
        return counts
