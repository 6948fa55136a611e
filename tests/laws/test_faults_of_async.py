"""A step that breaks off while another is under way: the engine goes on, nothing is lost or twice.

Calls of the device fail at chosen places, the host is interrupted at chosen places, or by a signal.
"""

import signal
import threading
import time
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
    around,
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
from tests.laws.engines import Job, run_jobs, run_watched

_SIGNAL = signal.SIGUSR1
_SOON_S = 0.05


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
    for call in (1, 2, 3, 5):
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


@pytest.mark.parametrize("is_threaded", [True, False])
@pytest.mark.parametrize("schedule", ["fixed", "confidence"])
@pytest.mark.parametrize("place", ["schedule", "launch", "collect", "build_sample_plan", "ask"])
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
    for call in (1, 2, 4):
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


# ---- signals -------------------------------------------------------------------------------------


@pytest.fixture
def signals() -> Iterator[None]:
    """_SIGNAL interrupts this thread wherever it waits."""

    def raise_interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(_SIGNAL, raise_interrupt)
    yield
    signal.signal(_SIGNAL, before)


@pytest.mark.parametrize("call", [1, 3])
def test_whoever_waits_is_interrupted_twice(
    small: Small,
    make: Make,
    jobs: list[Job],
    expected: list[RequestOutput],
    monkeypatch: pytest.MonkeyPatch,
    signals: None,
    call: int,
) -> None:
    """K04: an interrupt is heard only when the device has done what it is at; a second one, of
    somebody without patience, leaves an engine that can do nothing any more."""
    engine = with_drafter(make(3, num_rows=16), "coin", expected)
    is_waiting, num_waits, num_launches = threading.Event(), 0, 0
    host = threading.get_ident()

    def collect(inner: Any, flight: Flight) -> Any:
        nonlocal num_waits
        num_waits += 1
        is_waiting.set()
        try:
            return inner(flight)
        finally:
            is_waiting.clear()

    def launch(inner: Any, plan: Any) -> None:
        nonlocal num_launches
        num_launches += 1
        for _ in range(2 * (num_launches == call)):
            # The host waits for this very call, or for something else that it should not wait for.
            before = -1
            while is_waiting.wait(1.0) and before != num_waits:
                before = num_waits
                time.sleep(_SOON_S)
            signal.pthread_kill(host, _SIGNAL)
            time.sleep(_SOON_S)
        inner(plan)

    monkeypatch.setattr(Flight, "collect", Flight.collect)  # to be put back
    around(Flight, "collect", collect)
    around(engine.worker, "launch", launch)
    errors = forgiving(engine)
    said = recorded(engine)
    assert run_jobs(engine, small.tokenizer, jobs) == expected
    check_said(said, expected)
    assert len(errors) == 2


def held(engine: Engine, call: int) -> threading.Event:
    """The device comes to a halt in its launch number `call`, until the event is set."""
    gate, calls = threading.Event(), 0

    def launch(inner: Any, plan: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            assert gate.wait(60)
        inner(plan)

    around(engine.worker, "launch", launch)
    return gate


def test_close_while_a_step_is_under_way(small: Small, make: Make) -> None:
    """K04: a thread goes on after the engine was closed, or closing waits for ever."""
    engine = make(3)
    gate = held(engine, 2)
    try:
        engine.submit("it", [5, 6, 7], SamplingParams(max_tokens=9))
        engine.step()
        assert engine._flight is not None
        (thread,) = engine.lane._thread._threads
        assert thread.is_alive()
        threading.Timer(_SOON_S, gate.set).start()
        engine.close()
    finally:
        gate.set()
    assert not thread.is_alive()
    engine.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        engine.step()


def test_close_after_a_fault(small: Small, make: Make) -> None:
    """K04: an engine whose device failed cannot be closed."""
    engine = make(0)
    failing(engine.worker, "launch", 2, Fault)
    engine.submit("it", [5, 6, 7], SamplingParams(max_tokens=9))
    engine.step()
    with pytest.raises(Fault):
        engine.step()
    engine.close()
