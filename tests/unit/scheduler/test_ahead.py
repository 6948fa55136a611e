"""A step that is planned before the tokens of the one before it are known: small cases by hand."""

import numpy as np
import pytest

from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.plan import Scheduled, make_plan
from deepinfer.scheduler.request import Request
from deepinfer.scheduler.scheduler import Scheduler
from tests.unit.scheduler.desk import add, make_scheduler


def next_step(scheduler: Scheduler) -> Scheduled:
    scheduled = scheduler.schedule()
    assert scheduled is not None
    return scheduled


def ids(requests: list[Request]) -> list[int | str]:
    return [request.request_id for request in requests]


def test_a_step_ahead() -> None:
    """K02, C15: a step that follows another is planned with tokens or positions that nobody knows
    yet, follows somebody else, or verifies other drafts than its rows have."""
    scheduler = make_scheduler(num_rows=40)
    long = Request("L", range(200, 260), Limits(9))
    short = Request("S", [10, 11], Limits(9))
    for request in (long, short):
        scheduler.add(request)
    first = next_step(scheduler)
    assert make_plan(first).follows.shape == (0,)
    first.know_drafts()
    short.expect_drafts(2)
    second = next_step(scheduler)
    plan = make_plan(second)
    # "S" was the second of two, but the only one that drew a token.
    assert plan.follows.tolist() == [-1, 0]
    assert plan.follows.dtype == np.int32
    assert plan.num_computed.tolist() == [38, 2]
    assert plan.num_rows.tolist() == [22, 3]
    assert plan.token_ids.tolist() == [*range(238, 260), 0, 0, 0]
    assert plan.sample_rows.tolist() == [21, 22, 23, 24]
    scheduler.update(first, np.array([50], np.int32), np.zeros(1, np.bool_))
    short.propose([51, 52, 53], None)
    second.know_drafts()
    assert second.drafts == [[], [51, 52]]
    scheduler.update(second, np.array([40, 51, 7, 8], np.int32), np.zeros(4, np.bool_))
    assert (short.tokens, short.num_computed) == ([10, 11, 50, 51, 7], 4)
    plan = make_plan(next_step(scheduler))
    assert plan.follows.shape == (0,)
    assert plan.num_computed.tolist() == [60, 4]
    assert plan.token_ids.tolist() == [40, 7]


def test_drafts_of_nobody() -> None:
    """K02: a request ended after its drafts were planned, and the step has fewer rows than ran."""
    scheduler = make_scheduler()
    for name in ("A", "B"):
        scheduler.add(Request(name, [10], Limits(9)))
    first = next_step(scheduler)
    first.know_drafts()
    for request in scheduler.running:
        request.expect_drafts(3)
    second = next_step(scheduler)
    scheduler.update(first, np.array([50, 60], np.int32), np.zeros(2, np.bool_))
    scheduler.abort("A")
    (other,) = scheduler.running
    other.propose([61, 62, 63], None)
    second.know_drafts()
    assert [len(ids) for ids in second.drafts] == second.num_drafts == [3, 3]
    assert second.drafts[1] == [61, 62, 63]
    assert second.num_drawn == 8
    drawn = np.array([1, 2, 3, 4, 61, 62, 63, 64], np.int32)
    progress = scheduler.update(second, drawn, np.zeros(8, np.bool_))
    assert [one.token_id for one in progress] == [61, 62, 63, 64]
    assert [one.row for one in progress] == [4, 5, 6, 7]


def test_updates_come_in_the_order_of_the_steps() -> None:
    """K03: a step is built when the tokens of the last but one are not there; those of a step are
    taken in twice, or before those of the step before it; its drafts change after it was told."""
    scheduler = make_scheduler()
    request = add(scheduler, "A", 1)
    first, second = next_step(scheduler), next_step(scheduler)
    with pytest.raises(AssertionError, match="have not been updated"):
        scheduler.schedule()
    one_token = np.array([1], np.int32), np.zeros(1, np.bool_)
    with pytest.raises(AssertionError, match="not the oldest step"):
        scheduler.update(second, *one_token)
    assert (request.num_output, request.num_drawing) == (0, 2)
    for number, scheduled in enumerate((first, second), 1):
        scheduled.know_drafts()
        with pytest.raises(AssertionError, match="known already"):
            scheduled.know_drafts()
        assert len(scheduler.update(scheduled, *one_token)) == 1
        assert request.num_output == number
    with pytest.raises(AssertionError, match="no step is under way"):
        scheduler.update(second, *one_token)


def test_the_last_token_takes_no_memory() -> None:
    """K08: who waits for its last token gets a block for it, or somebody is preempted for that."""
    scheduler = make_scheduler(num_rows=300, num_blocks=2, max_model_len=256)
    add(scheduler, "old", 127, max_tokens=2)
    young = add(scheduler, "young", 1)
    flights = [scheduler.schedule(), scheduler.schedule()]
    for number in range(3):
        scheduled = flights.pop(0)
        assert scheduled is not None
        assert ids(scheduled.requests) == (["old", "young"] if number < 2 else ["young"])
        scheduled.know_drafts()
        token_ids = np.full(len(scheduled.sampled), 7, np.int32)
        assert len(scheduler.update(scheduled, token_ids, token_ids < 0)) == len(token_ids)
        flights.append(scheduler.schedule())
    assert scheduler.counters.num_preemptions == 0
    assert len(young.tokens) == 4
    assert ids(scheduler.running) == ["young"]


def test_an_end_that_nobody_foresaw() -> None:
    """K01, K04: a request that ended while it has rows in a step gets a token after its end, or
    keeps its memory until then."""
    scheduler = make_scheduler()
    ended = Request("A", [1], Limits(5, eos_ids=frozenset({9})))
    scheduler.add(ended)
    add(scheduler, "B", 1)
    first, second = next_step(scheduler), next_step(scheduler)
    free = scheduler.counters
    tokens = np.array([9, 9], np.int32), np.zeros(2, np.bool_)
    first.know_drafts()
    progress = scheduler.update(first, *tokens)
    assert [p.finish_reason for p in progress] == ["stop", None]
    assert scheduler.counters.num_free_slots == free.num_free_slots + 1
    assert scheduler.counters.num_free_blocks == free.num_free_blocks + 1
    second.know_drafts()
    assert ids([p.request for p in scheduler.update(second, *tokens)]) == ["B"]
    assert ended.tokens == [1, 9]
