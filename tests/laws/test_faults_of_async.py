"""A step that breaks off while another is under way: the engine goes on, nothing is lost or twice.

Calls of the device fail at chosen places, or the host is interrupted there.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from deepinfer.engine import engine as engine_module
from deepinfer.engine.engine import Engine
from deepinfer.engine.flight import Flight
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.worker.lane import Lane
from tests.laws.ahead import (
    Fault,
    Make,
    Small,
    check_said,
    engines,
    failing,
    forgiving,
    in_turn,
    make_small,
    mixed_jobs,
    poison_after_calls,
    recorded,
)
from tests.laws.drafters import with_drafter
from tests.laws.engines import Job, assert_empty, run_watched


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make_small(tmp_path_factory.mktemp("small"))


@pytest.fixture
def make(small: Small) -> Iterator[Make]:
    with engines(small.network) as one:
        yield one


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    return mixed_jobs(3, (5, 40, 12), prompt_logprobs=1, presence_penalty=0.5, max_tokens=6)


@pytest.fixture(scope="module")
def expected(small: Small, jobs: list[Job]) -> list[RequestOutput]:
    return in_turn(small, jobs, num_rows=16)


def check(engine: Engine, small: Small, jobs: list[Job], expected: list[RequestOutput]) -> None:
    """All that was wanted is told once, after one fault."""
    errors = forgiving(engine)
    said = recorded(engine)
    assert run_watched(engine, small.tokenizer, jobs, poison_after_calls) == expected
    check_said(said, expected)
    assert len(errors) == 1
    assert isinstance(errors[0], KeyboardInterrupt | Fault)


@pytest.mark.parametrize("schedule", ["fixed", "confidence"])
@pytest.mark.parametrize("place", ["launch", "start_sample", "start_draft"])
def test_a_call_fails(
    small: Small,
    make: Make,
    jobs: list[Job],
    expected: list[RequestOutput],
    place: str,
    schedule: Any,
) -> None:
    """K01, K04: a call that fails on the device takes tokens or scores of prompts along, or the
    error that is raised is that of a later call, which was not made for that reason."""
    for call in (1, 2, 5):
        engine = with_drafter(make(3, schedule, num_rows=16), "coin", expected)
        error = (KeyboardInterrupt, Fault)[call % 2]
        if place == "start_draft":
            failing(engine.lane, "draft", call, error)  # the drafter of the test is there
        else:
            failing(engine.worker, place, call, error)
        check(engine, small, jobs, expected)


def test_a_call_of_the_draft_module_fails(
    small: Small, make: Make, jobs: list[Job], expected: list[RequestOutput]
) -> None:
    """The same on the device's thread, where the drafts are made."""
    for call in (1, 2, 4):
        engine = make(2, num_rows=16)
        failing(engine.worker, "start_draft", call, Fault)
        check(engine, small, jobs, expected)


@pytest.mark.parametrize(
    ("place", "is_threaded"),
    [
        ("schedule", True),
        ("collect", True),
        ("build_sample_plan", True),
        ("ask", True),
        ("schedule", False),
        ("launch", False),
    ],
)
@pytest.mark.parametrize("schedule", ["fixed", "confidence"])
def test_the_host_is_interrupted(
    small: Small,
    make: Make,
    jobs: list[Job],
    expected: list[RequestOutput],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    schedule: Any,
    is_threaded: bool,
) -> None:
    """K01: tokens that were taken in are never told when the next step cannot be planned, or those
    of the step under way come twice. Without a thread, as on a device that works by itself, a
    launch can be interrupted too."""
    for call in (1, 3):
        engine = make(3, schedule, num_rows=16)
        if not is_threaded:
            engine.lane.close()
            engine.lane = Lane(engine.worker)
        with_drafter(engine, "coin", expected)
        owner: Any = {
            "schedule": engine.scheduler,
            "launch": engine.worker,
            "collect": Flight,
            "build_sample_plan": engine_module,
            "ask": engine.drafting,
        }[place]
        with monkeypatch.context() as patch:
            patch.setattr(owner, place, getattr(owner, place))  # to be put back
            failing(owner, place, call, KeyboardInterrupt)
            check(engine, small, jobs, expected)


def test_who_leaves_after_a_fault_is_told_nothing(
    small: Small, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K04: news that a fault kept in the engine reach a request that is gone, or are lost for one
    that is not."""
    monkeypatch.setattr(engine_module, "build_sample_plan", engine_module.build_sample_plan)
    failing(engine_module, "build_sample_plan", 2, Fault)
    engine = make(0)
    for name in ("goes", "stays"):
        engine.submit(name, [5, 6, 7], SamplingParams(max_tokens=4, temperature=0))
    with pytest.raises(Fault):
        engine.step()  # the first tokens are there, the second cannot be chosen
    engine.abort("goes")
    assert engine.has_work
    news = [delta.request_id for delta in engine.step()]
    while engine.has_work:
        news += [delta.request_id for delta in engine.step()]
    assert news == ["stays"] * 4
    assert_empty(engine)
