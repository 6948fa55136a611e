"""The keywords of one schema that say something of a value by themselves -> shapes.

Types, numbers, strings, arrays, objects. Schemas that are combined are shape_of.py's.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from deepinfer.structured import automaton
from deepinfer.structured.automaton import ANY, Dfa
from deepinfer.structured.document import Document, SchemaSet, child
from deepinfer.structured.formats import FORMATS, format_dfa
from deepinfer.structured.integers import integer_dfa
from deepinfer.structured.meeting import meet, meet_strings
from deepinfer.structured.regex import RegexError, search_dfa
from deepinfer.structured.shapes import (
    EVERY_INTEGER,
    EVERYTHING,
    Array,
    Integers,
    ItemsPart,
    KeysPart,
    Object,
    PatternKeys,
    Reals,
    Shape,
    Strings,
    Values,
    exact,
)

MAX_PROPERTIES = 256
MAX_ITEMS = 4096
Keywords = dict[str, Any]


class Sets(Protocol):
    """What is needed of the schemas inside."""

    @property
    def document(self) -> Document:
        """The whole schema."""

    def set_of(self, pointer: str) -> SchemaSet:
        """The subschema at a pointer, as a set."""

    def shapes(self, schemas: SchemaSet) -> Sequence[Shape]:
        """What a set allows."""


def own_shapes(sets: Sets, pointer: str, keywords: Keywords, *, lenient: bool) -> list[Shape]:
    """What the keywords allow, those that combine schemas and enum and const left aside.

    Raises TooManyStates, and RequestError for what cannot be enforced.
    """
    limits: dict[type, Shape | None] = {
        Reals: _number(sets.document, pointer, keywords),
        Strings: _string(sets.document, pointer, keywords, lenient=lenient),
        Array: _array(sets, pointer, keywords),
        Object: _object(sets, pointer, keywords),
    }
    found: list[Shape] = []
    for shape in _of_types(keywords):
        limit = limits.get(Reals if isinstance(shape, Integers) else type(shape), shape)
        met = None if limit is None else meet(shape, limit)
        if met is not None:
            found.append(met)
    return found


def _of_types(keywords: Keywords) -> list[Shape]:
    types = keywords.get("type")
    if types is None:
        return list(EVERYTHING)
    names = set(types) if isinstance(types, list) else {types}
    constants = {"null": ["null"], "boolean": ["true", "false"]}
    texts = [text for name, texts in constants.items() if name in names for text in texts]
    found: list[Shape] = [Values(frozenset(texts))] if texts else []
    if "number" in names:
        found.append(Reals())
    elif "integer" in names:
        found.append(Integers(EVERY_INTEGER))
    others: dict[str, Shape] = {"string": Strings(), "array": Array(), "object": Object()}
    return found + [shape for name, shape in others.items() if name in names]


def _number(document: Document, pointer: str, keywords: Keywords) -> Shape | None:
    bounds = {
        "minimum": Reals(low=_exact(keywords, "minimum")),
        "exclusiveMinimum": Reals(low=_exact(keywords, "exclusiveMinimum"), low_excluded=True),
        "maximum": Reals(high=_exact(keywords, "maximum")),
        "exclusiveMaximum": Reals(high=_exact(keywords, "exclusiveMaximum"), high_excluded=True),
    }
    found: Shape | None = Reals()
    for keyword, bound in bounds.items():
        if keyword in keywords and found is not None:
            found = meet(found, bound)
    if "multipleOf" in keywords and found is not None:
        step = exact(keywords["multipleOf"])
        if step.denominator != 1 or step > 1000:
            where = child(pointer, "multipleOf")
            hint = "clients divide in floating point; use whole numbers up to 1000, cents say"
            raise document.error(where, f"steps of {keywords['multipleOf']}", hint)
        found = meet(found, Integers(integer_dfa(None, None, step.numerator)))
    return found


def _exact(keywords: Keywords, keyword: str) -> Any:
    return exact(keywords[keyword]) if keyword in keywords else None


def _string(
    document: Document, pointer: str, keywords: Keywords, *, lenient: bool
) -> Strings | None:
    high = keywords.get("maxLength")
    found: Strings | None = Strings()
    for dfa in _string_dfas(document, pointer, keywords, lenient=lenient):
        found = found and meet_strings(found, Strings(dfa))
    limits = Strings(ANY, int(keywords.get("minLength", 0)), None if high is None else int(high))
    if limits.high is not None and limits.low > limits.high:
        return None
    return found and meet_strings(found, limits)


def _string_dfas(
    document: Document, pointer: str, keywords: Keywords, *, lenient: bool
) -> list[Dfa]:
    found = []
    if "pattern" in keywords:
        found.append(pattern_dfa(document, child(pointer, "pattern"), lenient=lenient))
    if "format" in keywords:
        name, most = keywords["format"], keywords.get("maxLength")
        dfa = format_dfa(name, None if most is None else int(most))
        if dfa is None:
            hint = f"known are {', '.join(sorted(FORMATS))}; or write a pattern"
            raise document.error(child(pointer, "format"), f"unknown format {name!r}", hint)
        # What we write of a format is less than all of it, so its opposite is unknown.
        found.append(ANY if lenient else dfa)
    return found


def pattern_dfa(
    document: Document, pointer: str, *, lenient: bool, pattern: str | None = None
) -> Dfa:
    """The strings in which the pattern is found; it stands at `pointer`."""
    try:
        return search_dfa(document.at(pointer) if pattern is None else pattern, lenient=lenient)
    except RegexError as error:
        what = f"{error.what}, at character {error.position}"
        raise document.error(pointer, what, error.hint) from None


def _array(sets: Sets, pointer: str, keywords: Keywords) -> Array | None:
    low, high = _size(sets.document, pointer, keywords, "Items", MAX_ITEMS)
    if keywords.get("uniqueItems") and (high is None or high > 1):
        hint = "leave it out and say it in the prompt; items cannot be compared while they come"
        where = child(pointer, "uniqueItems")
        raise sets.document.error(where, "'uniqueItems' could not be enforced", hint)
    if high is not None and low > high:
        return None
    if "prefixItems" not in keywords and "items" not in keywords:
        return Array(low=low, high=high)
    places = range(len(keywords.get("prefixItems", ())))
    part = ItemsPart(
        prefix=tuple(sets.set_of(child(pointer, "prefixItems", place)) for place in places),
        rest=sets.set_of(child(pointer, "items")) if "items" in keywords else None,
    )
    return Array((part,), low, high)


def _object(sets: Sets, pointer: str, keywords: Keywords) -> Object | None:
    low, high = _size(sets.document, pointer, keywords, "Properties", MAX_PROPERTIES)
    if high is not None and low > high:
        return None
    named = {"properties", "patternProperties", "additionalProperties"} & set(keywords)
    return Object(
        parts=(_keys_part(sets, pointer, keywords),) if named else (),
        required=tuple(dict.fromkeys(keywords.get("required", ()))),
        names=_names(sets, pointer, keywords),
        low=low,
        high=high,
    )


def _keys_part(sets: Sets, pointer: str, keywords: Keywords) -> KeysPart:
    has_rest = "additionalProperties" in keywords
    patterns = []
    for pattern in keywords.get("patternProperties", {}):
        where = child(pointer, "patternProperties", pattern)
        strict, lenient = (
            pattern_dfa(sets.document, where, lenient=loose, pattern=pattern)
            for loose in (False, True)
        )
        patterns.append(PatternKeys(strict, lenient, sets.set_of(where)))
    return KeysPart(
        fields=tuple(
            (key, sets.set_of(child(pointer, "properties", key)))
            for key in keywords.get("properties", {})
        ),
        patterns=tuple(patterns),
        rest=sets.set_of(child(pointer, "additionalProperties")) if has_rest else None,
    )


def _names(sets: Sets, pointer: str, keywords: Keywords) -> Strings:
    """The keys that propertyNames lets be."""
    if "propertyNames" not in keywords:
        return Strings()
    where = child(pointer, "propertyNames")
    found = [s for s in sets.shapes(sets.set_of(where)) if isinstance(s, Strings)]
    if len(found) == 1:
        return found[0]
    names = automaton.NOTHING
    for shape in found:
        length = automaton.length_between(shape.low, shape.high)
        names = automaton.union(names, automaton.intersect(shape.dfa, length))
    return Strings(names)


def _size(
    document: Document, pointer: str, keywords: Keywords, what: str, most: int
) -> tuple[int, int | None]:
    low, high = int(keywords.get(f"min{what}", 0)), keywords.get(f"max{what}")
    for keyword, size in ((f"min{what}", low), (f"max{what}", high or 0)):
        if size > most:
            where = child(pointer, keyword)
            raise document.error(where, f"{size} is too many to count", f"at most {most}")
    return low, None if high is None else int(high)
