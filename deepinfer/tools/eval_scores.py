"""Figures with their confidence intervals, as lines of a table and as JSON.

Knows statistics. Does not know what was measured.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any, Final, Literal

# Of a normal distribution this far on both sides of the mean is 95 %.
_Z: Final = 1.959964
Unit = Literal["%", "points", "tokens", ""]


@dataclass(frozen=True)
class Line:
    """A measured figure. low, high: its 95 % interval. num_cases: what it is the mean of.

    Shares and differences of shares are in percent.
    """

    name: str
    value: float
    low: float
    high: float
    num_cases: int
    unit: Unit = ""


def wilson(num_right: int, num_cases: int) -> tuple[float, float]:
    """The 95 % interval of a share, from 0 to 1 (Wilson's score); all of it without cases."""
    if not num_cases:
        return 0.0, 1.0
    share, z2 = num_right / num_cases, _Z**2 / num_cases
    centre = share + z2 / 2
    spread = _Z * math.sqrt(share * (1 - share) / num_cases + z2 / (4 * num_cases))
    return max(0.0, (centre - spread) / (1 + z2)), min(1.0, (centre + spread) / (1 + z2))


def share(name: str, right: Sequence[bool]) -> Line:
    """How many of the cases are right."""
    low, high = wilson(sum(right), len(right))
    value = sum(right) / len(right) if right else 0.0
    return Line(name, 100 * value, 100 * low, 100 * high, len(right), "%")


def mean(name: str, values: Sequence[float], unit: Unit = "") -> Line:
    """The mean of independent values; its interval is that of many values, and wide for few."""
    value, spread = fmean(values), _spread(values)
    return Line(name, value, value - spread, value + spread, len(values), unit)


def paired(name: str, first: Sequence[bool], second: Sequence[bool]) -> Line:
    """How many points the second is worse than the first on the same cases."""
    lost = [100.0 * (a - b) for a, b in zip(first, second, strict=True)]
    return mean(name, lost, "points")


def perplexity(name: str, losses: Sequence[float]) -> Line:
    """exp of the mean loss. losses: the mean of each passage, all passages being equally long."""
    line = mean(name, losses)
    low, value, high = (math.exp(one) for one in (line.low, line.value, line.high))
    return Line(name, value, low, high, line.num_cases)


def rise(name: str, before: Sequence[float], after: Sequence[float]) -> Line:
    """By how many percent the perplexity is higher, passage by passage."""
    line = mean(name, [b - a for a, b in zip(before, after, strict=True)])
    low, value, high = (100 * math.expm1(one) for one in (line.low, line.value, line.high))
    return Line(name, value, low, high, line.num_cases, "%")


def calibration_error(name: str, said: Sequence[float], came: Sequence[bool], bins: int) -> Line:
    """Mean distance between what was said to be likely and how often it came, bin by bin.

    said: probabilities. It has no interval: low and high are the figure itself.
    """
    groups: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for probability, happened in zip(said, came, strict=True):
        groups[min(bins - 1, int(probability * bins))].append((probability, happened))
    distance = sum(
        abs(sum(happened for _, happened in group) - sum(p for p, _ in group)) for group in groups
    )
    value = distance / len(said) if said else math.nan
    return Line(name, value, value, value, len(said))


def as_text(line: Line) -> str:
    """One line of the table."""
    digits = 1 if line.unit in ("%", "points") else 3
    figures = (f"{one:.{digits}f}" for one in (line.value, line.low, line.high))
    value, low, high = figures
    unit = f" {line.unit}" if line.unit else ""
    return f"{line.name:<52} {value:>9}{unit:<7} [{low}, {high}]  n = {line.num_cases}"


def as_json(line: Line) -> dict[str, Any]:
    """The line's fields, rounded to what a reader can use; what is no number is null."""
    found = asdict(line)
    for name in ("value", "low", "high"):
        found[name] = round(found[name], 4) if math.isfinite(found[name]) else None
    return found


def _spread(values: Sequence[float]) -> float:
    return _Z * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
