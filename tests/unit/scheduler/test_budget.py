"""Shares of a step's rows."""

import random

import pytest

from deepinfer.scheduler.budget import share_rows


@pytest.mark.parametrize(
    ("needs", "budget", "rows"),
    [
        ([1, 1, 20, 3], 8, [1, 1, 3, 3]),
        ([1, 1, 20, 3], 9, [1, 1, 4, 3]),
        ([5, 5], 10, [5, 5]),
        ([5, 5], 11, [5, 5]),
        ([9, 9, 9], 3, [1, 1, 1]),
        ([9, 9, 9], 8, [4, 2, 2]),
        ([2, 9, 9, 2], 13, [2, 5, 4, 2]),
        ([], 4, []),
    ],
)
def test_by_hand(needs: list[int], budget: int, rows: list[int]) -> None:
    """What one does not need is lost, or an older request gets less than a younger one."""
    assert share_rows(needs, budget) == rows


def test_nobody_starves() -> None:
    """K07: somebody gets no row, rows are lost, or one gets more while another one could use it."""
    rng = random.Random(7)
    for _ in range(2000):
        needs = [rng.choice([1, 1, 1, rng.randint(1, 300)]) for _ in range(rng.randint(1, 30))]
        budget = rng.randint(len(needs), 400)
        rows = share_rows(needs, budget)
        assert all(1 <= got <= need for got, need in zip(rows, needs, strict=True))
        assert sum(rows) == min(budget, sum(needs))
        unserved = [got for got, need in zip(rows, needs, strict=True) if got < need]
        # Equal but for the rows that cannot be divided: fewer than there are unserved requests.
        assert sum(got - min(unserved) for got in unserved) <= len(unserved)


def test_more_requests_than_rows() -> None:
    """Our own mistake passes in silence, and a request waits for ever."""
    with pytest.raises(AssertionError, match="3 requests, 2 rows"):
        share_rows([1, 1, 1], 2)
