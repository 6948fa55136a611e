"""Which drafts a step verifies: within rows, blocks and ends, and by what it may know."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.slots import SlotPool
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.draft_schedule import choose_threshold, survival_rates, verify_above
from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.request import Request
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.scheduler.step_time import StepTime
from deepinfer.scheduler.verify_lengths import VerifyLengths
from tests.unit.scheduler.desk import step

CURVE = {1: 11.0, 100: 110.0}  # 10 + b ms


def scheduler_of(
    schedule: str = "fixed", num_rows: int = 512, num_blocks: int = 16, max_model_len: int = 512
) -> Scheduler:
    config = SchedulerConfig(4, num_rows, max_model_len)
    lengths = VerifyLengths(config, schedule, StepTime(CURVE, graphs=False))
    return Scheduler(config, BlockPool(num_blocks), SlotPool(4), lengths)


def running(scheduler: Scheduler, prompts: list[int], max_tokens: int = 99) -> list[Request]:
    """Requests with prompts of these lengths, and a token each."""
    requests = [
        Request(str(n), [7] * length, Limits(max_tokens)) for n, length in enumerate(prompts)
    ]
    for request in requests:
        scheduler.add(request)
    step(scheduler)
    return requests


def propose(request: Request, confidence: list[float], first: int = 100) -> None:
    request.expect_drafts(len(confidence))
    request.propose(list(range(first, first + len(confidence))), survival_rates(confidence))


def verified(scheduler: Scheduler) -> list[int]:
    scheduled = scheduler.schedule()
    assert scheduled is not None
    scheduled.know_drafts()
    assert [len(draft_ids) for draft_ids in scheduled.drafts] == scheduled.num_drafts
    return scheduled.num_drafts


def test_fixed_verifies_all_there_is_room_for() -> None:
    """Rows that are short go to one request's drafts, while others verify none."""
    for num_rows, expected in ((64, [5, 5]), (12, [5, 5]), (9, [4, 3]), (3, [1, 0]), (4, [1, 1])):
        scheduler = scheduler_of(num_rows=max(num_rows, 4))
        first, second = running(scheduler, [2, 2])
        if num_rows < 4:
            scheduler.config = scheduler.verify_lengths.config = SchedulerConfig(2, num_rows, 512)
        for request in (first, second):
            propose(request, [0.5] * 5)
        assert verified(scheduler) == expected


@pytest.mark.parametrize(("max_tokens", "expected"), [(99, 4), (6, 4), (5, 3), (3, 1), (2, 0)])
def test_drafts_end_with_the_output(max_tokens: int, expected: int) -> None:
    """K08: drafts are verified that could not be emitted together with the token after them."""
    scheduler = scheduler_of()
    (request,) = running(scheduler, [2], max_tokens)
    propose(request, [0.9] * 4)
    assert verified(scheduler) == [expected]


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [(99, [4, 4]), (10, [4, 3]), (8, [4, 1]), (7, [4, 0]), (6, [4, 0]), (3, [1, 0])],
)
def test_drafts_end_with_the_output_ahead(max_tokens: int, expected: list[int]) -> None:
    """K08: the same while drafts before them are being verified: all of these may be accepted."""
    scheduler = scheduler_of()
    (request,) = running(scheduler, [2], max_tokens)
    found = []
    for _ in expected:
        request.expect_drafts(4)
        scheduled = scheduler.schedule()
        assert scheduled is not None
        found += scheduled.num_drafts
    assert found == expected


def test_drafts_end_with_the_longest_sequence() -> None:
    """I04: drafts stand beyond max_model_len."""
    scheduler = scheduler_of(max_model_len=128)
    (request,) = running(scheduler, [124])
    propose(request, [0.9] * 5)
    assert verified(scheduler) == [2]


def test_drafts_take_free_blocks_and_give_them_back() -> None:
    """Drafts keep blocks that somebody else needs, or take the last one from a prompt."""
    scheduler = scheduler_of(num_blocks=4, max_model_len=256)
    first, second = running(scheduler, [125, 127])
    assert scheduler.counters.num_free_blocks == 2
    for request in (first, second):
        propose(request, [0.9] * 5)
    assert verified(scheduler) == [5, 5]
    assert scheduler.counters.num_free_blocks == 0
    scheduler.update(scheduler._in_flight[0], np.full(12, 9, np.int32), np.zeros(12, np.bool_))
    assert (len(first.tokens), len(second.tokens)) == (127, 129)
    assert (len(first.block_ids), len(second.block_ids)) == (1, 2)
    assert scheduler.counters.num_free_blocks == 1
    assert (scheduler.memory.tables[first.slot_id] == [*first.block_ids, -1]).all()


def test_without_free_blocks_fewer_are_verified() -> None:
    """Drafts preempt somebody, or are stored in nobody's block."""
    scheduler = scheduler_of(num_blocks=2, max_model_len=256)
    (request,) = running(scheduler, [125])
    other = scheduler.memory.blocks.allocate(1)
    propose(request, [0.9] * 5)
    assert verified(scheduler) == [2]
    assert scheduler.counters.num_preemptions == 0
    assert other is not None


def test_preemption_drops_drafts_and_rates() -> None:
    """Drafts of before a preemption follow other tokens; their rates decide about the next."""
    scheduler = scheduler_of()
    (request,) = running(scheduler, [2])
    propose(request, [0.9] * 5)
    scheduler.schedule()
    scheduler.lose_step()
    assert (request.draft_ids, request.rates, request.rates_before) == ([], None, None)
    assert verified(scheduler) == [0]


def test_confidence_is_the_worked_example() -> None:
    """The budget is found by the rates of these drafts, or shared by those of the round before."""
    scheduler = scheduler_of("confidence")
    first, second = running(scheduler, [2, 2])
    for request, confidence in ((first, [0.9, 0.5]), (second, [0.8, 0.25])):
        propose(request, confidence)
    step_rows(scheduler, 7)
    # A budget of 3, by the rates of the round before; the likeliest of this round are others.
    propose(first, [0.3, 0.9])
    propose(second, [0.9, 0.9])
    assert verified(scheduler) == [1, 2]


def step_rows(scheduler: Scheduler, token_id: int) -> None:
    """A step in which no draft is accepted."""
    scheduled = scheduler.schedule()
    assert scheduled is not None
    scheduled.know_drafts()
    count = len(scheduled.sampled) + sum(map(len, scheduled.drafts))
    scheduler.update(scheduled, np.full(count, token_id, np.int32), np.zeros(count, np.bool_))


@given(
    confidence=st.lists(st.floats(0.05, 0.95), min_size=5, max_size=5),
    place=st.integers(0, 4),
    others=st.lists(st.floats(0, 1), min_size=5, max_size=5),
    alone=st.booleans(),
    ids=st.lists(st.integers(0, 500), min_size=5, max_size=5),
)
def test_no_draft_decides_about_itself(
    confidence: list[float], place: int, others: list[float], alone: bool, ids: list[int]
) -> None:
    """Whether draft j is verified follows from its own value, or from the confidence of a later
    one, which was computed from it."""

    def lengths(last: list[float], draft_ids: list[int]) -> list[int]:
        scheduler = scheduler_of("confidence")
        requests = running(scheduler, [2] if alone else [2, 2])
        for _ in range(3):
            for request in requests:
                propose(request, [0.9, 0.5, 0.7, 0.3, 0.2])
            step_rows(scheduler, 7)
        for request in requests[1:]:
            propose(request, [0.6, 0.8, 0.4, 0.5, 0.9])
        requests[0].expect_drafts(len(draft_ids))
        requests[0].propose(draft_ids, survival_rates(last))
        return verified(scheduler)

    changed = [*confidence[: place + 1], *others[place + 1 :]]
    first, second = lengths(confidence, [1] * 5)[0], lengths(changed, ids)[0]
    assert (first > place) == (second > place)


@settings(deadline=None, derandomize=True)
@given(
    rounds=st.lists(st.lists(st.floats(0.05, 1), min_size=1, max_size=5), min_size=1, max_size=8),
    cost=st.floats(0.1, 20),
)
def test_threshold_is_the_best(rounds: list[list[float]], cost: float) -> None:
    """A sequence that runs alone verifies too many drafts, or too few, for its own rounds."""
    rates = [survival_rates(one) for one in rounds]

    def gain(threshold: float) -> float:
        counts = [verify_above(one, threshold) for one in rates]
        tokens = sum(1 + one[:count].sum() for one, count in zip(rates, counts, strict=True))
        return float(tokens / sum(cost + 1 + count for count in counts))

    found = choose_threshold(rates, lambda rows: cost + rows)
    candidates = [np.inf, *np.concatenate(rates).tolist()]
    assert gain(found) >= max(map(gain, candidates)) - 1e-9
