"""How long the host's part of a step takes, with many requests and no device.

All requests generate, in contexts of a few thousand tokens; some end and others come in each step.
The device is a constant.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.layout import blocks_for
from deepinfer.cache.slots import SlotPool
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.plan import make_plan
from deepinfer.scheduler.request import Request
from deepinfer.scheduler.scheduler import Scheduler

NUM_REQUESTS = (1, 64, 256, 1024)
_LONGEST = 8192  # tokens of a request
_STEP_ROWS = 8192
_TOKEN_ID = 7


@dataclass(frozen=True, slots=True)
class HostTime:
    """Medians of milliseconds a step."""

    num_requests: int
    schedule_ms: float
    plan_ms: float
    update_ms: float

    @property
    def total_ms(self) -> float:
        """Schedule, plan and update together."""
        return self.schedule_ms + self.plan_ms + self.update_ms


def bench_host(num_requests: int, num_steps: int) -> HostTime:
    """Time so many steps with so many running requests."""
    rng = random.Random(num_requests)
    config = SchedulerConfig(num_requests, _STEP_ROWS, _LONGEST)
    blocks = BlockPool(num_requests * blocks_for(config.max_model_len))
    scheduler = Scheduler(config, blocks, SlotPool(num_requests))
    num_added = 0
    times: list[tuple[float, float, float]] = []
    while len(times) < num_steps:
        while scheduler.counters.num_running + scheduler.counters.num_waiting < num_requests:
            prompt = [_TOKEN_ID] * rng.randrange(1, _LONGEST // 2)
            scheduler.add(Request(num_added, prompt, Limits(rng.randrange(1, _LONGEST // 2))))
            num_added += 1
        spent = _step(scheduler)
        if scheduler.counters.num_running >= num_requests - 2:  # not while it fills up
            times.append(spent)
    schedule, plan, update = (1000 * median(part) for part in zip(*times, strict=True))
    return HostTime(num_requests, schedule, plan, update)


def _step(scheduler: Scheduler) -> tuple[float, float, float]:
    """Seconds of schedule, plan and update."""
    start = time.perf_counter()
    scheduled = scheduler.schedule()
    assert scheduled is not None, "there are requests"
    after_schedule = time.perf_counter()
    plan = make_plan(scheduled)
    after_plan = time.perf_counter()
    token_ids = np.full(len(plan.sample_rows), _TOKEN_ID, np.int32)
    bad_rows = np.zeros(len(plan.sample_rows), np.bool_)
    before_update = time.perf_counter()
    scheduled.know_drafts()
    scheduler.update(scheduled, token_ids, bad_rows)
    after_update = time.perf_counter()
    return after_schedule - start, after_plan - after_schedule, after_update - before_update


def host_lines(times: Iterator[HostTime]) -> Iterator[str]:
    """A table, line by line as the times come in."""
    yield f"{'requests':>9}{'schedule ms':>13}{'plan ms':>9}{'update ms':>11}{'all ms':>8}"
    for t in times:
        yield (
            f"{t.num_requests:>9,}{t.schedule_ms:>13.3f}{t.plan_ms:>9.3f}{t.update_ms:>11.3f}"
            f"{t.total_ms:>8.3f}"
        )
