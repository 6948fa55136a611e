"""A scheduler at hand: makes one, and plays the device for it."""

from collections.abc import Callable

import numpy as np

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.slots import SlotPool
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.request import Request
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.scheduler.update import Progress

# Every step's rows by request id, as {"A": 1, "B": 3}.
Rows = dict[int | str, int]


def make_scheduler(
    num_seqs: int = 4,
    num_rows: int = 16,
    num_blocks: int = 32,
    max_model_len: int = 1024,
    max_catching_up: int = 4,
) -> Scheduler:
    config = SchedulerConfig(num_seqs, num_rows, max_model_len, max_catching_up)
    return Scheduler(config, BlockPool(num_blocks), SlotPool(num_seqs))


def add(scheduler: Scheduler, request_id: str, prompt_len: int, max_tokens: int = 9999) -> Request:
    request = Request(request_id, [7] * prompt_len, Limits(max_tokens))
    scheduler.add(request)
    return request


def step(
    scheduler: Scheduler,
    token_of: Callable[[Request], int] = lambda request: 7,
    bad: str | None = None,
) -> tuple[Rows, list[Progress]]:
    """One step: the rows that were run, and what came of it."""
    scheduled = scheduler.schedule()
    assert scheduled is not None
    scheduled.know_drafts()
    sampled = [scheduled.requests[place] for place in scheduled.sampled]
    token_ids = np.array([token_of(request) for request in sampled], np.int32)
    bad_rows = np.array([request.request_id == bad for request in sampled], np.bool_)
    ids = [request.request_id for request in scheduled.requests]
    rows = dict(zip(ids, scheduled.num_rows, strict=True))
    return rows, scheduler.update(scheduled, token_ids, bad_rows)
