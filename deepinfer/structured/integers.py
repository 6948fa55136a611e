"""JSON numbers within bounds, as regular languages.

An integer is spelled without leading zeros, plus sign, fraction or exponent, and zero without a
minus: 1.0 and 1e1 are integers to JSON Schema, but nobody needs these spellings to say what the
plain ones say. A decimal number has no exponent either; a fraction is optional. Knows no schema.
"""

import math
from fractions import Fraction
from functools import lru_cache

from deepinfer.structured import charset
from deepinfer.structured.automaton import (
    MAX_STATES,
    NOTHING,
    Dfa,
    TooManyStates,
    build,
    intersect,
    literals,
    subtract,
    union,
)
from deepinfer.structured.charset import CharSet

DIGITS = [charset.of(str(digit)) for digit in range(10)]
MINUS = charset.of("-")
POINT = charset.of(".")
MAX_MULTIPLE = 1000

# How what was read so far compares with the same number of the bound's digits.
BELOW, EQUAL, ABOVE = -1, 0, 1
Step = tuple[CharSet, tuple[int, int, int]]


@lru_cache(maxsize=1024)
def integer_dfa(low: int | None, high: int | None, multiple_of: int = 1) -> Dfa:
    """The integers from low to high, both included, that multiple_of divides.

    None is no bound. Raises TooManyStates, among others for a multiple_of above MAX_MULTIPLE, and
    ValueError for one that is not positive.
    """
    if multiple_of < 1:
        raise ValueError(f"multiple_of is {multiple_of}, and must be positive")
    if multiple_of > MAX_MULTIPLE:
        raise TooManyStates(f"a multiple of {multiple_of}, at most {MAX_MULTIPLE}")
    in_range = _signed(_fraction(low), _fraction(high), num_digits=0)
    return in_range if multiple_of == 1 else intersect(in_range, _multiples(multiple_of))


def decimal_dfa(
    low: Fraction | None,
    high: Fraction | None,
    low_excluded: bool,
    high_excluded: bool,
    num_digits: int = 17,
) -> Dfa:
    """The numbers between low and high, with at most num_digits digits after the point.

    None is no bound; the bounds are decimal fractions. Zero has no minus. Raises TooManyStates.

    Who reads the number rounds it to the nearest float64, and likewise the bound (if the bound is
    an integer, perhaps not). A number just below a bound may be rounded onto it, which an excluded
    bound does not allow. So it counts what the rounded number is: both it and the exact number are
    within the bounds, however the bound is read.
    """
    least = None if low is None else -_largest(-low, low_excluded, num_digits)
    most = None if high is None else _largest(high, high_excluded, num_digits)
    return _signed(least, most, num_digits)


def _fraction(bound: int | None) -> Fraction | None:
    return None if bound is None else Fraction(bound)


def _largest(bound: Fraction, excluded: bool, num_digits: int) -> Fraction:
    """The bound, as one that is included: the largest number that may stand below it.

    That number has at most num_digits digits after the point, or is `bound` itself.
    """
    try:
        nearest = float(bound)
    except OverflowError:  # no reader has a float for it
        nearest = math.inf if bound > 0 else -math.inf
    if math.isinf(nearest):
        return _just_below(bound, num_digits) if excluded else bound
    too_large = bound.denominator == 1 and Fraction(nearest) > bound
    if not excluded and not too_large:
        return bound  # rounding keeps the order
    allowed = math.nextafter(nearest, -math.inf)
    if math.isinf(allowed):
        return _just_below(bound, num_digits)
    halfway = (Fraction(allowed) + Fraction(nearest)) / 2
    return _just_below(min(bound, halfway), num_digits)


def _just_below(bound: Fraction, num_digits: int) -> Fraction:
    """The largest number below `bound` with at most num_digits digits after the point."""
    scale: int = 10**num_digits
    return Fraction(math.ceil(bound * scale) - 1, scale)


def _signed(low: Fraction | None, high: Fraction | None, num_digits: int) -> Dfa:
    """The numbers from low to high, both included."""
    positive, negative = NOTHING, NOTHING
    if high is None or high >= 0:
        positive = _between(max(low or Fraction(0), Fraction(0)), high, num_digits)
    if low is None or low < 0:
        least = Fraction(0) if high is None or high >= 0 else -high
        negative = _between(least, None if low is None else -low, num_digits)
        negative = _with_minus(subtract(negative, _between(Fraction(0), Fraction(0), num_digits)))
    return union(positive, negative)


def _with_minus(a: Dfa) -> Dfa:
    """A minus before each word."""
    return build(
        -1,
        lambda state: a.edges[state] if state >= 0 else [(MINUS, 0)],
        lambda state: state in a.accepting,
    )


def _between(low: Fraction, high: Fraction | None, num_digits: int) -> Dfa:
    """The numbers from low to high, both included; low is not negative."""
    upper = _up_to(high, num_digits, included=True)
    return upper if low == 0 else subtract(upper, _up_to(low, num_digits, included=False))


def _up_to(bound: Fraction | None, num_digits: int, *, included: bool) -> Dfa:
    """The numbers from 0 to the bound. Raises TooManyStates.

    A state is (digits before the point, digits after it, how they compare with the bound's). The
    digits before the point are counted up to one more than the bound has, and -1 stands for a zero,
    after which no digit may follow; those after it are counted from 1, which is the point itself.
    """
    if bound is not None and bound.numerator.bit_length() > 4 * MAX_STATES:
        raise TooManyStates("a bound has too many digits")
    whole, rest = ("", "") if bound is None else _digits(bound)

    def step(state: tuple[int, int, int]) -> list[Step]:
        before, after, order = state
        if after:
            return _fraction_steps(state, rest) if after <= num_digits else []
        steps = _whole_steps(state, whole) if bound is not None else _any_steps(before)
        if before and num_digits:
            steps.append((POINT, (0, 1, _whole_order(before, order, whole, bound))))
        return steps

    def accepts(state: tuple[int, int, int]) -> bool:
        before, after, order = state
        if after == 1 or not (before or after):
            return False
        if not after:
            order = _whole_order(before, order, whole, bound)
        # A beginning of the bound's digits is below the bound; with zeros after them it is equal.
        shorter = max(after - 1, 0) < len(rest)
        return order == BELOW or (order == EQUAL and (shorter or included))

    return build((0, 0, EQUAL), step, accepts)


def _digits(bound: Fraction) -> tuple[str, str]:
    """(digits before the point, digits after it without zeros at the end) of a decimal fraction."""
    num_after = 0
    while 10**num_after % bound.denominator:
        num_after += 1
        if num_after > MAX_STATES:
            raise TooManyStates(f"{bound} has too many digits after the point")
    scaled = str(bound.numerator * (10**num_after // bound.denominator))
    scaled = scaled.rjust(num_after + 1, "0")
    cut = len(scaled) - num_after
    return scaled[:cut], scaled[cut:]


def _any_steps(before: int) -> list[Step]:
    """One more digit before the point, if there is no bound."""
    if before < 0:
        return []
    return [
        (chars, (-1 if not digit and not before else 1, 0, EQUAL))
        for digit, chars in enumerate(DIGITS)
    ]


def _whole_steps(state: tuple[int, int, int], whole: str) -> list[Step]:
    """One more digit before the point."""
    before, _, order = state
    if before < 0 or before >= len(whole):
        return []  # after a zero, or a digit more than the bound has
    steps: list[Step] = []
    for digit, chars in enumerate(DIGITS):
        new = order or (digit > int(whole[before])) - (digit < int(whole[before]))
        steps.append((chars, (-1 if not digit and not before else before + 1, 0, new)))
    return steps


def _whole_order(before: int, order: int, whole: str, bound: Fraction | None) -> int:
    """How the finished digits before the point compare with the bound's."""
    if bound is None or (before < 0 and whole != "0"):
        return BELOW
    return BELOW if 0 < before < len(whole) else order


def _fraction_steps(state: tuple[int, int, int], rest: str) -> list[Step]:
    """One more digit after the point; none that would go above the bound."""
    _, after, order = state
    if order == ABOVE:
        return []
    expected = int(rest[after - 1]) if after <= len(rest) else 0
    return [
        (chars, (0, after + 1, order or (-1 if digit < expected else 0)))
        for digit, chars in enumerate(DIGITS)
        if order == BELOW or digit <= expected
    ]


def _multiples(divisor: int) -> Dfa:
    """The integers that `divisor` divides, with or without a minus."""

    def step(state: tuple[str, int]) -> list[tuple[CharSet, tuple[str, int]]]:
        phase, left = state
        if phase == "zero":
            return []
        first = phase != "digits"
        steps = [
            (chars, ("zero" if first and not digit else "digits", (10 * left + digit) % divisor))
            for digit, chars in enumerate(DIGITS)
        ]
        return [*steps, (MINUS, ("minus", 0))] if phase == "start" else steps

    whole = build(("start", 0), step, lambda state: state[0] in ("zero", "digits") and not state[1])
    return subtract(whole, literals(["-0"]))
