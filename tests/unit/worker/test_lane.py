"""The lane: calls in order, results that come later, closing, and torch's threads."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from deepinfer.worker.lane import Lane, LaneError
from tests.unit.worker.lane_stub import Fault, Stub, ask, lane_of, made_of, result_of


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.gate.set()  # nobody waits for a test that failed


@pytest.fixture
def lane(stub: Stub) -> Iterator[Lane]:
    made = lane_of(stub, is_threaded=True)
    yield made
    stub.gate.set()
    made.close()


def test_in_order(stub: Stub, lane: Lane) -> None:
    """Calls overtake each other, or a result is another call's."""
    pending = [ask(lane, plan) for plan in range(60)]
    for plan in reversed(range(60)):
        assert pending[plan].result() == result_of(plan)
    assert stub.made == made_of(*range(60))
    assert len(stub.threads) == 1
    assert threading.get_ident() not in stub.threads
    assert pending[7].result() == 107  # as often as one asks


def test_the_caller_goes_on(stub: Stub, lane: Lane) -> None:
    """Asking waits for the device; or a result is there before its call was made."""
    stub.gate.clear()
    pending = [ask(lane, plan) for plan in range(9)]
    assert stub.made == []
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(pending[1].result()))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    stub.gate.set()
    waiting.join(60)
    assert got == [101]
    assert pending[8].result() == 108


def test_the_time_of_a_call(stub: Stub, lane: Lane) -> None:
    """The time that a call waited for others counts as its own."""
    stub.gate.clear()
    first, second = ask(lane, 1), ask(lane, 2)
    assert stub.begun.wait(60)
    time.sleep(0.1)
    stub.gate.set()
    second.result()
    assert first.taken_s >= 0.1
    assert 0 <= second.taken_s < 0.1


def test_closing(stub: Stub) -> None:
    """A thread is left behind, or calls that were asked for are never made."""
    lane = lane_of(stub, is_threaded=True)
    num_threads = threading.active_count()
    stub.gate.clear()
    pending = [ask(lane, plan) for plan in range(3)]
    assert threading.active_count() == num_threads + 1
    threading.Timer(0.05, stub.gate.set).start()
    lane.close()
    assert stub.made == made_of(0, 1, 2)
    assert pending[2].result() == 102
    assert all(one.ident not in stub.threads for one in threading.enumerate())
    lane.close()
    with pytest.raises(RuntimeError):
        ask(lane, 3)


def test_without_a_thread(stub: Stub) -> None:
    """A device that works by itself gets its calls late, or from another thread."""
    lane = lane_of(stub, is_threaded=False)
    assert not lane.is_threaded
    pending = ask(lane, 1)
    assert stub.made == made_of(1)
    assert stub.threads == {threading.get_ident()}
    assert pending.result() == 101
    stub.bad[2] = Fault("now")
    with pytest.raises(Fault, match="now"):
        ask(lane, 2)
    with pytest.raises(LaneError):
        ask(lane, 4)
    lane.lose_step()
    assert ask(lane, 4).result() == 104
    assert stub.made == [*made_of(1, 2), "lose", *made_of(4)]
    lane.close()
    assert ask(lane, 5).result() == 105


@pytest.mark.parametrize("num_threads", [1, 3])
def test_as_many_threads_as_the_caller(stub: Stub, num_threads: int) -> None:
    """torch's number of threads belongs to the thread that calls it: with another one, sums are
    added up in another order, or a machine has more to do than it has cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    lane = lane_of(stub, is_threaded=True)
    try:
        ask(lane, 1).result()
    finally:
        lane.close()
        torch.set_num_threads(before)
    assert stub.num_threads == {num_threads}
