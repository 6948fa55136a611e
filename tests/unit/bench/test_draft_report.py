"""What `deepinfer bench` says of drafts."""

import json

import numpy as np

from deepinfer.bench.report import draft_lines, draft_record
from deepinfer.scheduler.draft_stats import DraftStats


def some_stats() -> DraftStats:
    stats = DraftStats()
    stats.drafted(10)
    stats.step()
    stats.round(np.array([0.95, 0.85, 0.35], np.float32), 3, 1, 2)
    stats.round(np.array([0.95, 0.85], np.float32), 2, 2, 3)
    return stats


def test_lines() -> None:
    """Drafts are counted and not told, or told where there are none."""
    assert list(draft_lines(DraftStats())) == []
    first, by_place, calibration = draft_lines(some_stats())
    assert "10 proposed, 5 verified, 3 accepted; 2.50 tokens" in first
    assert by_place.endswith("100 %, 50 %, 0 %")
    assert calibration.endswith("0.85: 0.50 (2), 0.95: 1.00 (2)")


def test_record() -> None:
    """JSON that no program can read, or that leaves something out."""
    record = json.loads(json.dumps(draft_record(some_stats())))
    assert record["verified_by_slot"] == [2, 2, 1]
    assert record["accepted_by_slot"] == [2, 1, 0]
    assert (record["num_drafted"], record["num_verified"], record["num_accepted"]) == (10, 5, 3)
    assert (record["accepted_len"], record["tokens_per_step"]) == (2.5, 5.0)
    assert len(record["calibration"]) == 2
