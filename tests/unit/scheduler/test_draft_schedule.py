"""Which drafts are verified: the best number, always prefixes, and blind to what must not count."""

import doctest
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.scheduler import draft_schedule
from deepinfer.scheduler.draft_schedule import (
    choose_budget,
    fill_rates,
    share_drafts,
    survival_rates,
)

steady = settings(max_examples=200, deadline=None, derandomize=True)
# Few values, so that equal rates are common; products of them are exact.
confidences = st.lists(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), max_size=5), min_size=1, max_size=12
)


def rates_of(confidence: list[list[float]]) -> list[np.ndarray]:
    return [survival_rates(row) for row in confidence]


def best_by_search(rates: list[np.ndarray], time: dict[int, float], max_rows: int) -> int:
    """Every m in turn; a later one wins only if it is strictly better."""
    flat = sorted((rate for row in rates for rate in row.tolist()), reverse=True)
    num = len(rates)
    best, best_gain = 0, num / time[num]
    for m in range(1, len(flat) + 1):
        gain = (num + sum(flat[:m])) / time[num + m]
        if num + m <= max_rows and gain > best_gain:
            best, best_gain = m, gain
    return best


def test_worked_example() -> None:
    """The example that explains the choice is wrong, and readers learn another rule."""
    failed, attempted = doctest.testmod(draft_schedule)
    assert attempted >= 3
    assert failed == 0


def test_rates() -> None:
    """A draft is believed in though one before it is surely wrong; a bad row spoils the choice."""
    np.testing.assert_allclose(survival_rates([0.5, 0.5, 1.0]), [0.5, 0.25, 0.25])
    np.testing.assert_allclose(survival_rates([0.5, 0.0, 0.9]), [0.5, 0.0, 0.0])
    np.testing.assert_allclose(survival_rates([0.5, math.nan, 0.9]), [0.5, 0.0, 0.0])
    np.testing.assert_allclose(survival_rates([[1.0, 0.5], [0.25, 1.0]]), [[1, 0.5], [0.25, 0.25]])
    assert survival_rates([]).shape == (0,)


def test_missing_rates() -> None:
    """A new sequence gets no rows for its drafts, or one without drafts counts as if it had any."""
    known = survival_rates([0.5, 0.5, 0.5])
    filled = fill_rates([None, None, known, known, known, []], [2, 0, 2, 3, 5, 1])
    assert filled == [
        [1.0, 1.0],
        [],
        [0.5, 0.25],
        [0.5, 0.25, 0.125],
        [0.5, 0.25, 0.125, 0.125, 0.125],
        [1.0],
    ]


@steady
@given(
    confidence=confidences,
    times=st.lists(st.integers(1, 40), min_size=80, max_size=80),
    max_rows=st.integers(0, 80),
)
def test_budget_is_the_best(confidence: list[list[float]], times: list[int], max_rows: int) -> None:
    """Steps are longer or shorter than pays, whatever the curve: dents, plateaus, any bound."""
    rates = rates_of(confidence)
    time = {rows: 2.0**-3 * ms for rows, ms in enumerate(times)}
    found = choose_budget(rates, lambda rows: np.array([time[b] for b in rows.tolist()]), max_rows)
    assert found == best_by_search(rates, time, max_rows)


def test_first_of_equal_budgets() -> None:
    """Rows are run that bring nothing: two sizes are equally good, or a draft is never emitted."""
    # E(m) / time: 1 / 1, 2 / 2, 3 / 3: all equal.
    assert choose_budget([[1.0, 1.0]], lambda rows: rows.astype(float), 10) == 0
    assert choose_budget([[1.0, 0.0]], lambda rows: np.full(rows.shape, 3.0), 10) == 1


def test_no_times() -> None:
    """Without a curve nothing is verified, or more than a step may have."""
    rates = [[0.5, 0.1], [0.2, 0.0, 0.0]]
    assert choose_budget(rates, None, max_rows=100) == 5
    assert choose_budget(rates, None, max_rows=5) == 3
    assert choose_budget(rates, None, max_rows=1) == 0
    assert choose_budget(rates, None, max_rows=100, num_other_rows=97) == 1


def test_impossible_sizes() -> None:
    """A step is planned that no graph can run: its time is infinite."""
    rates = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert choose_budget(rates, lambda rows: np.where(rows > 4, np.inf, 1.0), 100) == 2
    assert choose_budget(rates, lambda rows: np.full(rows.shape, np.inf), 100) == 0


def test_other_rows_are_paid_for() -> None:
    """Beside a long prompt a row costs next to nothing, and drafts stay unverified all the same."""
    rates = [[0.4, 0.2, 0.1]]

    def time(rows: np.ndarray) -> np.ndarray:
        return rows.astype(float)

    assert choose_budget(rates, time, 1000) == 0
    assert choose_budget(rates, time, 1000, num_other_rows=500) == 3


@steady
@given(confidence=confidences, num_drafts=st.integers(0, 70))
def test_shares(confidence: list[list[float]], num_drafts: int) -> None:
    """A draft is verified without the one before it, rows are lost, or a worse draft goes first."""
    rates = rates_of(confidence)
    order = sorted(
        (-rate, place, draft)
        for place, row in enumerate(rates)
        for draft, rate in enumerate(row.tolist())
    )
    chosen = order[:num_drafts]
    shares = share_drafts(rates, num_drafts)
    assert shares.dtype == np.int32
    assert shares.shape == (len(rates),)
    assert shares.sum() == min(num_drafts, len(order))
    # Prefixes: those chosen of a sequence are its first ones, no hole.
    assert {(place, draft) for _, place, draft in chosen} == {
        (place, draft) for place, share in enumerate(shares.tolist()) for draft in range(share)
    }


def test_ties_go_to_the_earlier() -> None:
    """Equal rates are shared one way on the host and another on the device."""
    rates = [[0.5, 0.5], [0.5, 0.5], [1.0, 0.5]]
    assert [share_drafts(rates, num).tolist() for num in range(7)] == [
        *([0, 0, 0], [0, 0, 1], [1, 0, 1], [2, 0, 1]),
        *([2, 1, 1], [2, 2, 1], [2, 2, 2]),
    ]


@steady
@given(confidence=confidences, num_drafts=st.integers(0, 60), data=st.data())
def test_causality(confidence: list[list[float]], num_drafts: int, data: st.DataObject) -> None:
    """Whether a draft is verified depends on what was computed from its value, and texts drift."""
    place = data.draw(st.integers(0, len(confidence) - 1))
    length = len(confidence[place])
    draft = data.draw(st.integers(0, max(0, length - 1)))
    after = data.draw(
        st.lists(st.floats(0, 1), min_size=length, max_size=length), label="other confidences"
    )
    changed = list(confidence)
    changed[place] = confidence[place][: draft + 1] + after[draft + 1 :]
    old = share_drafts(rates_of(confidence), num_drafts)[place]
    new = share_drafts(rates_of(changed), num_drafts)[place]
    assert min(old, draft + 1) == min(new, draft + 1)


def test_newest_rates_in_the_budget_would_not_be_causal() -> None:
    """The rule seems pointless: here is how the first draft would depend on the second one."""
    ms = np.array([0.0, 3.0, 5.0, 5.0])  # two drafts take no longer than one

    def verified(second: float) -> int:
        rates = [survival_rates([0.5, second])]
        return int(share_drafts(rates, choose_budget(rates, lambda rows: ms[rows], 10))[0])

    # Tokens per ms: 1 / 3, 1.5 / 5, (1.5 + 0.5 * second) / 5.
    assert (verified(0.0), verified(1.0)) == (0, 2)


@pytest.mark.parametrize("kind", ["array", "arrays", "lists"])
def test_every_form_of_rates(kind: str) -> None:
    """Rates are read in another order, or overwritten, by the form in which they come."""
    rng = random.Random("every form of rates")
    confidence = [[rng.random() for _ in range(5)] for _ in range(40)]
    array = survival_rates(confidence)
    rates = {"array": array, "arrays": list(array), "lists": array.tolist()}[kind]
    before = array.copy()
    assert choose_budget(rates, lambda b: 40.0 + b, 1000) == choose_budget(
        before, lambda b: 40.0 + b, 1000
    )
    np.testing.assert_array_equal(share_drafts(rates, 77), share_drafts(before, 77))
    np.testing.assert_array_equal(np.asarray(rates), before)


def test_nobody() -> None:
    """A step without sequences, or without drafts, breaks the choice."""
    assert choose_budget([], lambda b: 1.0 + b, 10) == 0
    assert choose_budget([[], []], lambda b: 1.0 + b, 10) == 0
    assert share_drafts([], 0).tolist() == []
    assert share_drafts([[], [0.5], []], 5).tolist() == [0, 1, 0]
