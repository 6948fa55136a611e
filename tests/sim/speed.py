"""How long the host's part of a step takes: `python -m tests.sim.speed`.

All requests generate, in contexts of a few thousand tokens; some end and others come in each step.
The device is a constant. Times are medians of milliseconds on one core.
"""

import random
import sys
import time
from statistics import median

import numpy as np

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.layout import blocks_for
from deepinfer.cache.slots import SlotPool
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.plan import make_plan
from deepinfer.scheduler.request import Limits, Request
from deepinfer.scheduler.scheduler import Scheduler

PARTS = ("schedule", "plan", "update")


def measure(num_requests: int, num_steps: int) -> dict[str, float]:
    """Median milliseconds of each part of a step with so many running requests."""
    rng = random.Random(num_requests)
    config = SchedulerConfig(num_requests, 8192, 8192)
    blocks = BlockPool(num_requests * blocks_for(config.max_model_len))
    scheduler = Scheduler(config, blocks, SlotPool(num_requests))
    num_added = 0
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    while len(times["plan"]) < num_steps:
        while sum((scheduler.counters.num_running, scheduler.counters.num_waiting)) < num_requests:
            prompt = [7] * rng.randrange(1, 4096)
            scheduler.add(Request(num_added, prompt, Limits(rng.randrange(1, 4096))))
            num_added += 1
        start = time.perf_counter()
        scheduled = scheduler.schedule()
        assert scheduled is not None
        after_schedule = time.perf_counter()
        plan = make_plan(scheduled)
        after_plan = time.perf_counter()
        token_ids = np.full(len(plan.sample_rows), 7, np.int32)
        bad_rows = np.zeros(len(plan.sample_rows), np.bool_)
        before_update = time.perf_counter()
        scheduler.update(scheduled, token_ids, bad_rows)
        after_update = time.perf_counter()
        if scheduler.counters.num_running >= num_requests - 2:  # not while it fills up
            times["schedule"].append(after_schedule - start)
            times["plan"].append(after_plan - after_schedule)
            times["update"].append(after_update - before_update)
    return {part: 1000 * median(values) for part, values in times.items()}


def main() -> None:
    """Print a line for each number of requests."""
    for num_requests in (1, 64, 256, 1024):
        found = measure(num_requests, num_steps=300)
        parts = ", ".join(f"{part} {found[part]:.3f}" for part in PARTS)
        sys.stdout.write(f"{num_requests:5} requests: {sum(found.values()):.3f} ms ({parts})\n")


if __name__ == "__main__":
    main()
