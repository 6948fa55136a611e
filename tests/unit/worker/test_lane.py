"""The lane: calls in order, results that come later, and what a fault does to later calls."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.worker.lane import Lane, LaneError, Pending


class Fault(RuntimeError):
    """Something broke."""


class Stub:
    """In a worker's place. made: what it did, in order. gate: nothing is done before it is set.

    A plan is a number, and so is its result; one in `bad` fails with the exception there.
    """

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.threads: set[int] = set()
        self.num_threads: set[int] = set()
        self.bad: dict[int, BaseException] = {}
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()

    def launch(self, plan: int) -> None:
        self._make("launch", plan)

    def start_sample(self, plan: int) -> Callable[[], int]:
        return self._make("sample", plan)

    def start_draft(self, plan: int) -> Callable[[], int]:
        return self._make("draft", plan)

    def lose_step(self) -> None:
        self.made.append("lose")

    def _make(self, name: str, plan: int) -> Callable[[], int]:
        self.begun.set()
        assert self.gate.wait(60)
        self.threads.add(threading.get_ident())
        self.num_threads.add(torch.get_num_threads())
        self.made.append((name, plan))
        if plan in self.bad:
            raise self.bad[plan]
        return lambda: 100 + plan


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


def lane_of(stub: Any, *, is_threaded: bool) -> Lane:
    return Lane(stub, is_threaded=is_threaded)


def ask(lane: Any, plan: int) -> Pending[Any]:
    """A launch, a sample or a draft, in turn."""
    return (lane.launch, lane.sample, lane.draft)[plan % 3](plan)


def result_of(plan: int) -> int | None:
    return 100 + plan if plan % 3 else None


def made_of(*plans: int) -> list[tuple[str, int]]:
    return [(("launch", "sample", "draft")[plan % 3], plan) for plan in plans]


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


def test_a_fault_stops_what_follows(stub: Stub, lane: Lane) -> None:
    """A step runs on what a failed one left, or its error hides the one that was first."""
    stub.bad[2] = Fault("the first")
    stub.bad[4] = Fault("another")
    pending = [ask(lane, plan) for plan in range(6)]
    assert [pending[plan].result() for plan in (0, 1)] == [None, 101]
    with pytest.raises(Fault, match="the first"):
        pending[2].result()
    for one in pending[3:]:
        with pytest.raises(LaneError):
            one.result()
    assert stub.made == made_of(0, 1, 2)
    with pytest.raises(LaneError):
        ask(lane, 7).result()
    lane.lose_step()
    assert ask(lane, 7).result() == 107
    assert stub.made == [*made_of(0, 1, 2), "lose", *made_of(7)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), AssertionError(), Fault()])
def test_any_fault_arrives(stub: Stub, lane: Lane, error: BaseException) -> None:
    """A fault ends the thread, and whoever waits for a result waits for ever."""
    stub.bad[1] = error
    with pytest.raises(type(error)):
        ask(lane, 1).result()
    lane.lose_step()
    assert ask(lane, 2).result() == 102


def test_losing_a_step_waits_for_nothing(stub: Stub, lane: Lane) -> None:
    """Whoever interrupts has to wait for what the device is at; or what was asked for before is
    followed by what is asked for now."""
    stub.gate.clear()
    before = [ask(lane, plan) for plan in (1, 2)]
    lane.lose_step()
    after = ask(lane, 4)
    assert stub.made == []
    stub.gate.set()
    assert after.result() == 104
    assert stub.made == [*made_of(1, 2), "lose", *made_of(4)]
    assert [one.result() for one in before] == [101, 102]


def test_a_fault_that_comes_after_it_was_lost(stub: Stub, lane: Lane) -> None:
    """A call that was given up fails later, and takes the calls after it along."""
    stub.bad[1] = Fault("late")
    stub.gate.clear()
    given_up = [ask(lane, 1), ask(lane, 2)]
    lane.lose_step()
    after = ask(lane, 4)
    stub.gate.set()
    assert after.result() == 104
    for one, error in zip(given_up, (Fault, LaneError), strict=True):
        with pytest.raises(error):
            one.result()


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


@pytest.mark.parametrize("is_threaded", [True, False])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(events=st.lists(st.sampled_from(["good", "good", "good", "bad", "lose"]), max_size=30))
def test_any_order_of_faults(is_threaded: bool, events: list[str]) -> None:
    """With and without a thread, the same calls are made and the same ones fail."""
    stub = Stub()
    lane = lane_of(stub, is_threaded=is_threaded)
    outcomes, made, wanted, has_failed = list[Any](), list[Any](), list[Any](), False
    for plan, event in enumerate(events):
        if event == "lose":
            lane.lose_step()
            made.append("lose")
            has_failed = False
            continue
        if event == "bad":
            stub.bad[plan] = Fault()
        made += [] if has_failed else made_of(plan)
        is_bad = event == "bad" and not has_failed
        wanted.append(LaneError if has_failed else Fault if is_bad else result_of(plan))
        has_failed = has_failed or is_bad
        try:
            outcomes.append(ask(lane, plan))
        except (Fault, LaneError) as error:
            assert not is_threaded
            outcomes.append(type(error))
    found = [outcome_of(one) if isinstance(one, Pending) else one for one in outcomes]
    lane.close()
    assert found == wanted
    assert stub.made == made


def outcome_of(pending: Pending[Any]) -> Any:
    try:
        return pending.result()
    except (Fault, LaneError) as error:
        return type(error)
