"""Sets of characters, as ranges of code points.

A set is a tuple of (first, last) pairs: both ends belong to it, the pairs are sorted, disjoint, and
never adjacent, so that equal sets are equal tuples. The characters are the Unicode scalar values:
the surrogates D800 to DFFF are no characters, and no set holds them. Knows no strings.
"""

from bisect import bisect_right
from collections.abc import Iterable

CharSet = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
EMPTY: CharSet = ()
ALL: CharSet = ((0, 0xD7FF), (0xE000, LAST))


def of(text: str) -> CharSet:
    """The characters of `text`; surrogates in it count for nothing."""
    return from_ranges((ord(one), ord(one)) for one in text)


def char_range(low: int, high: int) -> CharSet:
    """The characters low to high, both included; none if low is above high."""
    return from_ranges(((low, high),))


def from_ranges(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The characters in any of the ranges, which may overlap and come in any order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(part for one in ranges for part in _without_surrogates(*one)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def union(*sets: CharSet) -> CharSet:
    """The characters that are in any of the sets."""
    return from_ranges(one for chars in sets for one in chars)


def intersect(a: CharSet, b: CharSet) -> CharSet:
    """The characters that are in both."""
    both: list[tuple[int, int]] = []
    at_a = at_b = 0
    while at_a < len(a) and at_b < len(b):
        low = max(a[at_a][0], b[at_b][0])
        high = min(a[at_a][1], b[at_b][1])
        if low <= high:
            both.append((low, high))
        if a[at_a][1] < b[at_b][1]:
            at_a += 1
        else:
            at_b += 1
    return tuple(both)


def complement(a: CharSet) -> CharSet:
    """All characters that are not in `a`."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in a:
        gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, LAST))
    return from_ranges(gaps)


def subtract(a: CharSet, b: CharSet) -> CharSet:
    """The characters of `a` that are not in `b`."""
    return intersect(a, complement(b))


def contains(a: CharSet, code: int) -> bool:
    """Whether the character with this code point is in `a`."""
    place = bisect_right(a, (code, LAST + 1))
    return place > 0 and code <= a[place - 1][1]


def size(a: CharSet) -> int:
    """How many characters are in `a`."""
    return sum(high - low + 1 for low, high in a)


def _without_surrogates(low: int, high: int) -> list[tuple[int, int]]:
    parts = (low, min(high, 0xD7FF)), (max(low, 0xE000), high)
    return [part for part in parts if part[0] <= part[1]]
