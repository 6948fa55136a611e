"""Numbers within bounds, against counting and against float()."""

import math
from fractions import Fraction
from random import Random

import pytest

from deepinfer.structured import automaton
from deepinfer.structured.automaton import TooManyStates
from deepinfer.structured.integers import decimal_dfa, integer_dfa
from tests.unit.structured.dfa_words import random_word

MALFORMED = [
    "",
    "-",
    "-0",
    "00",
    "01",
    "-01",
    "+1",
    " 1",
    "1 ",
    "1.0",
    "1.",
    "1e1",
    "--1",
    "0x1",
    "١",
]


@pytest.mark.parametrize("low", [None, *range(-25, 26)])
def test_every_pair_of_bounds(low):
    """Integers outside the bounds, or spelled with leading zeros (D08)."""
    numbers = range(-120, 121)
    for high in (None, *range(-25, 26)):
        dfa = integer_dfa(low, high)
        expected = {
            str(n) for n in numbers if (low is None or low <= n) and (high is None or n <= high)
        }
        assert {str(n) for n in numbers if automaton.accepts(dfa, str(n))} == expected
        assert not any(automaton.accepts(dfa, text) for text in MALFORMED)
        if low is not None and high is not None:
            assert set(automaton.words(dfa, 100)) == expected


def test_large_bounds():
    """Bounds beyond 64 bits that are compared as floats, or digit by digit and wrongly."""
    random = Random(6)
    for _ in range(100):
        low, high = sorted(
            random.randint(-(10**40), 10**40) // 10 ** random.randint(0, 40) for _ in "ab"
        )
        dfa = integer_dfa(low, high)
        near = [bound + step for bound in (low, high, 0) for step in range(-11, 12)]
        far = [bound * 10 for bound in (low, high)] + [bound // 10 for bound in (low, high)]
        for n in near + far:
            assert automaton.accepts(dfa, str(n)) == (low <= n <= high), (low, n, high)


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 10, 25, 97, 1000])
def test_multiples(divisor):
    """A remainder carried wrongly past a sign or a zero."""
    dfa = integer_dfa(-130, None, divisor)
    for n in range(-3000, 3001):
        assert automaton.accepts(dfa, str(n)) == (n >= -130 and n % divisor == 0)
    assert not any(automaton.accepts(dfa, text) for text in MALFORMED)


def test_refused():
    """A divisor of any size that builds an automaton of that size."""
    for divisor in (1001, 10**30):
        with pytest.raises(TooManyStates):
            integer_dfa(0, 10, divisor)
    with pytest.raises(TooManyStates):
        integer_dfa(0, 10**39, 997)
    with pytest.raises(TooManyStates):
        integer_dfa(0, 10**5000)
    with pytest.raises(TooManyStates):
        decimal_dfa(Fraction(1, 3), None, False, False)
    with pytest.raises(ValueError, match="positive"):
        integer_dfa(0, 10, 0)


def in_bounds(number: Fraction | float, low, high, low_out, high_out) -> bool:
    above = low is None or number > low or (number == low and not low_out)
    below = high is None or number < high or (number == high and not high_out)
    return above and below


@pytest.mark.parametrize("excluded", [(False, False), (True, True), (True, False)])
def test_decimals_in_bounds(excluded):
    """Decimals outside the bounds, decimals inside that are refused, numbers that are not JSON."""
    rests = ("", ".0", ".00", ".5", ".05", ".49", ".50", ".500", ".51", ".9", ".99")
    wholes = ("0", "1", "2", "9", "10", "11", "12")
    texts = [f"{sign}{whole}{rest}" for sign in ("", "-") for whole in wholes for rest in rests]
    bad = [*MALFORMED[:-9], ".5", "1.", "-.5", "01.5", "-0.0", "1e5", "1.5e1", "0.1234"]
    bounds = [
        None,
        *(Fraction(text) for text in ("-11", "-1.5", "-0.05", "0", "0.5", "1", "10.50")),
    ]
    for low in bounds:
        for high in bounds:
            dfa = decimal_dfa(low, high, *excluded, num_digits=3)
            for text in texts:
                if text.startswith("-") and not Fraction(text):
                    continue  # zero has no minus
                expected = in_bounds(Fraction(text), low, high, *excluded)
                assert automaton.accepts(dfa, text) == expected, (low, high, text)
            assert not any(automaton.accepts(dfa, text) for text in bad)


def near(bound: str, random: Random) -> list[str]:
    """Decimals next to the bound, many of which have the same float."""
    value = Fraction(bound)
    steps = (
        Fraction(random.randint(-30, 30), 10**digits) for digits in range(18) for _ in range(4)
    )
    return [decimal(value + step) for step in steps]


def decimal(value: Fraction) -> str:
    scaled = abs(value) * 10**17
    whole, rest = divmod(scaled.numerator // scaled.denominator, 10**17)
    sign = "-" if value < 0 and (whole or rest) else ""
    return f"{sign}{whole}.{rest:017}".rstrip("0").rstrip(".")


@pytest.mark.parametrize(
    "bound", ["0", "0.1", "0.3", "1", "1.1", "-2.7", "123456.789", "9007199254740993",
              "9007199254740995", "1e20", "0.30000000000000004", "5e-17", "-1e16", "1e300"],
)  # fmt: skip
def test_rounding(bound):
    """A number below an excluded bound that a client rounds onto it and refuses."""
    random = Random(7)
    exact = Fraction(bound)
    # How clients read a bound: as a float, or, if it is an integer, exactly.
    readings = [Fraction(float(exact)), *([exact] if exact.denominator == 1 else [])]
    for excluded in (False, True):
        upper = decimal_dfa(None, exact, False, excluded)
        lower = decimal_dfa(exact, None, excluded, False)
        num_taken = 0
        texts = [*near(bound, random), *(random_word(dfa, random) for dfa in (upper, lower) * 40)]
        for text in texts:
            number, rounded = Fraction(text), float(text)
            if math.isinf(rounded):
                continue
            right = [in_bounds(Fraction(rounded), None, one, False, excluded) for one in readings]
            expected = in_bounds(number, None, exact, False, excluded) and all(right)
            halfway = Fraction(rounded) != number and _is_halfway(number)
            if not halfway:  # where rounding is a matter of even digits, less is taken
                assert automaton.accepts(upper, text) == expected, text
            assert expected or not automaton.accepts(upper, text)
            num_taken += expected
            right = [in_bounds(Fraction(rounded), one, None, excluded, False) for one in readings]
            expected = in_bounds(number, exact, None, excluded, False) and all(right)
            if not halfway:
                assert automaton.accepts(lower, text) == expected, text
            assert expected or not automaton.accepts(lower, text)
        assert num_taken > 10


def _is_halfway(number: Fraction) -> bool:
    nearest = float(number)
    gaps = [abs(Fraction(math.nextafter(nearest, way)) - number) for way in (-math.inf, math.inf)]
    return abs(Fraction(nearest) - number) in gaps


def test_no_bounds():
    """A free number that cannot be begun, ended, or is endless after its point."""
    dfa = decimal_dfa(None, None, False, False)
    for text in ("0", "-1", "10", "0.5", "-0.5", "3.14159", "1234567890123456789012345"):
        assert automaton.accepts(dfa, text)
    assert automaton.accepts(dfa, "0." + "1" * 17)
    assert not automaton.accepts(dfa, "0." + "1" * 18)
    assert automaton.is_empty(decimal_dfa(Fraction(2), Fraction(1), False, False))
    assert automaton.words(decimal_dfa(Fraction(1), Fraction(1), False, False, 2), 9) == [
        "1", "1.0", "1.00",
    ]  # fmt: skip
