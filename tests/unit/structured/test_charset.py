"""Sets of characters, against Python's sets."""

from itertools import pairwise
from random import Random

from deepinfer.structured import charset
from deepinfer.structured.charset import ALL, EMPTY, CharSet

EDGES = (0, 1, 2, 0x61, 0x62, 0xD7FE, 0xD7FF, 0xE000, 0xE001, 0x10FFFE, 0x10FFFF)


def random_set(random: Random) -> tuple[CharSet, set[int]]:
    codes = {code for code in EDGES if random.random() < 0.5}
    return charset.of("".join(map(chr, codes))), codes


def holds(chars: CharSet) -> set[int]:
    """Those of EDGES that are in the set; and the set is written as it must be."""
    assert all(low <= high for low, high in chars)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(chars))
    assert not any(low <= 0xDFFF and high >= 0xD800 for low, high in chars)
    return {code for code in EDGES if charset.contains(chars, code)}


def test_operations():
    """A set operation off by one at a range's end: a character too many in every mask."""
    random = Random(1)
    for _ in range(300):
        (a, in_a), (b, in_b) = random_set(random), random_set(random)
        assert holds(charset.union(a, b)) == in_a | in_b
        assert holds(charset.intersect(a, b)) == in_a & in_b
        assert holds(charset.subtract(a, b)) == in_a - in_b
        assert holds(charset.complement(a)) == set(EDGES) - in_a
        assert charset.complement(charset.complement(a)) == a
        assert charset.size(a) == len(in_a)


def test_surrogates_are_no_characters():
    """Half a character let into a set: output that is not UTF-8."""
    assert charset.of("\ud800\udfff") == EMPTY
    assert charset.char_range(0xD000, 0xE100) == ((0xD000, 0xD7FF), (0xE000, 0xE100))
    assert charset.complement(EMPTY) == ALL
    assert charset.complement(ALL) == EMPTY
    assert charset.size(ALL) == 0x110000 - 0x800


def test_ranges():
    """A range written backwards that wraps around, and neighbours that are not joined."""
    assert charset.char_range(5, 4) == EMPTY
    assert charset.of("bca") == ((97, 99),)
    assert charset.from_ranges([(5, 9), (0, 4), (7, 8)]) == ((0, 9),)
