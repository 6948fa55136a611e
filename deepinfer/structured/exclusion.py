"""What is certainly NOT in a list of shapes, and whether two shapes have anything in common.

For `not`, `oneOf` and `if`. Of arrays and objects the complement may be smaller than it should be,
never larger: it is by sizes, missing keys, and other values of keys, those too as far as they can
be told.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Protocol

from deepinfer.structured import automaton
from deepinfer.structured.document import NEVER, NOT, SchemaSet
from deepinfer.structured.meeting import meet, meet_strings
from deepinfer.structured.shapes import (
    EVERYTHING,
    NOTHING,
    Array,
    Integers,
    KeysPart,
    Object,
    Reals,
    Shape,
    Strings,
    Values,
    in_range,
)

_SCALARS = frozenset({"null", "true", "false"})
_MAX_DEPTH = 6


class Sets(Protocol):
    """What is asked of sets of schemas."""

    def are_disjoint(self, a: SchemaSet, b: SchemaSet, depth: int) -> bool:
        """Nothing satisfies both, as far as can be told in so many levels more."""


def without_key(key: str) -> Object:
    """Objects that do not have the key."""
    return Object(parts=(KeysPart(fields=((key, NOTHING),)),))


def excluded(shapes: Sequence[Shape], can_negate: Callable[[str], bool]) -> list[Shape] | None:
    """Shapes of values that are in none of `shapes`; None if there is no telling.

    can_negate: whether the opposite of the schema at a pointer can be told. Raises TooManyStates.
    """
    left: list[Shape] = list(EVERYTHING)
    for shape in shapes:
        kept = [other for other in EVERYTHING if type(other) is not _wide_type(shape)]
        if isinstance(shape, Object):
            others = _other_objects(shape, can_negate)
        else:
            others = _OTHERS[type(shape)](shape)
        if others is None:
            return None
        left = [met for a in left for b in (*kept, *others) if (met := meet(a, b)) is not None]
    return left


def _other_values(values: Values) -> list[Shape] | None:
    if values.texts - _SCALARS:
        return None
    rest = _SCALARS - values.texts
    return [Values(rest)] if rest else []


def _other_strings(strings: Strings) -> list[Shape]:
    length = automaton.length_between(strings.low, strings.high)
    others = automaton.complement(automaton.intersect(strings.dfa, length))
    return [] if automaton.is_empty(others) else [Strings(others)]


def _other_integers(integers: Integers) -> list[Shape]:
    return [Reals(holes=integers.dfa)]


def _wide_type(shape: Shape) -> type:
    return Reals if isinstance(shape, Integers) else type(shape)


def _other_numbers(reals: Reals) -> list[Shape]:
    found: list[Shape] = []
    if reals.low is not None:
        found.append(Reals(high=reals.low, high_excluded=not reals.low_excluded))
    if reals.high is not None:
        found.append(Reals(low=reals.high, low_excluded=not reals.high_excluded))
    return found if automaton.is_empty(reals.holes) else [*found, Integers(reals.holes)]


def _other_sizes(shape: Array | Object) -> list[Shape]:
    kind = type(shape)
    found: list[Shape] = []
    if shape.low > 0:
        found.append(kind(high=shape.low - 1))
    if shape.high is not None:
        found.append(kind(low=shape.high + 1))
    return found


def _other_arrays(shape: Array) -> list[Shape] | None:
    found = _other_sizes(shape)
    return found if found or shape == Array() else None


def _other_objects(shape: Object, can_negate: Callable[[str], bool]) -> list[Shape] | None:
    """Objects that lack a required key, or in which the value of some key is another."""
    found = _other_sizes(shape)
    for key in shape.declared():
        values, is_required = shape.values(key), key in shape.required
        if NEVER in values:
            found.append(Object(required=(key,)))
            continue
        needed = () if is_required else (key,)
        others = [pointer for pointer in sorted(values) if can_negate(pointer)]
        for pointer in others:
            part = KeysPart(fields=((key, frozenset({NOT + pointer})),))
            found.append(Object(parts=(part,), required=needed))
        if is_required and not others:
            found.append(without_key(key))
    return found if found or shape == Object() else None


_OTHERS: dict[type, Callable[[Any], list[Shape] | None]] = {
    Values: _other_values,
    Strings: _other_strings,
    Integers: _other_integers,
    Reals: _other_numbers,
    Array: _other_arrays,
}


def are_disjoint(a: Shape, b: Shape, sets: Sets, depth: int = _MAX_DEPTH) -> bool:
    """Nothing is in both, as far as can be told in `depth` levels. sets: for the values inside.

    Raises TooManyStates.
    """
    if isinstance(a, Values) != isinstance(b, Values):
        values, other = (a, b) if isinstance(a, Values) else (b, a)
        assert isinstance(values, Values)
        return not any(_may_hold(other, json.loads(text)) for text in values.texts)
    if isinstance(a, Array) and isinstance(b, Array):
        return _arrays_disjoint(a, b, sets, depth)
    if isinstance(a, Object) and isinstance(b, Object):
        return _objects_disjoint(a, b, sets, depth)
    if isinstance(a, Strings) and isinstance(b, Strings):
        met = meet_strings(a, b)
        return met is None or automaton.is_empty(met.dfa)
    return meet(a, b) is None


def _may_hold(shape: Shape, value: object) -> bool:
    """Whether a value may be in a shape, judged by its kind, and its size if it is a number."""
    if isinstance(shape, Reals):
        is_number = isinstance(value, float) or type(value) is int
        return is_number and in_range(shape, Fraction(str(value)))
    kinds = {Array: list, Object: dict, Strings: str}
    return type(shape) in kinds and isinstance(value, kinds[type(shape)])


def _sets_disjoint(a: SchemaSet, b: SchemaSet, sets: Sets, depth: int) -> bool:
    if NEVER in a or NEVER in b:
        return True
    return bool(depth and a and b) and sets.are_disjoint(a, b, depth - 1)


def _arrays_disjoint(a: Array, b: Array, sets: Sets, depth: int) -> bool:
    if meet(a, b) is None:
        return True
    return any(
        _sets_disjoint(item_set(a, place), item_set(b, place), sets, depth)
        for place in range(min(a.low, b.low, _MAX_DEPTH))
    )


def _objects_disjoint(a: Object, b: Object, sets: Sets, depth: int) -> bool:
    keys: Iterable[str] = dict.fromkeys((*a.required, *b.required))
    for key in keys:
        in_a, in_b = a.values(key), b.values(key)
        both = key in a.required and key in b.required
        if NEVER in in_a or NEVER in in_b:
            return True
        if both and _sets_disjoint(in_a, in_b, sets, depth):
            return True
    return meet(a, b) is None


def item_set(array: Array, place: int) -> SchemaSet:
    """What must hold for an array's item number `place`."""
    found: SchemaSet = frozenset()
    for part in array.parts:
        found |= part.prefix[place] if place < len(part.prefix) else part.rest or frozenset()
    return found
