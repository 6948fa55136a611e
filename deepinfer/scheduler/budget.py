"""How the rows of a step are shared. A pure function; knows numbers only."""

from collections.abc import Iterable, Sequence


def share_rows(needs: Sequence[int], budget: int) -> list[int]:
    """Rows for each request: equal shares of `budget`, never more than it needs.

    needs: rows each could use, at least 1, the oldest request first; no more requests than
    `budget`, so that each gets at least one row. What one does not need goes to the others; what
    cannot be divided goes to the oldest that can use it.

    Example: share_rows([1, 1, 20, 3], 8) is [1, 1, 3, 3]: two requests that generate need one row
    each, a prompt with 3 tokens left needs no more than its share of the other 6, and so the long
    one has 3 as well. With a budget of 9 the long one gets the row that is left: [1, 1, 4, 3].
    """
    assert len(needs) <= budget, f"{len(needs)} requests, {budget} rows"
    if sum(needs) <= budget:
        return list(needs)
    level, left = _water_level(needs, budget)
    rows = [min(need, level) for need in needs]
    for place, need in enumerate(needs):
        if not left:
            break
        extra = min(need - rows[place], left)
        rows[place] += extra
        left -= extra
    return rows


def _water_level(needs: Sequence[int], budget: int) -> tuple[int, int]:
    """(largest equal share that the budget allows, rows that are left then)."""
    left = budget
    for place, need in enumerate(sorted(needs)):
        num_others = len(needs) - place
        level = left // num_others
        if need > level:
            return level, left - level * num_others
        left -= need
    raise AssertionError("the budget is enough for all")


def demand_of(needs: Iterable[int]) -> tuple[int, int]:
    """(rows that all could use together, how many of them could use more than one)."""
    counts = list(needs)
    return sum(counts), sum(need > 1 for need in counts)
