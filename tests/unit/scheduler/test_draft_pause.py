"""Whether to draft at all."""

import doctest

import numpy as np

from deepinfer.scheduler import draft_pause
from deepinfer.scheduler.draft_pause import DraftPause
from deepinfer.scheduler.step_time import StepTime

DEAR = 20.0  # milliseconds of drafts, beside steps of 11 and more


def pause_of(draft_ms: float, num_sequences: int = 2) -> DraftPause:
    step_time = StepTime({1: 11.0, 101: 111.0}, graphs=False)
    for _ in range(9):
        step_time.record(num_sequences, num_sequences, 10.0 + num_sequences, draft_ms)
    return DraftPause(step_time)


def wanted(pause: DraftPause, rates: list[float], num_sequences: int, num_steps: int) -> list[bool]:
    each = [np.array(rates)] * num_sequences
    return [pause.wants(each, max_rows=512) for _ in range(num_steps)]


def test_the_worked_example():
    """The docstring says what the code does not do."""
    failed, attempted = doctest.testmod(draft_pause)
    assert attempted > 4
    assert not failed


def test_drafts_that_pay_never_pause():
    """Good drafts are left out for a time."""
    assert all(wanted(pause_of(DEAR), [0.95, 0.9, 0.85, 0.8, 0.8], 2, 200))
    assert all(wanted(pause_of(1.0), [0.3, 0.1], 2, 200))


def test_drafts_that_cost_more_are_tried_now_and_then():
    """Bad drafts are made for ever, or are never tried again when they might have become good."""
    found = wanted(pause_of(DEAR), [0.3, 0.1], 2, 200)
    # 7 steps of trial, then one that decides, and 64 of pause.
    assert found == ([True] * 7 + [False] * 65) * 2 + [True] * 7 + [False] * 49
    pause = pause_of(DEAR)
    assert wanted(pause, [0.3, 0.1], 2, 8)[-1] is False
    assert all(wanted(pause, [0.99, 0.98, 0.97, 0.96, 0.95], 2, 90)[64:])


def test_one_bad_step_decides_nothing() -> None:
    """Good drafts are left out for long because all sequences were at a hard place at once."""
    pause, rng = pause_of(8.0, 1), np.random.default_rng(0)
    steps = [
        [0.95, 0.9, 0.85, 0.8, 0.8] if rng.random() < 0.7 else [0.05, 0.01] for _ in range(300)
    ]
    assert all(wanted(pause, rates, 1, 1)[0] for rates in steps)


def test_a_batch_that_shrinks_ends_a_pause():
    """One sequence that is left goes on without drafts, for whose sake a full batch paused."""
    pause = pause_of(DEAR, 8)
    assert wanted(pause, [0.3, 0.1], 8, 8)[-1] is False
    assert wanted(pause, [0.99, 0.98], 2, 3) == [True] * 3


def test_little_is_known():
    """New sequences, of which nothing is known, end drafts for all."""
    pause = pause_of(DEAR, 4)
    rates = [np.array([0.1, 0.1]), None, None, None]
    assert all(pause.wants(rates, max_rows=512) for _ in range(20))
    assert all(DraftPause(StepTime({}, graphs=False)).wants(rates, 512) for _ in range(20))
