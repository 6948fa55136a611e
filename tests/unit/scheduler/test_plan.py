"""A step as arrays."""

import numpy as np

from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.plan import make_plan
from deepinfer.scheduler.request import Request
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.step import StepPlan
from tests.unit.scheduler.desk import make_scheduler, step


def next_plan(scheduler: Scheduler) -> StepPlan:
    """The next step's plan; the step is done with token 50."""
    scheduled = scheduler.schedule()
    assert scheduled is not None
    plan = make_plan(scheduled)
    scheduled.know_drafts()
    num_sampled = len(scheduled.sampled)
    scheduler.update(scheduled, np.full(num_sampled, 50, np.int32), np.zeros(num_sampled, np.bool_))
    return plan


def test_chunks_and_single_rows() -> None:
    """Rows get the tokens, positions, slots or blocks of another sequence."""
    scheduler = make_scheduler(num_rows=140, max_model_len=512)
    scheduler.add(Request("A", [10, 11], Limits(9)))
    next_plan(scheduler)
    scheduler.add(Request("B", range(200, 400), Limits(9), decoder_start=60))
    plan = next_plan(scheduler)
    first, second = scheduler.running
    assert plan.slot_ids.tolist() == [first.slot_id, second.slot_id]
    assert plan.num_computed.tolist() == [2, 0]
    assert plan.num_rows.tolist() == [1, 139]
    assert plan.token_ids.tolist() == [50, *range(200, 339)]
    assert plan.block_tables.tolist() == [[*first.block_ids, -1], second.block_ids]
    assert plan.sample_rows.tolist() == [0]
    plan = next_plan(scheduler)
    assert plan.num_computed.tolist() == [3, 139]
    assert plan.decoder_starts.tolist() == [0, 60]
    assert plan.token_ids.tolist() == [50, *range(339, 400)]
    assert plan.sample_rows.tolist() == [0, 61]
    for name in ("slot_ids", "num_computed", "num_rows", "block_tables", "token_ids"):
        assert getattr(plan, name).dtype == np.int32
    for name in ("decoder_starts", "sample_rows", "score_rows", "score_ids"):
        assert getattr(plan, name).dtype == np.int32


def test_nothing_to_sample() -> None:
    """A step of half a prompt alone draws a token, or has arrays that do not fit."""
    scheduler = make_scheduler(num_rows=4)
    scheduler.add(Request("A", range(9), Limits(9)))
    plan = next_plan(scheduler)
    assert plan.sample_rows.shape == plan.score_rows.shape == (0,)
    assert plan.sample_rows.dtype == np.int32
    assert plan.score_top == 0


def test_score_rows() -> None:
    """C13, G10: scores of the prompt are one token off, or of another request."""
    scheduler = make_scheduler(num_rows=8)
    scheduler.add(Request("A", [10], Limits(9)))
    step(scheduler)
    scheduler.add(Request("B", [20, 21, 22], Limits(9)))
    scheduler.add(Request("C", [30, 31, 32, 33, 34, 35, 36], Limits(9), score_top=2))
    scheduler.add(Request("D", [40, 41], Limits(9), score_top=5))
    plan = next_plan(scheduler)
    assert plan.num_rows.tolist() == [1, 3, 2, 2]
    assert plan.score_rows.tolist() == [4, 5, 6]
    assert plan.score_ids.tolist() == [31, 32, 41]
    assert plan.score_top == 5
    scheduled = scheduler.schedule()
    assert scheduled is not None
    scored = [(request.request_id, list(where)) for request, where in scheduled.prompt_scores()]
    assert scored == [("C", [2, 3, 4, 5])]
    plan = make_plan(scheduled)
    assert plan.num_rows.tolist() == [1, 1, 5, 1]
    assert plan.score_rows.tolist() == [2, 3, 4, 5]
    assert plan.score_ids.tolist() == [33, 34, 35, 36]
    assert plan.score_top == 2


def test_a_plan_is_a_copy() -> None:
    """A13: a step in flight reads a table that the host has given to the next owner."""
    scheduler = make_scheduler()
    scheduler.add(Request("A", [10, 11], Limits(9)))
    scheduled = scheduler.schedule()
    assert scheduled is not None
    plan = make_plan(scheduled)
    before = plan.block_tables.copy()
    scheduler.abort("A")
    assert (scheduler.memory.tables == -1).all()
    assert (plan.block_tables == before).all()
    assert plan.token_ids.tolist() == [10, 11]


def test_scores_of_a_lost_step() -> None:
    """G10, K04: a step is broken off, and the scores of its rows never come; or those that came
    before come again."""
    scheduler = make_scheduler(num_rows=4)
    scheduler.add(Request("A", range(20, 30), Limits(9), score_top=0))

    def scored() -> list[int]:
        scheduled = scheduler.schedule()
        assert scheduled is not None
        return [position for _, where in scheduled.prompt_scores() for position in where]

    next_plan(scheduler)
    assert (scored(), scored()) == ([4, 5, 6, 7], [8])
    scheduler.lose_step()
    assert (scored(), scored()) == ([], [4, 5, 6, 7])
    scheduler.lose_step()
    for expected in ([], [4, 5, 6, 7], [8]):
        scheduled = scheduler.schedule()
        assert scheduled is not None
        found = [list(where) for _, where in scheduled.prompt_scores()]
        assert found == ([expected] if expected else [])
        scheduled.know_drafts()
        num_drawn = scheduled.num_drawn
        scheduler.update(scheduled, np.full(num_drawn, 50, np.int32), np.zeros(num_drawn, np.bool_))
