"""Recorded steps change no answer: padding and inputs that stay in place, without a GPU.

The recorder here runs the function again where a graph would be replayed, on the same tensors, and
leaves the result where the first one was: what a graph does to whoever holds it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.model.network import Network
from deepinfer.tokenizer.tokenizer import Tokenizer
from deepinfer.worker.recorded import RecordedSteps, step_size
from tests.laws.drafters import DRAFTERS, with_drafter
from tests.laws.engines import Alone, Drafts, Job, run_jobs
from tests.laws.test_engine import MODES, REPERTOIRE, check_company, companies, engine_of

T = TypeVar("T")


def rerun(function: Callable[[], T]) -> Callable[[], T]:
    """As `record_graph` records, on a CPU."""
    kept: list[Any] = []

    def replay() -> Any:
        new = function()
        if not kept:
            kept.append(new)
        parts = zip(kept[0], new, strict=True) if isinstance(new, tuple) else [(kept[0], new)]
        for old, one in parts:
            old.copy_(one.clone())
        return kept[0]

    return replay


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None, derandomize=True)
@given(
    company=companies(),
    num_drafts=st.integers(0, 5),
    schedule=st.sampled_from(["fixed", "fixed", "confidence"]),
    drafter=st.sampled_from([None, *DRAFTERS]),
    num_rows=st.sampled_from([9, 40, 512]),
    num_blocks=st.sampled_from([5, 64]),
    num_slots=st.sampled_from([2, 8]),
    is_ahead=st.booleans(),
)
def test_any_company(
    tiny_networks: dict[str, Network],
    tokenizer: Tokenizer,
    alone: Alone,
    mode: str,
    company: tuple[list[int], list[Job]],
    num_drafts: int,
    schedule: Any,
    drafter: str | None,
    **sizes: Any,
) -> None:
    """An answer shows the rows that a step was padded with, or what an earlier step left."""
    numbers, jobs = company
    drafts = Drafts(num_drafts, schedule if num_drafts else "off")
    engine = engine_of(tiny_networks, mode, drafts=drafts, record=rerun, **sizes)
    expected = [alone(mode, number) for number in numbers]
    if num_drafts and drafter is not None:
        with_drafter(engine, drafter, expected)
    outputs = run_jobs(engine, tokenizer, jobs)
    engine.close()
    for job, output, one in zip(jobs, outputs, expected, strict=True):
        check_company(output, one, job.aborted is not None)


def test_steps_are_recorded(
    tiny_networks: dict[str, Network],
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every step runs op by op after all, and nobody sees it but in the time; or prompts are taken
    for decode steps."""
    sizes = []
    run = RecordedSteps.run

    def watched(self: RecordedSteps, numbers: Any, exact: Tensor, token_ids: Tensor) -> Any:
        hidden = run(self, numbers, exact, token_ids)
        sizes.append((len(token_ids), hidden is not None))
        assert (step_size(numbers) is not None) == (hidden is not None)
        return hidden

    monkeypatch.setattr(RecordedSteps, "run", watched)
    recorded: list[Callable[[], Any]] = []

    def record(function: Callable[[], Any]) -> Callable[[], Any]:
        recorded.append(function)
        return rerun(function)

    engine = engine_of(tiny_networks, next(iter(MODES)), record=record)
    run_jobs(engine, tokenizer, [REPERTOIRE[0], REPERTOIRE[0]])
    assert {is_one for rows, is_one in sizes if rows <= 2} == {True}
    assert not any(is_one for rows, is_one in sizes if rows > 8 * 2)
    assert recorded
