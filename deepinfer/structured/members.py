"""Whether a value is of a shape: for the values that a schema lists."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from deepinfer.structured import automaton
from deepinfer.structured.document import SchemaSet
from deepinfer.structured.exclusion import item_set
from deepinfer.structured.shapes import (
    Array,
    Integers,
    Object,
    Reals,
    Shape,
    Strings,
    Values,
    in_range,
    spell,
    string_in,
)

Holds = Callable[[SchemaSet, Any], bool]


def is_member(shape: Shape, value: Any, holds: Holds) -> bool:
    """The value is of the shape. holds: whether a value inside obeys a set of schemas."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(shape, Values):
        return spell(value) in shape.texts
    if isinstance(shape, Integers):
        return is_number and automaton.accepts(shape.dfa, spell(value))
    if isinstance(shape, Reals):
        return is_number and in_range(shape, Fraction(str(value)))
    if isinstance(shape, Strings):
        return isinstance(value, str) and string_in(shape, value)
    if isinstance(shape, Array):
        return isinstance(value, list) and _array_member(shape, value, holds)
    return isinstance(value, dict) and _object_member(shape, value, holds)


def _array_member(shape: Array, value: list[Any], holds: Holds) -> bool:
    return _size_fits(shape, len(value)) and all(
        holds(item_set(shape, place), item) for place, item in enumerate(value)
    )


def _object_member(shape: Object, value: dict[str, Any], holds: Holds) -> bool:
    return (
        all(key in value for key in shape.required)
        and _size_fits(shape, len(value))
        and all(holds(shape.values(key), inner) for key, inner in value.items())
    )


def _size_fits(shape: Array | Object, size: int) -> bool:
    return shape.low <= size and (shape.high is None or size <= shape.high)
