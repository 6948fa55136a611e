"""Drafts from the engine's side: for whom they are proposed, and what became of them.

Knows requests and arrays. They are proposed on the heels of the step that draws the tokens before
them, for all that may go on: whether one of its tokens ends a request, nobody knows yet.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

import numpy as np

from deepinfer.config.words import Accept
from deepinfer.engine.flight import Flight
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.draft_pause import DraftPause
from deepinfer.scheduler.draft_schedule import survival_rates
from deepinfer.scheduler.draft_stats import DraftStats
from deepinfer.scheduler.request import RequestId
from deepinfer.scheduler.step_time import StepTime
from deepinfer.scheduler.update import Progress
from deepinfer.step import DraftPlan, Drafts, Float32
from deepinfer.worker.lane import Lane

# By request: drafts that were proposed for a step, and those of them that it verified.
Counts = dict[RequestId, tuple[int, int]]


@dataclass
class Drafting:
    """What an engine keeps about drafts.

    num_drafts: of each block; 0 drafts nothing. accept: see `is_rejection`. step_time: told what
    steps take; None where nobody asks: then nothing is decided by confidences. pause: says when
    drafts would cost more than they bring; None always drafts.
    """

    num_drafts: int = 0
    accept: Accept = "auto"
    step_time: StepTime | None = None
    pause: DraftPause | None = None
    stats: DraftStats = field(default_factory=DraftStats)
    # Of the drafts that the next step may verify, by request.
    _confidences: dict[RequestId, Float32] = field(default_factory=dict)

    def is_rejection(self, has_seed: bool) -> bool:
        """How a request's drafts are accepted: "auto" gives one answer for one seed."""
        return self.accept == "rejection" or (self.accept == "auto" and not has_seed)

    def ask(self, flight: Flight, lane: Lane, config: SchedulerConfig) -> None:
        """Drafts for all that may go on after the step, except where at most one token is left."""
        if not self.num_drafts:
            return
        scheduled = flight.scheduled
        wanted = [
            (number, place)
            for number, place in enumerate(scheduled.sampled)
            if scheduled.is_live(place)
            and scheduled.requests[place].tokens_left(config.max_model_len) > 1
        ]
        if not wanted:
            return
        if self.pause is not None:
            rates = [scheduled.requests[place].rates for _, place in wanted]
            if not self.pause.wants(rates, config.max_num_batched_tokens):
                return
        numbers, flight.drafted = zip(*wanted, strict=True)
        for place in flight.drafted:
            scheduled.requests[place].expect_drafts(self.num_drafts)
        flight.drafts = lane.draft(DraftPlan(np.array(numbers, np.int32), self.num_drafts))

    def take(self, flight: Flight, drafts: Drafts | None) -> None:
        """Hand the drafts behind a step to those that still run."""
        self._confidences = {}
        self._note_time(flight)
        if drafts is None:
            return
        rates = survival_rates(drafts.confidence)
        for place, token_ids, of_draft, confidence in zip(
            flight.drafted, drafts.token_ids.tolist(), rates, drafts.confidence, strict=True
        ):
            request = flight.scheduled.requests[place]
            if flight.scheduled.is_live(place):
                request.propose(token_ids, of_draft)
                self._confidences[request.request_id] = confidence
        self.stats.drafted(len(flight.drafted) * self.num_drafts)

    def after(self, flight: Flight, progress: Sequence[Progress]) -> Counts:
        """Take note of a step: how many drafts each request had that drew a token."""
        scheduled = flight.scheduled
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
        return counts

    def _note_time(self, flight: Flight) -> None:
        scheduled = flight.scheduled
        num_sequences, num_rows = len(scheduled.requests), sum(scheduled.num_rows)
        # Steps with prompts take as long as their chunks: nothing to learn from.
        if self.step_time is not None and num_rows == num_sequences + sum(scheduled.num_drafts):
            draft_ms = math.nan if flight.drafts is None else 1000 * flight.draft_s
            self.step_time.record(num_sequences, num_rows, 1000 * flight.forward_s, draft_ms)
