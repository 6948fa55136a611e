"""The engine's loop over a fake device: what it asks for, in the order in which it asks.

A step may be planned before the one before it is known. Knows requests and steps; what happens in
the gaps is somebody else's.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from deepinfer.engine.tiering import Tiering
from deepinfer.scheduler.draft_schedule import survival_rates
from deepinfer.scheduler.plan import Scheduled, make_plan
from deepinfer.scheduler.request import Request
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.scheduler.update import Progress
from deepinfer.step import StepPlan
from tests.sim.fake_device import Drawn, FakeDevice


class Interrupted(Exception):
    """Somebody breaks off what runs."""


@dataclass
class Flight:
    """A step that was launched; once they are asked for, its tokens, and drafts behind those."""

    scheduled: Scheduled
    drawn: Callable[[], list[Drawn]] | None = None
    drafted: Sequence[int] = ()
    drafts: Callable[[], list[list[int]]] | None = None


@dataclass
class FakePending:
    """Blobs on their way."""

    result: Callable[[], list[bytes]]


@dataclass
class FakeLane:
    """The lane's calls for tiers, in the order of all others."""

    device: FakeDevice

    def save(self, block_ids: Sequence[int]) -> FakePending:
        """As of `Lane`."""
        return FakePending(self.device.call(partial(self.device.save, block_ids)))

    def load(self, block_ids: Sequence[int], blobs: Sequence[bytes]) -> None:
        """As of `Lane`."""
        self.device.call(partial(self.device.load, block_ids, blobs))


class Watcher:
    """Is told what happens, and does nothing about it."""

    def planned(self, scheduled: Scheduled, plan: StepPlan, before: Scheduled | None) -> None:
        """A step was planned; the tokens of the step `before` are not known yet."""

    def gap(self) -> None:
        """Anybody may come, go, or raise `Interrupted`."""

    def scored(self, request: Request, positions: range) -> None:
        """Scores of prompt rows have come."""

    def news(self, progress: list[Progress]) -> None:
        """A step has brought this; the next may be under way."""


class Loop:
    """Steps of one scheduler. asked, sure: the chance that drafts are asked for where they can be,
    and that a draft is right. bad_id: the row that would draw this token is not finite."""

    def __init__(
        self,
        scheduler: Scheduler,
        device: FakeDevice,
        watcher: Watcher | None = None,
        *,
        num_drafts: int = 0,
        asked: float = 1.0,
        sure: float = 0.8,
        bad_id: int = -1,
        seed: int = 0,
    ) -> None:
        self.scheduler, self.device, self.watcher = scheduler, device, watcher or Watcher()
        self.num_drafts, self.bad_id = num_drafts, bad_id
        self.asked, self.sure = asked, sure
        self.num_steps = self.num_lost = 0
        self._rng = random.Random(seed)
        self._flight: Flight | None = None
        lane: Any = FakeLane(device)
        self.tiering = Tiering(scheduler.memory, lane)

    @property
    def has_work(self) -> bool:
        """There are requests, or a step is under way."""
        return self.scheduler.has_work or self._flight is not None

    def step(self, *, is_ahead: bool = False) -> list[Progress]:
        """Take in one step. is_ahead: the next one is planned before its tokens are known; where
        drafts decide about it, as soon as they are, and before anybody hears of them."""
        try:
            return self._step(is_ahead)
        except Interrupted:
            self._flight = None
            self.num_lost += 1
            self.tiering.lose()
            self.device.lose_step()
            self.scheduler.lose_step()
            return []

    def _step(self, is_ahead: bool) -> list[Progress]:
        flight = self._flight
        if flight is None:
            flight = self._launch(None)
            self._sample(flight)
        if flight is None:
            return []
        is_blind = is_ahead and not self.scheduler.verify_lengths.needs_confidences
        ahead = self._launch(flight.scheduled) if is_blind else None
        self.watcher.gap()
        progress = self._update(flight)
        self.tiering.save()
        self._propose(flight)
        if is_ahead and ahead is None:
            ahead = self._launch(None)
        for request, positions in flight.scheduled.prompt_scores():
            self.watcher.scored(request, positions)
        self.watcher.news(progress)
        self.watcher.gap()
        self._sample(ahead)
        self._flight = ahead
        if ahead is None:
            self.tiering.store()
        return progress

    def _launch(self, before: Scheduled | None) -> Flight | None:
        scheduled = self.scheduler.schedule()
        if scheduled is None:
            return None
        self.num_steps += 1
        self.tiering.load()
        plan = make_plan(scheduled)
        self.watcher.planned(scheduled, plan, before)
        self.device.call(lambda: self.device.launch(plan))
        return Flight(scheduled)

    def _sample(self, flight: Flight | None) -> None:
        """Ask for the tokens of a step, and for drafts behind them for all that may go on."""
        if flight is None:
            return
        scheduled, device = flight.scheduled, self.device
        scheduled.know_drafts()
        flight.drawn = device.call(device.sample)
        limit = self.scheduler.config.max_model_len
        wanted = [
            (number, place)
            for number, place in enumerate(scheduled.sampled)
            if scheduled.is_live(place)
            and scheduled.requests[place].tokens_left(limit) > 1
            and self._rng.random() < self.asked
        ]
        if not self.num_drafts or not wanted:
            return
        numbers, flight.drafted = zip(*wanted, strict=True)
        for place in flight.drafted:
            scheduled.requests[place].expect_drafts(self.num_drafts)
        flight.drafts = device.call(lambda: device.draft(numbers, self.num_drafts, self.sure))

    def _update(self, flight: Flight) -> list[Progress]:
        scheduled = flight.scheduled
        assert flight.drawn is not None
        all_drawn = flight.drawn()
        self.tiering.store()
        for place, drawn in zip(scheduled.sampled, all_drawn, strict=True):
            assert len(drawn.token_ids) == 1 + scheduled.num_drafts[place]
            if scheduled.is_live(place):
                assert scheduled.drafts[place] == drawn.draft_ids, "drafts that never ran"
        token_ids = np.array([one for drawn in all_drawn for one in drawn.token_ids], np.int32)
        return self.scheduler.update(scheduled, token_ids, token_ids == self.bad_id)

    def _propose(self, flight: Flight) -> None:
        if flight.drafts is None:
            return
        for place, ids in zip(flight.drafted, flight.drafts(), strict=True):
            request = flight.scheduled.requests[place]
            if flight.scheduled.is_live(place):
                assert request.draft_ids == [], "drafts of an earlier step"
                request.propose(ids, survival_rates([self._rng.random() for _ in ids]))
