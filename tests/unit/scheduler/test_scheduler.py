"""Who runs, who waits, who is preempted, who ends: small cases made by hand."""

import numpy as np
import pytest

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.slots import SlotPool
from deepinfer.errors import ConfigError, RequestError
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.request import Request, State
from deepinfer.scheduler.scheduler import Scheduler
from tests.unit.scheduler.desk import add, make_scheduler, step


def ids(requests: list[Request]) -> list[int | str]:
    return [request.request_id for request in requests]


def assert_all_is_back(scheduler: Scheduler) -> None:
    counters, memory = scheduler.counters, scheduler.memory
    assert (counters.num_running, counters.num_waiting) == (0, 0)
    assert counters.num_free_blocks == memory.blocks.num_blocks
    assert counters.num_free_slots == memory.slots.num_slots
    assert (memory.tables == -1).all()


def test_the_example_of_the_rules() -> None:
    """The rules say one thing in words and do another."""
    scheduler = make_scheduler(num_rows=8)
    add(scheduler, "A", 1)
    add(scheduler, "B", 1)
    step(scheduler)
    add(scheduler, "C", 20)
    add(scheduler, "D", 3)
    rows, progress = step(scheduler)
    assert rows == {"A": 1, "B": 1, "C": 3, "D": 3}
    assert ids([p.request for p in progress]) == ["A", "B", "D"]


def test_a_long_prompt_and_streams() -> None:
    """K07: four streams stall for the whole of a long prompt, or the prompt for the streams."""
    scheduler = make_scheduler(num_seqs=5, num_rows=8)
    streams = ["A", "B", "C", "D"]
    for name in streams:
        add(scheduler, name, 1)
    step(scheduler)
    add(scheduler, "long", 200)
    for _ in range(50):
        rows, progress = step(scheduler)
        assert rows == {**dict.fromkeys(streams, 1), "long": 4}
        assert ids([p.request for p in progress])[:4] == streams
    assert ids([p.request for p in progress]) == [*streams, "long"]


def test_three_long_prompts_and_a_stream() -> None:
    """K07: prompts take turns for ever while a stream waits, or the first keeps the others out."""
    scheduler = make_scheduler(num_rows=10)
    add(scheduler, "stream", 1)
    step(scheduler)
    for name in ("A", "B", "C"):
        add(scheduler, name, 30)
    for _ in range(10):
        rows, _ = step(scheduler)
        assert rows == {"stream": 1, "A": 3, "B": 3, "C": 3}


def test_a_short_prompt_does_not_wait_for_long_ones() -> None:
    """K07: a short question waits until a book has been read."""
    scheduler = make_scheduler(num_rows=10, max_catching_up=2)
    add(scheduler, "book", 900)
    step(scheduler)
    add(scheduler, "short", 3)
    rows, progress = step(scheduler)
    assert rows == {"book": 7, "short": 3}
    assert ids([p.request for p in progress]) == ["short"]


def test_few_catch_up_at_once() -> None:
    """Fifty prompts share the rows, each gets crumbs, and the first token of all comes last."""
    scheduler = make_scheduler(num_rows=10, max_catching_up=2)
    for name in ("A", "B", "C"):
        add(scheduler, name, 30)
    assert step(scheduler)[0] == {"A": 5, "B": 5}
    for _ in range(5):
        step(scheduler)
    assert step(scheduler)[0] == {"A": 1, "B": 1, "C": 8}


def test_small_prompts_start_together() -> None:
    """A limit on long prompts keeps short ones waiting although there are rows for all."""
    scheduler = make_scheduler(num_rows=30, max_catching_up=1)
    for name in ("A", "B", "C", "D"):
        add(scheduler, name, 6)
    assert step(scheduler)[0] == {"A": 6, "B": 6, "C": 6, "D": 6}


def test_nobody_overtakes() -> None:
    """A large request waits for ever, because small ones always fit before it."""
    scheduler = make_scheduler(num_rows=600, num_blocks=8)
    add(scheduler, "A", 500)
    step(scheduler)
    add(scheduler, "large", 700)
    add(scheduler, "small", 1)
    assert step(scheduler)[0] == {"A": 1}
    assert ids(scheduler.waiting) == ["large", "small"]
    scheduler.abort("A")
    assert step(scheduler)[0] == {"large": 599, "small": 1}


def test_slots_bound_the_running() -> None:
    """More requests run than there are slots for."""
    scheduler = make_scheduler(num_seqs=2)
    for name in ("A", "B", "C"):
        add(scheduler, name, 1, max_tokens=2)
    assert step(scheduler)[0] == {"A": 1, "B": 1}
    step(scheduler)
    assert step(scheduler)[0] == {"C": 1}


def test_the_youngest_is_preempted() -> None:
    """K01: an old request loses its work for a young one, or tokens are lost or drawn twice."""
    scheduler = make_scheduler(num_rows=300, num_blocks=3, max_model_len=384)
    old, young = add(scheduler, "old", 100), add(scheduler, "young", 120)
    for number in range(28):
        step(scheduler, token_of=lambda request, number=number: 100 + number)
    # The young one had the last block, for its tokens 129 to 148. The old one has filled its own.
    assert (len(old.tokens), len(young.tokens)) == (128, 148)
    assert scheduler.counters.num_preemptions == 0
    step(scheduler)
    assert len(old.tokens) == 129
    rows, _ = step(scheduler)
    assert rows == {"old": 1}
    assert (young.state, young.num_computed, young.num_preemptions) == (State.WAITING, 0, 1)
    output = young.tokens[120:]
    assert output == [*range(100, 128), 7]
    scheduler.abort("old")
    rows, progress = step(scheduler, token_of=lambda request: 5)
    assert rows == {"young": 149}
    assert [p.token_id for p in progress] == [5]
    assert young.tokens[120:] == [*output, 5]
    assert scheduler.counters.num_preemptions == 1


def test_the_youngest_preempts_itself() -> None:
    """K01: the youngest needs a block, takes it from an older one, and both go round in circles."""
    scheduler = make_scheduler(num_rows=300, num_blocks=3, max_model_len=384)
    old, young = add(scheduler, "old", 120), add(scheduler, "young", 100)
    for _ in range(29):
        step(scheduler)
    assert (len(old.tokens), len(young.tokens)) == (149, 129)
    assert step(scheduler)[0] == {"old": 1}
    assert (old.num_preemptions, young.num_preemptions) == (0, 1)
    assert ids(scheduler.waiting) == ["young"]


def test_preempted_requests_wait_in_front_in_order() -> None:
    """K07: a preempted request goes to the end of the queue, time after time."""
    scheduler = make_scheduler(num_seqs=3, num_rows=400, num_blocks=5, max_model_len=640)
    for name in ("A", "B", "C", "D"):
        add(scheduler, name, 120)
    step(scheduler)
    while scheduler.counters.num_preemptions < 2:
        assert ids(scheduler.running + scheduler.waiting) == ["A", "B", "C", "D"]
        step(scheduler)
    assert ids(scheduler.running + scheduler.waiting) == ["A", "B", "C", "D"]


def test_admission_leaves_blocks_to_grow() -> None:
    """K07: a request is admitted into the last block and preempted in the next step, and again."""
    scheduler = make_scheduler(num_rows=300, num_blocks=4, max_model_len=512)
    add(scheduler, "A", 100)
    add(scheduler, "B", 100)
    add(scheduler, "C", 200)
    step(scheduler)
    assert ids(scheduler.running) == ["A", "B"]
    add(scheduler, "D", 1)
    step(scheduler)
    assert ids(scheduler.waiting) == ["C", "D"]


@pytest.mark.parametrize("max_tokens", range(1, 7))
def test_no_step_after_the_last_token(max_tokens: int) -> None:
    """K08: a step is run for a token that nobody may have."""
    scheduler = make_scheduler()
    request = add(scheduler, "A", 20, max_tokens)
    num_steps = 0
    while scheduler.has_work:
        _, progress = step(scheduler)
        num_steps += 1
    assert num_steps == 2 + max_tokens - 1  # 20 prompt tokens in two steps of 16 rows
    assert request.num_output == max_tokens
    assert progress[0].finish_reason == request.finish_reason == "length"
    assert scheduler.schedule() is None
    assert_all_is_back(scheduler)


def test_the_longest_sequence() -> None:
    """K08: the token at max_model_len is missing, or one more is written behind the last block."""
    scheduler = make_scheduler(num_rows=300, num_blocks=2, max_model_len=256)
    request = add(scheduler, "A", 250)
    while scheduler.has_work:
        step(scheduler)
    assert (len(request.tokens), request.finish_reason) == (256, "length")
    assert_all_is_back(scheduler)


def test_end_token() -> None:
    """An end token ends its request only, and is part of the output."""
    scheduler = make_scheduler()
    first = Request("A", [1], Limits(5, eos_ids=frozenset({9})))
    scheduler.add(first)
    add(scheduler, "B", 1)
    _, progress = step(scheduler, token_of=lambda request: 9)
    assert [(p.token_id, p.finish_reason) for p in progress] == [(9, "stop"), (9, None)]
    assert first.tokens == [1, 9]
    assert ids(scheduler.running) == ["B"]


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_abort_frees_at_once(num_steps: int) -> None:
    """K04: somebody hangs up while waiting, half way through the prompt or later; memory stays."""
    scheduler = make_scheduler(num_rows=16)
    request = add(scheduler, "A", 40)
    for _ in range(num_steps):
        step(scheduler)
    assert scheduler.abort("A")
    assert (request.state, request.finish_reason) == (State.FINISHED, "abort")
    assert_all_is_back(scheduler)
    assert not scheduler.has_work
    assert not scheduler.abort("A")
    assert not scheduler.abort("nobody")


def test_abort_while_the_step_runs() -> None:
    """K04, A13: the token of an aborted request is delivered, or its memory is freed twice."""
    scheduler = make_scheduler()
    add(scheduler, "A", 1)
    add(scheduler, "B", 1)
    scheduled = scheduler.schedule()
    assert scheduled is not None
    scheduler.abort("A")
    again = add(scheduler, "A", 1)  # the id is free for somebody else
    scheduled.know_drafts()
    progress = scheduler.update(scheduled, np.array([5, 6], np.int32), np.zeros(2, np.bool_))
    assert [(p.request.request_id, p.token_id) for p in progress] == [("B", 6)]
    assert again.tokens == [7]
    assert step(scheduler)[0] == {"B": 1, "A": 1}


def test_abort_of_a_preempted_request() -> None:
    """K04, K06: what waits for its second turn is forgotten by an abort, or freed once more."""
    scheduler = make_scheduler(num_rows=300, num_blocks=2, max_model_len=256)
    add(scheduler, "A", 100)
    young = add(scheduler, "B", 100)
    while not young.num_preemptions:
        step(scheduler)
    assert scheduler.abort("B")
    assert scheduler.abort("A")
    assert_all_is_back(scheduler)


def test_a_stop_text_ends_a_request() -> None:
    """K04: the text layer has seen the end, and the request goes on or keeps its memory."""
    scheduler = make_scheduler()
    request = add(scheduler, "A", 1)
    step(scheduler)
    assert scheduler.finish("A", "stop")
    assert request.finish_reason == "stop"
    assert_all_is_back(scheduler)
    assert not scheduler.finish("A", "stop")


def test_a_bad_row_ends_its_request_only() -> None:
    """A14: NaN in one row ends the engine, or its token is delivered."""
    scheduler = make_scheduler()
    bad, good = add(scheduler, "A", 1), add(scheduler, "B", 1)
    _, progress = step(scheduler, bad="A")
    assert [(p.token_id, p.finish_reason) for p in progress] == [(None, "error"), (7, None)]
    assert (bad.finish_reason, bad.num_output) == ("error", 0)
    assert step(scheduler)[0] == {"B": 1}
    assert good.num_output == 2


@pytest.mark.parametrize(
    ("prompt", "field", "reason"),
    [
        ([], "prompt", "no tokens"),
        ([1] * 1024, "prompt", "1024 tokens"),
        ([1], "request_id", "'A'"),
    ],
)
def test_refused(prompt: list[int], field: str, reason: str) -> None:
    """One request that cannot be served stops the queue, or takes another one's place."""
    scheduler = make_scheduler()
    add(scheduler, "A", 1)
    request_id = "A" if field == "request_id" else "B"
    with pytest.raises(RequestError, match=reason) as caught:
        scheduler.add(Request(request_id, prompt, Limits(1)))
    assert caught.value.field == field
    assert scheduler.counters.num_waiting == 1


def test_options_that_cannot_work() -> None:
    """K07: a running request never gets a row, or the longest request waits for ever."""
    with pytest.raises(ConfigError, match="4 running") as caught:
        SchedulerConfig(4, 3, 1024)
    assert caught.value.where == "max_num_batched_tokens"
    with pytest.raises(ConfigError, match="needs 8 blocks, the pool has 7") as caught:
        Scheduler(SchedulerConfig(4, 4, 1024), BlockPool(7), SlotPool(4))
    assert caught.value.where == "max_model_len"
