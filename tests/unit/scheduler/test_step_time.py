"""The time of a step: the curve, its sizes, and what the running engine adds to it."""

import math
import random
from collections.abc import Iterator
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.scheduler.draft_schedule import choose_budget
from deepinfer.scheduler.step_time import Curve, StepTime, curve_sizes, measure_curve

CURVE: Curve = {1: 10.0, 2: 11.0, 4: 12.0, 8: 14.0, 16: 20.0}


def times(model: StepTime, num_sequences: int, rows: list[int]) -> list[float]:
    time = model.of_rows(num_sequences)
    assert time is not None
    return time(np.array(rows)).tolist()


@pytest.mark.parametrize(
    ("max_rows", "interval", "sizes"),
    [
        (1, 8, [1]),
        (6, 8, [1, 2, 4, 6]),
        (8, 8, [1, 2, 4, 8]),
        (32, 8, [1, 2, 4, 8, 16, 24, 32]),
        (30, 8, [1, 2, 4, 8, 16, 24, 30]),
        (12, 6, [1, 2, 4, 6, 12]),
        (30, None, [1, 2, 4, 8, 16, 30]),
        (16, None, [1, 2, 4, 8, 16]),
    ],
)
def test_sizes(max_rows: int, interval: int | None, sizes: list[int]) -> None:
    """The largest step has no size, or a size is measured twice."""
    assert curve_sizes(max_rows, interval) == sizes


def test_as_many_sizes_as_graphs() -> None:
    """The curve has other sizes than the graphs: 256 sequences with 5 drafts have 195."""
    assert len(curve_sizes(256 * 6)) == 195


def test_measured() -> None:
    """The first run, or what other programs do meanwhile, is in the curve."""
    seconds = iter([0.005, 0.900, 0.008, 0.006, 0.007, 0.008, 0.009, 0.009, 0.010, 0.100])
    now, runs = 0.0, []

    def clock() -> float:
        return now

    def run(size: int) -> None:
        nonlocal now
        warm_up = runs.count(size) == 0
        runs.append(size)
        now += 7.0 if warm_up else next(seconds)

    found = measure_curve(run, [2, 8], clock)
    assert runs == [2] * 6 + [8] * 6
    assert found == {2: pytest.approx(5.0), 8: pytest.approx(8.0)}


def test_graphs() -> None:
    """A size between two graphs is taken for cheaper than the graph that runs it."""
    model = StepTime(CURVE, graphs=True)
    assert times(model, 1, [1, 2, 3, 4, 5, 8, 9, 16]) == [10, 11, 12, 12, 14, 14, 20, 20]
    assert times(model, 1, [17, 10**9]) == [math.inf, math.inf]


def test_without_graphs() -> None:
    """Steps in between cost as much as the next measured one, or large ones nothing more."""
    model = StepTime(CURVE, graphs=False)
    assert times(model, 1, [1, 3, 4, 6, 12, 16]) == [10, 11.5, 12, 13, 17, 20]
    assert times(model, 1, [17, 20, 32]) == [20.75, 23, 32]


def test_last_line_never_falls() -> None:
    """A dent at the end of a measured curve makes huge steps free, or their time negative."""
    assert times(StepTime({8: 9.0, 16: 5.0}, graphs=False), 1, [16, 10**6]) == [5, 5]
    assert times(StepTime({8: 9.0}, graphs=False), 1, [1, 8, 10**6]) == [9, 9, 9]


def test_no_curve() -> None:
    """An engine without a curve stops to verify, or stumbles over what it records."""
    model = StepTime({}, graphs=True)
    model.record(2, 8, 10.0, 1.0)
    assert model.of_rows(2) is None
    assert choose_budget([[0.1, 0.0], [0.1]], model.of_rows(2), 100) == 3


def test_sampler() -> None:
    """The time after the forward is of other batches though enough of this one was seen."""
    model = StepTime(CURVE, graphs=True)
    assert model.sampler_ms(3) == 0.0
    for ms in (1.0, 2.0, 6.0):
        model.record(9, 9, 14.0, ms)
    assert model.sampler_ms(3) == 2.0
    for ms in (50.0, 10.0, 20.0, 30.0):
        model.record(3, 8, 14.0, ms)
    assert model.sampler_ms(3) == 10.0  # of all seven: four are too few
    model.record(3, 8, 14.0, 40.0)
    assert model.sampler_ms(3) == 30.0
    for step in range(20):
        model.record(3, 8, 14.0, float(step))
    assert model.sampler_ms(3) == 15.0  # of 11 to 19: older ones are forgotten
    assert times(model, 3, [8]) == [29.0]


def test_excess() -> None:
    """Longer contexts go unnoticed, or a size that hardly ever ran decides for all."""
    model = StepTime(CURVE, graphs=True)
    for _ in range(9):
        model.record(1, 5, 14.0 + 4.0, 0.0)
    assert times(model, 1, [1, 5, 16]) == [10.0, 14.0, 20.0]  # nine are too few
    model.record(1, 7, 14.0 + 4.0, 0.0)
    assert times(model, 1, [1, 5, 16]) == [10.5, 18.0, 28.0]  # half a millisecond a row
    for _ in range(10):
        model.record(1, 16, 20.0 + 2.0, 0.0)
    assert times(model, 1, [1, 5, 16]) == [10.5, 18.0, 22.0]  # each size has its own
    assert times(StepTime(CURVE, graphs=False), 1, [12]) == [17.0]


@pytest.mark.parametrize("graphs", [True, False])
def test_what_small_steps_take_more(graphs: bool) -> None:
    """What small steps take once is counted for every row of large ones: drafts look too dear."""
    model = StepTime(CURVE, graphs=graphs)
    for _ in range(10):
        model.record(1, 2, 11.0 + 4.0, 0.0)
        model.record(1, 16, 20.0 - 1.0, 0.0)
    assert times(model, 1, [1, 2, 16]) == [12.0, 15.0, 19.0]


def test_between_sizes() -> None:
    """A step between two known sizes has the excess of neither, or of one."""
    model = StepTime({8: 10.0, 16: 20.0, 32: 40.0}, graphs=False)
    for _ in range(10):
        model.record(1, 8, 10.0 + 2.0, 0.0)
        model.record(1, 16, 20.0 + 4.0, 0.0)
    assert times(model, 1, [4, 8, 12, 16, 32]) == [11.0, 12.0, 18.0, 24.0, 48.0]


def test_faster_than_the_curve() -> None:
    """Rows that cost less than those of the curve are taken for as dear; or a curve measured on a
    busy machine makes steps free."""
    model = StepTime(CURVE, graphs=True)
    for _ in range(10):
        model.record(1, 8, 14.0 - 4.0, 0.0)
    assert times(model, 1, [1, 8, 16]) == [9.5, 10.0, 16.0]
    for _ in range(20):
        model.record(1, 8, 0.5, 0.0)
    assert times(model, 1, [1, 8, 16]) == [10.0 - 13.5 / 8, 7.0, 10.0]  # no less than half


def test_old_steps_are_forgotten() -> None:
    """What was true an hour ago counts for ever, or memory grows with every step."""
    model = StepTime(CURVE, graphs=True)
    for _ in range(100):
        model.record(1, 16, 20.0 + 16 * 9.0, 0.0)
    for _ in range(5000):
        model.record(1, 8, 14.0 + 2.0, 0.0)
    assert times(model, 1, [8, 16]) == [16.0, 24.0]
    assert len(model._excess) == sum(map(len, model._excess_by_size.values())) == 5000


def test_windows_against_a_plain_count() -> None:
    """The medians kept from step to step drift away from those of the samples."""
    rng = random.Random("windows against a plain count")
    model, seen = StepTime(CURVE, graphs=True), []
    for _ in range(7000):
        rows, excess = rng.choice([1, 3, 7, 16]), rng.choice([rng.random(), 0.5])
        size = min(size for size in CURVE if size >= rows)
        model.record(1, rows, CURVE[size] + excess, 0.0)
        seen.append((size, excess))
    sizes = [1, 4, 8, 16]
    expected = [CURVE[s] + median(x for t, x in seen[-5000:] if t == s) for s in sizes]
    assert times(model, 1, sizes) == pytest.approx(expected)


@pytest.mark.parametrize("graphs", [True, False])
def test_a_stalled_step_changes_nothing(graphs: bool) -> None:
    """One step that took ten times as long changes how many drafts are verified."""
    rates = [[0.8, 0.5, 0.3, 0.1]] * 3

    def choices(stalled: bool) -> Iterator[int]:
        model, noise = StepTime(CURVE, graphs=graphs), random.Random("noise")
        truth = StepTime(CURVE, graphs=graphs).of_rows(3)
        for step in range(60):
            slow = 10.0 if stalled and step % 12 == 11 else 1.0
            rows = 3 + 4 * (step % 3)
            time = model.of_rows(3)
            assert time is not None and truth is not None
            if step > 40:
                yield choose_budget(rates, time, 16)
            forward = float(truth(np.array([rows]))[0]) * (1 + 0.01 * noise.random())
            model.record(3, rows, slow * forward, slow * 2.0)

    assert list(choices(stalled=True)) == list(choices(stalled=False))


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300, -math.inf, -1.0, 0.0])
def test_times_that_are_none(bad: float) -> None:
    """A clock that was set back, or a timer that failed, spoils all later choices."""
    model = StepTime(CURVE, graphs=True)
    for _ in range(20):
        model.record(1, 8, 15.0, 1.0)
    expected = times(model, 1, [1, 8, 16])
    for _ in range(20):
        model.record(1, 8, bad, 1.0)
        model.record(1, 8, 15.0, bad if bad else math.nan)
        model.record(1, 17, 1000.0, 1.0)  # no graph: nothing is known of such steps
    assert times(model, 1, [1, 8, 16]) == expected


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    curve=st.dictionaries(st.integers(1, 500), st.floats(1e-3, 1e4), min_size=1, max_size=9),
    steps=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 600), st.floats(), st.floats()), max_size=60
    ),
    graphs=st.booleans(),
)
def test_times_are_times(
    curve: Curve, steps: list[tuple[int, int, float, float]], graphs: bool
) -> None:
    """Whatever was recorded, a predicted time is negative, infinite without need, or no number."""
    model = StepTime(curve, graphs=graphs)
    for step in steps:
        model.record(*step)
    largest = max(curve)
    rows = [*range(1, 600, 7), largest]
    found = np.array(times(model, 2, rows))
    possible = np.array([not graphs or num <= largest for num in rows])
    assert (found > 0).all()
    assert np.isfinite(found[possible]).all()
    assert np.isinf(found[~possible]).all()


def test_a_curve_of_no_times() -> None:
    """Our own mistake passes in silence: a time of 0 makes a step infinitely good."""
    for ms in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(AssertionError, match="positive"):
            StepTime({1: ms}, graphs=True)
