"""Steps at a context that was never computed, and the table of their times."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from deepinfer.bench.engine import StepTime, bench_engine, growth, step_lines
from deepinfer.bench.steps import Case
from deepinfer.step import StepPlan
from deepinfer.worker.worker import Worker
from tests.unit.bench.small import small_network

TIME = StepTime(Case(8, 512), 1, 10, step_ms=6.0, best_step_ms=5.0, bare_ms=3.0, best_bare_ms=2.0)


def test_step_is_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """O02: another batch, context or number of rows is measured than the table says."""
    plans: list[StepPlan] = []
    launch = Worker.launch

    def spy(self: Worker, plan: StepPlan) -> None:
        plans.append(plan)
        launch(self, plan)

    monkeypatch.setattr(Worker, "launch", spy)
    cases = (Case(3, 200), Case(1, 0, num_rows=20))
    found = list(bench_engine(small_network(), cases, num_threads=1, num_repeats=2))
    assert [t.case for t in found] == list(cases)
    assert all(t.step_ms >= t.best_step_ms > 0 and t.bare_ms >= t.best_bare_ms > 0 for t in found)
    shapes = {(len(p.num_rows), p.num_computed[0].item(), p.num_rows[0].item()) for p in plans}
    assert shapes == {(3, 200, 1), (1, 0, 20)}
    assert all(len(p.sample_rows) == len(p.num_rows) for p in plans)
    assert len(plans) == 2 * (2 + 1 + 2)  # warm-ups, the recorded one, repeats


def test_figures_of_the_table() -> None:
    """The ratio is upside down, or rows a second count steps."""
    assert TIME.ratio == 2.0
    assert TIME.rows_per_s == pytest.approx(8 / 0.006)
    longer = replace(TIME, case=Case(8, 4096), step_ms=7.5)
    prompt = replace(TIME, case=Case(8, 0, num_rows=64), step_ms=100.0)
    assert growth([longer, TIME, prompt], 8) == 1.25
    assert growth([TIME, prompt], 8) is None


def test_lines_come_one_by_one() -> None:
    """A measurement of minutes shows nothing until it has ended."""
    asked: list[int] = []

    def times() -> Iterator[StepTime]:
        for number in range(2):
            asked.append(number)
            yield TIME

    lines = step_lines(times())
    next(lines)
    assert asked == []
    assert "decode, batch 8" in next(lines)
    assert asked == [0]
