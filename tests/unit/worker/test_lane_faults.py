"""What a call that fails does to those after it, until its step is given up."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.worker.lane import Lane, LaneError, Pending
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
