"""Arrays and objects made ready to be written: which items and keys, in which order, how many.

Decides what the output may contain beyond what the schema names: nothing, where it names something
and is silent about the rest; that is less than JSON Schema allows, and what a caller means.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from deepinfer.structured import automaton
from deepinfer.structured.document import NEVER, SchemaSet
from deepinfer.structured.exclusion import item_set
from deepinfer.structured.meeting import least, meet_strings
from deepinfer.structured.shapes import (
    ANYTHING,
    Array,
    KeysPart,
    Object,
    PatternKeys,
    Strings,
)


@dataclass(frozen=True)
class ArrayLayout:
    """items: of the first places. rest: of all further ones, None if there are none."""

    items: tuple[SchemaSet, ...]
    rest: SchemaSet | None
    low: int
    high: int | None


@dataclass(frozen=True)
class Field:
    """A key that the schema names."""

    key: str
    values: SchemaSet
    is_required: bool


@dataclass(frozen=True)
class OtherKeys:
    """Keys that the schema does not name, and what their values must be."""

    keys: Strings
    values: SchemaSet


@dataclass(frozen=True)
class ObjectLayout:
    """fields: in the order in which they are written; the others come after them.

    low, high: number of keys.
    """

    fields: tuple[Field, ...]
    others: tuple[OtherKeys, ...]
    low: int
    high: int | None

    @property
    def num_required(self) -> int:
        """Fields that are in every object."""
        return sum(field.is_required for field in self.fields)


Layout = ArrayLayout | ObjectLayout


def array_layout(shape: Array) -> ArrayLayout:
    """The array's items, place by place."""
    num_places = max((len(part.prefix) for part in shape.parts), default=0)
    places = tuple(item_set(shape, place) for place in range(num_places))
    said = [part.rest for part in shape.parts if part.rest is not None]
    rest: SchemaSet | None = ANYTHING.union(*said)
    if shape.parts and not said and shape.low <= num_places:
        rest = None
    return ArrayLayout(places, rest, shape.low, shape.high)


def object_layout(shape: Object) -> ObjectLayout:
    """The object's keys. Raises TooManyStates."""
    named = shape.declared()
    fields = tuple(Field(key, shape.values(key), key in shape.required) for key in named)
    # What may not be there leaves no place for it.
    fields = tuple(f for f in fields if f.is_required or NEVER not in f.values)
    return ObjectLayout(fields, tuple(_other_keys(shape, named)), shape.low, shape.high)


def children(layout: Layout) -> list[SchemaSet]:
    """The sets of schemas of the values inside."""
    if isinstance(layout, ArrayLayout):
        return [*layout.items, *(() if layout.rest is None else (layout.rest,))]
    return [f.values for f in layout.fields] + [other.values for other in layout.others]


def alive_part(layout: Layout, alive: set[SchemaSet]) -> Layout | None:
    """The layout without what has no values, those in `alive` being known to have some.

    None if nothing is left.
    """
    if isinstance(layout, ArrayLayout):
        return _alive_array(layout, alive)
    if any(f.is_required and f.values not in alive for f in layout.fields):
        return None
    fields = tuple(f for f in layout.fields if f.values in alive)
    others = tuple(o for o in layout.others if o.values in alive)
    most = least(layout.high, None if others else len(fields))
    if most is not None and most < max(layout.low, layout.num_required):
        return None
    # A limit that the fields alone keep to needs no counting.
    is_counted = others or most != len(fields)
    return ObjectLayout(fields, others, layout.low, layout.high if is_counted else None)


def _alive_array(layout: ArrayLayout, alive: set[SchemaSet]) -> ArrayLayout | None:
    num_good = 0
    while num_good < len(layout.items) and layout.items[num_good] in alive:
        num_good += 1
    is_open = num_good == len(layout.items) and layout.rest in alive
    high = layout.high if is_open else least(layout.high, num_good)
    if high is not None and high < layout.low:
        return None
    return ArrayLayout(layout.items[:num_good], layout.rest if is_open else None, layout.low, high)


def _other_keys(shape: Object, named: list[str]) -> Iterator[OtherKeys]:
    """Keys that are not named, sorted by what their values must be."""
    unnamed = meet_strings(shape.names, Strings(automaton.complement(automaton.literals(named))))
    if unnamed is None:
        return
    kinds = [(OtherKeys(unnamed, ANYTHING), False)]
    for part in shape.parts:
        kinds = [split for kind in kinds for split in _split(part, *kind)]
    is_open = _is_open(shape)
    for other, is_wanted in kinds:
        if (is_open or is_wanted) and NEVER not in other.values:
            yield other


def _is_open(shape: Object) -> bool:
    """Keys that nobody speaks of may come."""
    if any(part.rest is not None for part in shape.parts):
        return True
    says_something = any(
        part.patterns or any(NEVER not in values for _, values in part.fields)
        for part in shape.parts
    )
    return not says_something or shape.low > len(shape.declared())


def _split(part: KeysPart, keys: OtherKeys, is_wanted: bool) -> Iterator[tuple[OtherKeys, bool]]:
    """The keys by which of the part's patterns they match; wanted: some pattern was matched."""
    groups = [(keys, False)]
    for pattern in part.patterns:
        groups = [
            group for other, matched in groups for group in _by_pattern(pattern, other, matched)
        ]
    for other, matched in groups:
        rest = ANYTHING if matched or part.rest is None else part.rest
        yield replace(other, values=other.values | rest), is_wanted or matched


def _by_pattern(
    pattern: PatternKeys, keys: OtherKeys, matched: bool
) -> Iterator[tuple[OtherKeys, bool]]:
    """Keys that match in every reading, and keys that match in none; any others are left out."""
    inside = meet_strings(keys.keys, Strings(pattern.strict))
    if inside is not None:
        yield OtherKeys(inside, keys.values | pattern.values), True
    outside = meet_strings(keys.keys, Strings(automaton.complement(pattern.lenient)))
    if outside is not None:
        yield OtherKeys(outside, keys.values), matched
