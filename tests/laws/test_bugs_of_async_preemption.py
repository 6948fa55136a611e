"""Requests that leave or are preempted while a step of theirs is under way, as users reported it.

What is compared with is an engine that goes step by step without drafts.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from deepinfer.engine.engine import Engine
from deepinfer.messages import Delta
from deepinfer.sampling_params import SamplingParams
from tests.laws.ahead import (
    Make,
    Small,
    around,
    by_chance,
    check_said,
    engines,
    in_turn,
    jobs_of,
    make_small,
    mixed_jobs,
    poison_after_calls,
    recorded,
    wait_for_calls,
)
from tests.laws.drafters import answers_of, play
from tests.laws.engines import Job, assert_empty, poison_free, run_watched
from tests.laws.test_engine import some_ids


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make_small(tmp_path_factory.mktemp("small"))


@pytest.fixture
def make(small: Small) -> Iterator[Make]:
    with engines(small.network) as one:
        yield one


@pytest.mark.parametrize(("num_rows", "num_drafts"), [(20, 0), (512, 3)])
def test_k01_preempted_again_and_again(
    small: Small, make: Make, num_rows: int, num_drafts: int
) -> None:
    """K01: the token that was under way when a request was preempted comes twice, or never."""
    jobs = mixed_jobs(6, (118, 121, 124, 127, 119), prompt_logprobs=1, max_tokens=12)
    expected = in_turn(small, jobs)
    engine = make(num_drafts, num_rows=num_rows, num_blocks=3, max_model_len=3 * 128)
    if num_drafts:
        play(engine, by_chance(answers_of(expected), (0.7, 0.9)))
    said = recorded(engine)
    outputs = run_watched(engine, small.tokenizer, jobs, poison_after_calls)
    assert engine.scheduler.counters.num_preemptions >= 3
    assert outputs == expected
    check_said(said, outputs)


def preempting(engine: Engine, steps: set[int]) -> list[bool]:
    """The youngest is preempted after these steps, if it is in the one under way: for each, if that
    step draws a token for it."""
    number, found = 0, list[bool]()

    def step(inner: Any) -> Any:
        nonlocal number
        deltas = inner()
        number += 1
        if number in steps and engine._flight is not None and engine.scheduler.running:
            scheduled = engine._flight.scheduled
            victim = engine.scheduler._preempt_youngest()
            if victim in scheduled.requests:
                found.append(scheduled.requests.index(victim) in scheduled.sampled)
        return deltas

    around(engine, "step", step)
    return found


@pytest.mark.parametrize("num_times", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("num_drafts", [0, 1, 3, 5])
def test_k02_preempted_while_a_step_is_under_way(
    small: Small, make: Make, num_drafts: int, num_times: int
) -> None:
    """K02: the result of a step is given to a request that was preempted meanwhile, or that runs
    again, or its drafts are."""
    jobs = mixed_jobs(3, (5, 30, 12), prompt_logprobs=0, frequency_penalty=0.5, max_tokens=8)
    expected = in_turn(small, jobs, num_rows=16)
    all_found = []
    for first in (1, 3, 5):
        engine = make(num_drafts, num_rows=16)
        if num_drafts:
            play(engine, by_chance(answers_of(expected), (0.7, 0.5, 1.0), first))
        found = preempting(engine, set(range(first, first + num_times)))
        said = recorded(engine)
        outputs = run_watched(engine, small.tokenizer, jobs, poison_after_calls)
        assert outputs == expected
        check_said(said, outputs)
        all_found += found
    assert all_found.count(True) >= 2
    assert len(all_found) >= 2 * num_times


# ---- aborts --------------------------------------------------------------------------------------


def rest(engine: Engine, watch: Any = lambda engine: None) -> list[Delta]:
    """All that the engine says until it has no work."""
    news = []
    while engine.has_work:
        news += engine.step()
        watch(engine)
    return news


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_all_leave_while_a_step_is_under_way(small: Small, make: Make, num_drafts: int) -> None:
    """K04: their blocks stay, or the step's tokens and scores are told to nobody."""
    for num_steps in (1, 2, 3, 5):
        engine = make(num_drafts, num_rows=16)
        for name in "abc":
            engine.submit(name, some_ids(3, 25), SamplingParams(n=2, prompt_logprobs=1))
        for _ in range(num_steps):
            engine.step()
        assert engine._flight is not None
        for name in "abc":
            engine.abort(name)
        assert engine.scheduler.counters.num_free_blocks == 64
        assert engine.scheduler.counters.num_free_slots == 8
        assert rest(engine) == []
        assert_empty(engine)
        assert engine.step() == []  # the step that ran for nobody
        assert engine._flight is None


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_a_new_request_of_the_same_name(small: Small, make: Make, num_drafts: int) -> None:
    """What is under way for a request that left, tokens, drafts or scores of its prompt, is told to
    a new one that took over its name and its memory."""
    asked: dict[str, Any] = {"seed": 5, "temperature": 1.0, "logprobs": 2, "prompt_logprobs": 1}
    first, stays, second = (
        Job(some_ids(n, length), SamplingParams(**asked, max_tokens=length // 3, ignore_eos=True))
        for n, length in enumerate((40, 24, 30))
    )
    expected = [in_turn(small, [job], num_rows=16)[0] for job in (stays, second)]
    for num_steps in (1, 2, 3, 5, 7):
        engine = make(num_drafts, num_rows=16, num_slots=2)
        engine.submit("it", first.prompt, first.params)
        engine.submit("stays", stays.prompt, stays.params)
        news = [delta for _ in range(num_steps) for delta in engine.step()]
        news = [delta for delta in news if delta.request_id == "stays"]
        assert engine._flight is not None
        engine.abort("it")
        engine.submit("it", second.prompt, second.params)
        wait_for_calls(engine)
        poison_free(engine)
        news += rest(engine, poison_after_calls)
        for name, output in (("stays", expected[0]), ("it", expected[1])):
            own = [delta for delta in news if delta.request_id == name]
            assert [one.token_id for one in own if one.token_id is not None] == output.token_ids
            assert [one.logprob for one in own if one.logprob is not None] == output.logprobs
            scores = [score for one in own for score in one.prompt_logprobs]
            assert [None, *scores] == output.prompt_logprobs
        assert_empty(engine)


def test_who_stays_is_not_touched(small: Small, make: Make) -> None:
    """Rows of a request that left shift those of the others."""
    jobs = jobs_of([9, 33, 5, 20], max_tokens=10, logprobs=1, prompt_logprobs=1)
    expected = in_turn(small, jobs)
    for leaves in range(4):
        for num_steps in (1, 3):
            engine = make(3, num_rows=16)
            play(engine, by_chance(answers_of(expected), (0.8, 0.4)))
            gone = [
                Job(job.prompt, job.params, aborted=num_steps if n == leaves else None)
                for n, job in enumerate(jobs)
            ]
            outputs = run_watched(engine, small.tokenizer, gone, poison_after_calls)
            for n, (output, whole) in enumerate(zip(outputs, expected, strict=True)):
                if n != leaves:
                    assert output == whole
                else:
                    assert output.finish_reason == "abort"
                    assert output.token_ids == whole.token_ids[: len(output.token_ids)]
