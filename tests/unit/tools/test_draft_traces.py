"""Drafts replayed from traces."""

import numpy as np
import pytest

from deepinfer.tools.draft_traces import Trace, least_budget, replay


def trace(leading: list[int], rates: list[list[float]]) -> Trace:
    return Trace(np.array(leading), np.array(rates))


def test_a_replay_by_hand():
    """A round goes on at the wrong place, or counts drafts that it did not verify."""
    text = trace([2, 0, 1, 0, 2], [[0.9, 0.5]] * 5)
    full = replay([text], 1, None, turns=1)
    # Places 0 (2 right), 3 (none), 4 (2 right).
    assert (full.num_rounds, full.verified, full.accepted) == (3, 6, 4)
    assert full.rejected == 2
    assert full.accepted_len == pytest.approx(1 + 4 / 3)
    one = replay([text], 1, 1, turns=1)
    # Places 0 (1 of 2), 2 (1), 4 (1 of 2).
    assert (one.num_rounds, one.verified, one.accepted) == (3, 3, 3)


def test_a_budget_goes_to_the_likelier_sequence():
    """Drafts are shared equally, whatever the confidence."""
    good, bad = trace([2, 0, 0], [[0.9, 0.8]] * 3), trace([0, 0, 0], [[0.2, 0.1]] * 3)
    found = replay([good, bad], 2, 1, turns=1)
    # The first round verifies both drafts of the good one, which ends it; one alone is no batch.
    assert (found.num_rounds, found.verified, found.accepted) == (2, 2, 2)


def test_the_least_budget_keeps_the_share():
    """Saved drafts cost more tokens than was said."""
    good, bad = trace([2] * 9, [[0.9, 0.8]] * 9), trace([0] * 9, [[0.2, 0.1]] * 9)
    budget, kept, full = least_budget([good, bad], 2, 0.97)
    assert budget < 2
    assert kept.accepted_len >= 0.97 * full.accepted_len
    assert kept.rejected < full.rejected


def test_traces_of_all_lengths_end_together() -> None:
    """Two places are free and one trace is left."""
    texts = [trace([1] * length, [[0.9, 0.8]] * length) for length in range(1, 12)]
    for batch in (1, 2, 3, 7, 11, 20):
        found = replay(texts, batch, 1.5)
        assert found.num_rounds % batch == 0
        assert found.accepted <= found.verified
