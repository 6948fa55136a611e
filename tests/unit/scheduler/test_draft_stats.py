"""Counts of drafts: what is printed is what happened."""

import numpy as np
import pytest

from deepinfer.scheduler.draft_stats import DraftStats

SURE = np.array([0.95, 0.85, 0.05], np.float32)


def test_counts() -> None:
    """C04: acceptance of one place of the block is counted at another; an undecided draft counts
    as rejected."""
    stats = DraftStats()
    stats.drafted(6)
    stats.step()
    stats.round(SURE, 3, 1, 2)  # the second was rejected, so nobody knows of the third
    stats.round(SURE, 2, 2, 2)  # the text ended with the second
    stats.round(None, 0, 0, 1)
    assert (stats.num_drafted, stats.num_verified, stats.num_accepted) == (6, 5, 3)
    assert stats.verified_by_slot.tolist() == [2, 2, 1]
    assert stats.accepted_by_slot.tolist() == [2, 1, 0]
    assert stats.accepted_len == pytest.approx(5 / 3)
    assert stats.bins.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 2, 2]
    assert [(round(said, 2), true, count) for said, true, count in stats.calibration()] == [
        (0.85, 0.5, 2),
        (0.95, 1.0, 2),
    ]


def test_edges_of_bins() -> None:
    """A confidence of 1, or of a row that broke, has no bin."""
    stats = DraftStats()
    stats.round(np.array([1.0, np.nan, 0.0, 0.1], np.float32), 4, 4, 5)
    assert stats.bins.tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 0, 1]


def test_since() -> None:
    """A run counts what another did before it, or changes what was noted."""
    stats = DraftStats()
    stats.round(SURE, 1, 1, 2)
    before = stats.copy()
    stats.round(SURE, 3, 3, 4)
    assert before.num_verified == 1
    found = stats.since(before)
    assert (found.num_rounds, found.num_tokens, found.num_accepted) == (1, 4, 3)
    assert found.verified_by_slot.tolist() == [1, 1, 1]
    assert DraftStats().accepted_len == 0.0
    assert DraftStats().calibration() == []
