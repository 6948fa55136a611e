"""Scores of a prompt that comes in several steps, while somebody leaves or interrupts."""

import pytest

from deepinfer.engine.loading import LoadedModel
from tests.unit.engine.test_engine import SCORED, random_ids


def test_an_abort_takes_the_scores_along(either: LoadedModel) -> None:
    """K04: scores of a prompt come for a request that is gone, or for another of the same name."""
    engine = either.engine
    for _ in range(2):
        engine.submit("it", random_ids(1100), SCORED)
        # A step that was under way for the one before may bring nothing.
        (first,) = engine.step() or engine.step()
        assert [one.token_id for one in first.prompt_logprobs] == random_ids(1100)[1:513]
        engine.abort("it")
    engine.submit("it", random_ids(40), SCORED)
    found = []
    while engine.has_work:
        found += [one.token_id for delta in engine.step() for one in delta.prompt_logprobs]
    assert found == random_ids(40)[1:]


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("place", ["launch", "start_sample"])
def test_an_interrupt_loses_no_scores(
    call: int, place: str, either: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10, K04: scores of a prompt are missing behind a step that was broken off, or come twice."""
    engine, ids = either.engine, random_ids(1100)
    function, calls = getattr(engine.worker, place), []

    def interrupted(plan: object) -> object:
        calls.append(plan)
        if len(calls) == call:
            raise KeyboardInterrupt
        return function(plan)

    monkeypatch.setattr(engine.worker, place, interrupted)
    engine.submit("it", ids, SCORED)
    found, num_interrupts = [], 0
    while engine.has_work:
        try:
            found += [one.token_id for delta in engine.step() for one in delta.prompt_logprobs]
        except KeyboardInterrupt:
            num_interrupts += 1
    assert num_interrupts == 1
    assert found == ids[1:]
