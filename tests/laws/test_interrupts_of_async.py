"""Whoever waits for a device that is at work: interrupted by a signal, or closing the engine."""

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from deepinfer.engine.engine import Engine
from deepinfer.engine.flight import Flight
from deepinfer.sampling_params import SamplingParams
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
    recorded,
)
from tests.laws.drafters import with_drafter
from tests.laws.engines import run_jobs

_SIGNAL = signal.SIGUSR1
_SOON_S = 0.05


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make_small(tmp_path_factory.mktemp("small"))


@pytest.fixture
def make(small: Small) -> Iterator[Make]:
    with engines(small.network) as one:
        yield one


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
    small: Small, make: Make, monkeypatch: pytest.MonkeyPatch, signals: None, call: int
) -> None:
    """K04: an interrupt is heard only when the device has done what it is at; a second one, of
    somebody without patience, leaves an engine that can do nothing any more."""
    jobs = mixed_jobs(3, (5, 40, 12), prompt_logprobs=1, max_tokens=6)
    expected = in_turn(small, jobs, num_rows=16)
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
