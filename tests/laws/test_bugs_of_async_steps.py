"""K08 and K09: no step in vain, and the same answers in every mixture of what an engine can do."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from deepinfer.engine.engine import Engine
from deepinfer.engine.grammars import Grammars
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.scheduler.plan import Scheduled
from tests.laws.ahead import (
    Make,
    Small,
    around,
    by_chance,
    engines,
    in_turn,
    jobs_of,
    launches,
    make_small,
)
from tests.laws.ahead_grammars import SO_ARGS, compiled, reading_so_args
from tests.laws.drafters import answers_of, play, with_drafter
from tests.laws.engines import Job, make_engine, run_jobs
from tests.laws.test_engine import KEEP, some_ids


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make_small(tmp_path_factory.mktemp("small"))


@pytest.fixture
def make(small: Small) -> Iterator[Make]:
    with engines(small.network) as one:
        yield one


def checked(engine: Engine) -> None:
    """No row is launched that is certain to be in vain: neither the next token's, nor a draft's."""

    def launch(inner: Any, plan: Any) -> Any:
        *before, scheduled = engine.scheduler._in_flight
        for place, request in enumerate(scheduled.requests):
            drawn = [one.requests[other] for one in before for other in one.sampled]
            room = engine.scheduler.config.max_model_len - request.num_prompt
            num_left = min(request.limits.max_tokens, room) - request.num_output
            assert drawn.count(request) + 1 + scheduled.num_drafts[place] <= num_left
        return inner(plan)

    around(engine.lane, "launch", launch)


def wasted(engine: Engine) -> list[Scheduled]:
    """Steps, from now on, that bring nobody anything."""
    found: list[Scheduled] = []

    def update(inner: Any, scheduled: Scheduled, *drawn: Any) -> Any:
        if not any(map(scheduled.is_live, range(len(scheduled.requests)))):
            found.append(scheduled)
        return inner(scheduled, *drawn)

    around(engine.scheduler, "update", update)
    return found


@pytest.mark.parametrize(
    "num_drafts", [0, 1, 3, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))]
)
def test_k08_no_step_too_many(small: Small, make: Make, num_drafts: int) -> None:
    """K08: a step runs for a request that is certain to have all its tokens, or brings it one."""
    (whole,) = in_turn(small, jobs_of([9], max_tokens=6))
    for max_tokens in range(1, 7):
        for chance in (0.0, 0.6, 1.0) if num_drafts else (0.0,):
            engine = make(num_drafts)
            play(engine, by_chance({("0", 0): [*whole.token_ids, 5, 6, 7, 8, 9]}, [chance]))
            checked(engine)
            steps, in_vain = launches(engine), wasted(engine)
            (output,) = run_jobs(engine, small.tokenizer, jobs_of([9], max_tokens=max_tokens))
            assert output.token_ids == whole.token_ids[:max_tokens]
            assert output.finish_reason == "length"
            if chance == 0.0:
                assert len(steps) == max_tokens  # as many as step by step
                assert not in_vain
            assert len(steps) <= max_tokens
            assert len(in_vain) <= 1


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_k08_the_longest_sequence(small: Small, make: Make, num_drafts: int) -> None:
    """K08: a step too many where prompt and output fill max_model_len; several requests at once."""
    jobs = jobs_of([200, 190, 250], max_tokens=99, logprobs=0)
    sizes = {"max_model_len": 256, "num_slots": 3}
    plain = make_engine(small.network, **sizes)
    in_order = launches(plain)
    expected = run_jobs(plain, small.tokenizer, jobs)
    assert [len(one.token_ids) for one in expected] == [56, 66, 6]
    engine = make(num_drafts, **sizes)
    if num_drafts:
        play(engine, by_chance(answers_of(expected), (0.9, 0.2, 0.5)))
    checked(engine)
    steps = launches(engine)
    assert run_jobs(engine, small.tokenizer, jobs) == expected
    if not num_drafts:
        assert len(steps) == len(in_order)


@pytest.mark.parametrize("num_drafts", [0, 1, 5])
@pytest.mark.parametrize("place", [0, 1, 4])
def test_k08_an_end_that_nobody_foresees(
    small: Small, make: Make, num_drafts: int, place: int
) -> None:
    """K08: an end token costs more than the one step that was launched before it was known, or a
    token comes behind it."""
    (job,) = jobs_of([9], max_tokens=12, ignore_eos=False, golden_token_ids=[-1] * place + [1])
    (expected,) = in_turn(small, [job])
    assert expected.finish_reason == "stop"
    assert len(expected.token_ids) == place + 1
    for chance in (0.0, 1.0):
        engine = make(num_drafts)
        play(engine, by_chance({("0", 0): [*expected.token_ids, *range(20, 30)]}, [chance]))
        checked(engine)
        steps, in_vain = launches(engine), wasted(engine)
        assert run_jobs(engine, small.tokenizer, [job]) == [expected]
        assert engine.step() == []  # the step that ran for nobody
        assert len(in_vain) == 1
        assert sum(in_vain[0].num_rows) <= 1 + num_drafts
        if not num_drafts:
            assert len(steps) == place + 2


# ---- everything with everything ------------------------------------------------------------------


@pytest.fixture(scope="module")
def grammars(small: Small) -> Iterator[Callable[[], Grammars]]:
    with compiled(small) as new:
        yield new


def mixture(is_structured: bool) -> list[Job]:
    """Eight requests, half of them with a grammar, if so."""
    return [
        Job(
            some_ids(n, (40, 5, 61, 17, 33, 9, 28, 50)[n]),
            SamplingParams(
                temperature=(0, 1.2)[n // 4],
                seed=n,
                max_tokens=6,
                logprobs=n % 3,
                frequency_penalty=n / 8,
                so_args=SO_ARGS[n // 2] if is_structured and n % 2 else None,
            ),
            arrival=n // 3,
        )
        for n in range(8)
    ]


@pytest.fixture(scope="module")
def alone(small: Small, grammars: Callable[[], Grammars]) -> dict[Any, list[RequestOutput]]:
    """What each of a mixture gives alone, step by step: by (is_replayed, is_structured)."""
    found: dict[Any, list[RequestOutput]] = {}
    for is_structured, is_replayed in product((False, True), repeat=2):
        outputs = []
        for number, job in enumerate(mixture(is_structured)):
            if is_structured and job.params.so_args is None:
                outputs.append(found[is_replayed, False][number])
                continue
            engine = make_engine(
                small.network, keep_tokens=KEEP if is_replayed else None, grammars=grammars()
            )
            outputs += run_jobs(reading_so_args(engine), small.tokenizer, [job])
        found[is_replayed, is_structured] = outputs
    assert found[False, False] != found[True, False] != found[True, True]
    return found


# Every pair of switches in all four ways.
PAIRS = [(0, 0, 0, 0, 1), (0, 1, 1, 1, 0), (1, 0, 0, 1, 0)]
PAIRS += [(1, 0, 1, 0, 0), (1, 1, 0, 0, 0), (1, 1, 1, 1, 1)]
REST = [one for one in product((0, 1), repeat=5) if one not in PAIRS]


@pytest.mark.parametrize(
    "switches", [*PAIRS, *(pytest.param(one, marks=pytest.mark.slow) for one in REST)], ids=str
)
def test_k09_the_matrix(
    small: Small,
    make: Make,
    grammars: Callable[[], Grammars],
    alone: dict[Any, list[RequestOutput]],
    switches: tuple[int, ...],
) -> None:
    """K09: with asynchronous steps, chunks, drafts, bounded replay and grammars, any of them on or
    off, an answer is good alone and poor in a batch of 2 or 8."""
    is_ahead, is_chunked, has_drafts, is_replayed, is_structured = map(bool, switches)
    expected = alone[is_replayed, is_structured]
    for batch in ([[3]], [[0, 7]], [list(range(8))]):
        for numbers in batch:
            engine = make(
                3 * has_drafts,
                is_ahead=is_ahead,
                num_rows=8 if is_chunked else 512,
                keep_tokens=KEEP if is_replayed else None,
                grammars=grammars(),
            )
            wanted = [expected[n] for n in numbers]
            if has_drafts:
                with_drafter(engine, "coin", wanted)
            jobs = [mixture(is_structured)[n] for n in numbers]
            assert run_jobs(reading_so_args(engine), small.tokenizer, jobs) == wanted
