"""What a JSON schema allows, as a list of shapes: each one kind of value with all its limits.

A schema becomes a union of shapes; two that must both hold become the intersection of each with
each. Shapes know sets of subschemas by pointer, for the values inside; not how those read.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from deepinfer.structured import automaton
from deepinfer.structured.automaton import ANY, Dfa
from deepinfer.structured.document import NEVER, SchemaSet
from deepinfer.structured.integers import integer_dfa

ANYTHING: SchemaSet = frozenset()
NOTHING: SchemaSet = frozenset({NEVER})


@dataclass(frozen=True)
class Values:
    """Single values that no other shape holds: null, true, false, fractions, arrays, objects.

    texts: JSON text of each, as `spell` writes it.
    """

    texts: frozenset[str]


@dataclass(frozen=True)
class Integers:
    """Whole numbers by their canonical spelling."""

    dfa: Dfa


@dataclass(frozen=True)
class Reals:
    """Numbers of a range, whole ones too. holes: whole numbers that are not in it."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_excluded: bool = False
    high_excluded: bool = False
    holes: Dfa = automaton.NOTHING


@dataclass(frozen=True)
class Strings:
    """Strings by their characters, and by their length in code points."""

    dfa: Dfa = ANY
    low: int = 0
    high: int | None = None


@dataclass(frozen=True)
class ItemsPart:
    """What one schema says of an array's items. rest: of those after `prefix`; None: nothing."""

    prefix: tuple[SchemaSet, ...] = ()
    rest: SchemaSet | None = None


@dataclass(frozen=True)
class Array:
    """Arrays. parts: each of them must hold."""

    parts: tuple[ItemsPart, ...] = ()
    low: int = 0
    high: int | None = None


@dataclass(frozen=True)
class PatternKeys:
    """Keys that match a pattern. Between `strict` and `lenient` clients' libraries disagree."""

    strict: Dfa
    lenient: Dfa
    values: SchemaSet


@dataclass(frozen=True)
class KeysPart:
    """What one schema says of an object's keys. rest: of all other keys; None: nothing."""

    fields: tuple[tuple[str, SchemaSet], ...] = ()
    patterns: tuple[PatternKeys, ...] = ()
    rest: SchemaSet | None = None

    def values(self, key: str) -> SchemaSet:
        """What must hold for the value of `key`."""
        found = [values for name, values in self.fields if name == key]
        is_named = bool(found)
        for pattern in self.patterns:
            if automaton.accepts(pattern.lenient, key):
                found.append(pattern.values)
                is_named = is_named or automaton.accepts(pattern.strict, key)
        # Where libraries disagree whether a pattern matches, both readings must hold.
        return ANYTHING.union(*found, () if is_named else self.rest or ANYTHING)


@dataclass(frozen=True)
class Object:
    """Objects. parts: each must hold. names: which keys there may be at all."""

    parts: tuple[KeysPart, ...] = ()
    required: tuple[str, ...] = ()
    names: Strings = field(default_factory=Strings)
    low: int = 0
    high: int | None = None

    def values(self, key: str) -> SchemaSet:
        """What must hold for the value of `key`."""
        if not string_in(self.names, key):
            return NOTHING
        return ANYTHING.union(*(part.values(key) for part in self.parts))

    def declared(self) -> list[str]:
        """The keys that are named, in the order in which they were first."""
        named = [name for part in self.parts for name, _ in part.fields]
        return list(dict.fromkeys((*named, *self.required)))


Shape = Values | Integers | Reals | Strings | Array | Object
EVERY_INTEGER = integer_dfa(None, None)
EVERYTHING: tuple[Shape, ...] = (
    Values(frozenset({"null", "true", "false"})),
    Reals(),
    Strings(),
    Array(),
    Object(),
)


def spell(value: Any) -> str:
    """JSON text of a value: equal for values that JSON Schema calls equal, 1 and 1.0 say."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(", ", ": "))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value == int(value):
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def shapes_of_values(values: Iterable[Any]) -> list[Shape]:
    """Shapes that hold just these values; the automata made at once, which is much faster."""
    words: list[str] = []
    others: list[Any] = []
    wholes: list[str] = []
    for value in values:
        if isinstance(value, str):
            words.append(value)
        elif _is_number(value) and _is_whole(spell(value)):
            wholes.append(spell(value))
        else:
            others.append(value)
    found: list[Shape] = [Values(frozenset(map(spell, others)))] if others else []
    found += [Integers(automaton.literals(wholes))] if wholes else []
    return found + ([Strings(automaton.literals(words))] if words else [])


def exact(number: float) -> Fraction:
    """The decimal that was written, not the nearest float's binary value."""
    return Fraction(str(number))


def string_in(strings: Strings, text: str) -> bool:
    """The string is one of them."""
    long_enough = strings.low <= len(text)
    short_enough = strings.high is None or len(text) <= strings.high
    return long_enough and short_enough and automaton.accepts(strings.dfa, text)


def in_range(reals: Reals, number: Fraction) -> bool:
    """The number lies within the bounds and in no hole."""
    above = reals.low is None or number > reals.low
    below = reals.high is None or number < reals.high
    at_low = number == reals.low and not reals.low_excluded
    at_high = number == reals.high and not reals.high_excluded
    is_hole = number.denominator == 1 and automaton.accepts(reals.holes, str(number.numerator))
    return (above or at_low) and (below or at_high) and not is_hole


def simplified(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """The same union with fewer shapes: each once, single values and automata together."""
    values: frozenset[str] = frozenset()
    integers, strings = automaton.NOTHING, automaton.NOTHING
    others: list[Shape] = []
    for shape in dict.fromkeys(shapes):
        if isinstance(shape, Values):
            values |= shape.texts
        elif isinstance(shape, Integers):
            integers = automaton.union(integers, shape.dfa)
        elif isinstance(shape, Strings) and shape.low == 0 and shape.high is None:
            strings = automaton.union(strings, shape.dfa)
        else:
            others.append(shape)
    merged: list[Shape] = [Values(values)] if values else []
    merged += [] if automaton.is_empty(integers) else [Integers(integers)]
    merged += [] if automaton.is_empty(strings) else [Strings(strings)]
    return (*merged, *others)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
