"""The simulation has the published shape, and the schedule pays in it."""

from statistics import fmean

import numpy as np
import pytest

from deepinfer.bench.draft_simulation import (
    CURVES,
    Acceptance,
    Outcome,
    _draft,
    simulate,
    simulation_lines,
)

# Published: tokens a step of a sequence, by 5 fixed drafts and by confidence.
FIXED, CONFIDENCE = 3.29, 3.20
# The middle of the published 3.2 to 4.4.
VERIFIED = 3.8
SEEDS = range(3)


def outcomes(
    curve: str, num_sequences: int, fixed: int | None, num_steps: int = 300
) -> list[Outcome]:
    return [
        simulate(
            Acceptance(),
            num_sequences,
            fixed,
            forward_ms=CURVES[curve],
            num_steps=num_steps,
            seed=seed,
        )
        for seed in SEEDS
    ]


def test_published_shape() -> None:
    """Another acceptance than the published one is simulated, or confidences that tell more."""
    found = outcomes("kernels as measured", 400, 5, num_steps=100)
    assert fmean(one.emitted for one in found) == pytest.approx(FIXED, abs=0.03)
    assert all(one.verified == 5 for one in found)
    num_sequences, rng = 100_000, np.random.default_rng(0)
    rates = _draft(Acceptance(), rng.standard_normal(num_sequences), rng).rates
    likeliest = np.sort(rates, axis=None)[::-1][: int(VERIFIED * num_sequences)]
    assert 1 + rates.sum() / num_sequences == pytest.approx(FIXED, abs=0.01)
    assert 1 + likeliest.sum() / num_sequences == pytest.approx(CONFIDENCE, abs=0.01)


def test_confidences_are_right_on_average_only() -> None:
    """The simulated head knows too much, or promises what does not come."""
    rng = np.random.default_rng(0)
    found = _draft(Acceptance(), rng.standard_normal(200_000), rng)
    first, good = found.rates[:, 0], found.num_good >= 1
    for low in (0.1, 0.3, 0.5, 0.7, 0.9):
        near = (first > low - 0.05) & (first < low + 0.05)
        assert good[near].mean() == pytest.approx(first[near].mean(), abs=0.02)


@pytest.mark.parametrize("curve", CURVES)
def test_gain(curve: str) -> None:
    """With 60 sequences less than published is gained; with 16 something is lost."""
    gains = {}
    for num_sequences in (60, 16):
        pairs = zip(
            outcomes(curve, num_sequences, None), outcomes(curve, num_sequences, 5), strict=True
        )
        gains[num_sequences] = fmean(ours.tokens_per_s / all5.tokens_per_s for ours, all5 in pairs)
    assert gains[60] > 1.04
    assert gains[16] > 1.0  # although the schedule's own time is charged in full


def test_fewer_rejected() -> None:
    """Rows go to drafts that are rejected: the schedule saves at random, not by confidence."""
    all5 = outcomes("limits of the hardware", 60, 5)
    ours = outcomes("limits of the hardware", 60, None)
    wasted = [fmean(1 + one.verified - one.emitted for one in found) for found in (all5, ours)]
    assert wasted[1] < 0.6 * wasted[0]
    assert fmean(one.emitted for one in ours) > 0.93 * fmean(one.emitted for one in all5)


def test_flat_times() -> None:
    """Where rows cost nothing, drafts are left out all the same."""
    for seed in SEEDS:
        ours = simulate(
            Acceptance(), 4, None, forward_ms={1: 1e4, 64: 1e4}, num_steps=100, seed=seed
        )
        assert ours.verified > 4.9


def test_dear_rows() -> None:
    """Where a row costs as much as a step, drafts are verified that seldom pay."""
    rising = {1: 10.0, 400: 4000.0}
    ours = simulate(Acceptance(), 16, None, forward_ms=rising, num_steps=200, seed=0)
    others = [
        simulate(Acceptance(), 16, fixed, forward_ms=rising, num_steps=200, seed=0)
        for fixed in range(6)
    ]
    assert ours.verified < 1.5
    assert ours.tokens_per_s > 0.99 * max(one.tokens_per_s for one in others)


def test_report() -> None:
    """A line is missing, or a gain stands beside the figures of another schedule."""
    lines = list(simulation_lines(num_steps=3))
    assert sum("published" in line for line in lines) == 2 * len(CURVES)
    assert sum("fixed" in line for line in lines) == 6 * 2 * len(CURVES)
    all5 = [line for line in lines if "fixed 5" in line]
    assert all("+0.0 % (+0.0 to +0.0)" in line and " 5.00 " in line for line in all5)
    assert np.all([len(line) <= 100 for line in lines])
