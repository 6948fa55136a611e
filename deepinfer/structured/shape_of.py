"""A JSON schema's keywords -> shapes: what the schema allows, its references followed.

Works on sets of subschemas that must all hold, so that `allOf`, `$ref` and keywords beside each
other are one case: the union of sets. What is inside arrays and objects stays a set, looked at
only when it is asked for; recursion costs nothing.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from deepinfer.structured.automaton import TooManyStates
from deepinfer.structured.document import NOT, Document, SchemaSet, checked, child
from deepinfer.structured.exclusion import are_disjoint, excluded, without_key
from deepinfer.structured.meeting import meet
from deepinfer.structured.members import is_member
from deepinfer.structured.own_keywords import own_shapes
from deepinfer.structured.shapes import (
    ANYTHING,
    EVERYTHING,
    NOTHING,
    Object,
    Shape,
    Values,
    shapes_of_values,
    simplified,
)

MAX_SHAPES = 256
MAX_SETS = 2000


class Shaper:
    """The shapes of a document's schemas, each worked out once.

    lenient: at least what is allowed, for what must not be; else at most.
    """

    def __init__(self, document: Document, *, lenient: bool = False) -> None:
        self.document = document
        self._is_lenient = lenient
        self._lenient = self if lenient else Shaper(document, lenient=True)
        self._known: dict[str, tuple[Shape, ...]] = {}
        self._sets: dict[SchemaSet, tuple[Shape, ...]] = {}
        self._disjoint: dict[tuple[SchemaSet, SchemaSet, int], bool] = {}
        self._open: list[str] = []
        self._negatable: dict[str, bool] = {}

    def set_of(self, pointer: str) -> SchemaSet:
        """The schema at `pointer` as a set: nothing but a reference is what it refers to."""
        followed: set[str] = set()
        while True:
            schema = self.document.at(pointer)
            if not isinstance(schema, dict) or set(schema) != {"$ref"} or pointer in followed:
                break
            followed.add(pointer)
            checked(self.document, pointer)
            pointer = self.document.target(pointer)
        if schema is False:
            return NOTHING
        # Not `in`: 1 is no schema, though it equals true.
        return ANYTHING if schema is True or schema == {} else frozenset({pointer})

    def are_disjoint(self, a: SchemaSet, b: SchemaSet, depth: int) -> bool:
        """Nothing satisfies both, as far as can be told in so many levels more."""
        key = (a, b, depth)
        if key not in self._disjoint:
            self._disjoint[key] = all(
                are_disjoint(x, y, self, depth) for x in self.shapes(a) for y in self.shapes(b)
            )
        return self._disjoint[key]

    def shapes(self, schemas: SchemaSet) -> tuple[Shape, ...]:
        """What all of them allow together. Raises RequestError for what cannot be enforced."""
        if schemas not in self._sets:
            if len(self._sets) >= MAX_SETS:
                raise self.document.error(
                    "", "its parts combine in too many ways", "use fewer allOf, anyOf and oneOf"
                )
            found: Sequence[Shape] = EVERYTHING
            for pointer in sorted(schemas, key=_in_order):
                found = self._both(found, self._of(pointer), pointer)
            self._sets[schemas] = tuple(found)
        return self._sets[schemas]

    def holds(self, schemas: SchemaSet, value: Any) -> bool:
        """The value is allowed by all of them."""
        return any(is_member(shape, value, self.holds) for shape in self.shapes(schemas))

    def _of(self, pointer: str) -> tuple[Shape, ...]:
        if pointer not in self._known:
            if pointer in self._open:
                hint = "put a property or an item between a schema and its reference to itself"
                raise self.document.error(pointer, "the schema is defined by itself", hint)
            self._open.append(pointer)
            try:
                self._known[pointer] = self._work_out(pointer)
            except TooManyStates:
                hint = "use shorter patterns and smaller lengths, or fewer of them together"
                raise self.document.error(pointer, "it has too many cases", hint) from None
            self._open.pop()
        return self._known[pointer]

    def _can_negate(self, pointer: str) -> bool:
        """What a schema inside does not allow can be told, and it is something."""
        if pointer.startswith(NOT):
            return False
        if pointer not in self._negatable:
            # Until it is known, for what refers to itself: no.
            self._negatable[pointer] = False
            outside = excluded(self._lenient._of(pointer), self._can_negate)
            self._negatable[pointer] = bool(outside)
        return self._negatable[pointer]

    def _work_out(self, pointer: str) -> tuple[Shape, ...]:
        if pointer.startswith(NOT):
            return tuple(self._outside(pointer.removeprefix(NOT)))
        if self.document.at(pointer) is False:
            return ()
        keywords = checked(self.document, pointer)
        found: Sequence[Shape] = own_shapes(self, pointer, keywords, lenient=self._is_lenient)
        if "$ref" in keywords:
            found = self._both(found, self._of(self.document.target(pointer)), pointer)
        for place in range(len(keywords.get("allOf", ()))):
            found = self._both(found, self._of(child(pointer, "allOf", place)), pointer)
        if "anyOf" in keywords:
            found = self._both(found, self._any_of(pointer, len(keywords["anyOf"])), pointer)
        if "oneOf" in keywords:
            found = self._one_of(found, pointer, len(keywords["oneOf"]))
        if "not" in keywords:
            found = self._both(found, self._outside(child(pointer, "not")), pointer)
        if "if" in keywords and ("then" in keywords or "else" in keywords):
            found = self._both(found, self._conditional(pointer, keywords), pointer)
        found = self._dependents(found, pointer, keywords)
        return self._enumerated(found, keywords)

    def _dependents(
        self, found: Sequence[Shape], pointer: str, keywords: dict[str, Any]
    ) -> Sequence[Shape]:
        for key, names in keywords.get("dependentRequired", {}).items():
            found = self._both(found, _with_key(key, [Object(required=(key, *names))]), pointer)
        for key in keywords.get("dependentSchemas", {}):
            inner = self._of(child(pointer, "dependentSchemas", key))
            wanted = self._both([Object(required=(key,))], inner, pointer)
            found = self._both(found, _with_key(key, wanted), pointer)
        return found

    def _enumerated(self, found: Sequence[Shape], keywords: dict[str, Any]) -> tuple[Shape, ...]:
        for listed in ([keywords["const"]] if "const" in keywords else None, keywords.get("enum")):
            if listed is not None:
                allowed = [
                    v for v in listed if any(is_member(shape, v, self.holds) for shape in found)
                ]
                found = shapes_of_values(allowed)
        return tuple(found)

    def _any_of(self, pointer: str, count: int) -> tuple[Shape, ...]:
        places = (child(pointer, "anyOf", place) for place in range(count))
        return simplified(shape for place in places for shape in self._of(place))

    def _one_of(self, base: Sequence[Shape], pointer: str, count: int) -> tuple[Shape, ...]:
        """One branch and none of the others, `base` being what holds in any case."""
        places = [child(pointer, "oneOf", place) for place in range(count)]
        branches = [self._both(base, self._of(place), pointer) for place in places]
        if self._is_lenient:
            return simplified(shape for branch in branches for shape in branch)
        loose = [self._both(base, self._lenient._of(place), pointer) for place in places]
        found: list[Shape] = []
        for mine, branch in enumerate(branches):
            left: Sequence[Shape] = branch
            for other, shapes in enumerate(loose):
                if other != mine:
                    left = self._apart(left, shapes, places[other])
            found += left
        return simplified(found)

    def _apart(
        self, mine: Sequence[Shape], other: Sequence[Shape], pointer: str
    ) -> Sequence[Shape]:
        """What of `mine` is certainly not in `other`."""
        found: list[Shape] = []
        for shape in mine:
            close = [o for o in other if not are_disjoint(shape, o, self._lenient)]
            if not close:
                found.append(shape)
                continue
            outside = excluded(close, self._can_negate)
            if outside is None:
                hint = "give each a required property with a const of its own, or write anyOf"
                raise self.document.error(pointer, "it may hold together with another one", hint)
            found += self._both([shape], outside, pointer)
        return found

    def _outside(self, pointer: str) -> Sequence[Shape]:
        """What the schema at `pointer` does not allow."""
        if self._is_lenient:
            return EVERYTHING
        outside = excluded(self._lenient._of(pointer), self._can_negate)
        if outside is None:
            hint = "`not` and `if` work with types, values, patterns, ranges and required keys"
            raise self.document.error(pointer, "its opposite could not be enforced", hint)
        return outside

    def _conditional(self, pointer: str, keywords: dict[str, Any]) -> tuple[Shape, ...]:
        holds: Sequence[Shape] = self._of(child(pointer, "if"))
        fails: Sequence[Shape] = self._outside(child(pointer, "if"))
        if "then" in keywords:
            holds = self._both(holds, self._of(child(pointer, "then")), pointer)
        if "else" in keywords:
            fails = self._both(fails, self._of(child(pointer, "else")), pointer)
        return simplified((*holds, *fails))

    def _both(self, a: Sequence[Shape], b: Sequence[Shape], pointer: str) -> tuple[Shape, ...]:
        """What is in a shape of `a` and in one of `b`."""
        met = (self._meet(x, y) for x in a for y in b)
        found = simplified(shape for shape in met if shape is not None)
        if len(found) > MAX_SHAPES:
            hint = f"at most {MAX_SHAPES} can be kept apart; use fewer anyOf and oneOf together"
            raise self.document.error(pointer, f"it has {len(found)} alternatives", hint)
        return found

    def _meet(self, a: Shape, b: Shape) -> Shape | None:
        if isinstance(a, Values) != isinstance(b, Values):
            values, other = (a, b) if isinstance(a, Values) else (b, a)
            assert isinstance(values, Values)
            kept = {text for text in values.texts if is_member(other, json.loads(text), self.holds)}
            return Values(frozenset(kept)) if kept else None
        return meet(a, b)


def _with_key(key: str, wanted: Iterable[Shape]) -> tuple[Shape, ...]:
    """Anything, if objects with the key are as `wanted`."""
    others = [shape for shape in EVERYTHING if not isinstance(shape, Object)]
    return (*others, without_key(key), *wanted)


def _in_order(pointer: str) -> list[str]:
    """For sorting: the numbers in pointers by their size."""
    return [token.zfill(6) if token.isdecimal() else token for token in pointer.split("/")]
