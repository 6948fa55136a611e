"""What two shapes have in common.

Numbers, strings, arrays and objects; what holds of the values inside is joined, not looked at.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from deepinfer.structured import automaton
from deepinfer.structured.automaton import ANY, Dfa
from deepinfer.structured.integers import integer_dfa
from deepinfer.structured.shapes import (
    Array,
    Integers,
    Object,
    Reals,
    Shape,
    Strings,
    Values,
)


def meet(a: Shape, b: Shape) -> Shape | None:
    """What is in both; None where that is plainly nothing.

    Raises TooManyStates. Of `Values` only those of the same kind meet: whoever has array or object
    values checks them against the limits of arrays and objects.
    """
    if {type(a), type(b)} == {Integers, Reals}:
        integers, reals = (a, b) if isinstance(a, Integers) else (b, a)
        return _whole_numbers(reals, integers.dfa)  # type: ignore[arg-type, union-attr]
    if type(a) is not type(b):
        return None
    return _MEETINGS[type(a)](a, b)


def meet_strings(a: Strings, b: Strings) -> Strings | None:
    """Strings that are in both. Raises TooManyStates."""
    low, high = max(a.low, b.low), least(a.high, b.high)
    if high is not None and low > high:
        return None
    dfa = automaton.intersect(a.dfa, b.dfa)
    if dfa == ANY:
        return Strings(dfa, low, high)
    # The length goes into the automaton as far as it says more than that does already.
    shortest, longest = automaton.length_range(dfa)
    if low > shortest or (high is not None and (longest is None or high < longest)):
        dfa = automaton.intersect(dfa, automaton.length_between(low, high))
    return None if automaton.is_empty(dfa) else Strings(dfa)


def least(a: int | None, b: int | None) -> int | None:
    """The smaller of two limits; None is no limit."""
    return a if b is None else b if a is None else min(a, b)


def _meet_values(a: Values, b: Values) -> Values | None:
    return Values(a.texts & b.texts) if a.texts & b.texts else None


def _meet_integers(a: Integers, b: Integers) -> Integers | None:
    return _if_any(Integers(automaton.intersect(a.dfa, b.dfa)))


def _meet_arrays(a: Array, b: Array) -> Array | None:
    array = Array(_joined(a.parts, b.parts), max(a.low, b.low), least(a.high, b.high))
    return array if array.high is None or array.low <= array.high else None


def _if_any(integers: Integers) -> Integers | None:
    return None if automaton.is_empty(integers.dfa) else integers


def _whole_numbers(reals: Reals, dfa: Dfa) -> Integers | None:
    if reals == Reals():
        return Integers(dfa)
    low = high = None
    if reals.low is not None:
        low = -(-reals.low.numerator // reals.low.denominator)
        low += low == reals.low and reals.low_excluded
    if reals.high is not None:
        high = reals.high.numerator // reals.high.denominator
        high -= high == reals.high and reals.high_excluded
    within = automaton.intersect(dfa, integer_dfa(low, high))
    return _if_any(Integers(automaton.subtract(within, reals.holes)))


def _meet_reals(a: Reals, b: Reals) -> Reals | None:
    low, low_excluded = max(
        ((x.low, x.low_excluded) for x in (a, b) if x.low is not None), default=(None, False)
    )
    high, high_closed = min(
        ((x.high, not x.high_excluded) for x in (a, b) if x.high is not None), default=(None, True)
    )
    if low is not None and high is not None:
        is_point = low == high and not low_excluded and high_closed
        if low > high or (low == high and not is_point):
            return None
    holes = automaton.union(a.holes, b.holes)
    return Reals(low, high, low_excluded, not high_closed, holes)


def _meet_objects(a: Object, b: Object) -> Object | None:
    names = meet_strings(a.names, b.names)
    low, high = max(a.low, b.low), least(a.high, b.high)
    if high is not None and low > high:
        return None
    merged = Object(_joined(a.parts, b.parts), _joined(a.required, b.required), low=low, high=high)
    # No key fits: only the empty object is left.
    return replace(merged, names=names or Strings(automaton.NOTHING))


def _joined(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys((*a, *b)))


_MEETINGS: dict[type, Callable[[Any, Any], Shape | None]] = {
    Values: _meet_values,
    Integers: _meet_integers,
    Reals: _meet_reals,
    Strings: meet_strings,
    Array: _meet_arrays,
    Object: _meet_objects,
}
