"""A JSON schema -> the grammar of the JSON texts that it allows, or an error that says where.

The entry to schemas. What is accepted is enforced in full: every text of the grammar validates.
The grammar may be narrower than the schema (docs/structured_output.md says where).
"""

from dataclasses import dataclass
from typing import Any

from deepinfer.errors import RequestError
from deepinfer.structured.automaton import TooManyStates
from deepinfer.structured.document import NEVER, Document, SchemaSet, read_document
from deepinfer.structured.grammar import Grammar
from deepinfer.structured.grammar_check import MAX_RULES
from deepinfer.structured.layout import (
    Layout,
    alive_part,
    array_layout,
    children,
    object_layout,
)
from deepinfer.structured.prune import pruned
from deepinfer.structured.shape_of import Shaper
from deepinfer.structured.shapes import Array, Object, Shape, Strings
from deepinfer.structured.write_json import JsonRules, TooManyRules, Written, json_rules

ANY_OBJECT = {"type": "object"}


def schema_grammar(
    schema: Any, *, field: str = "so_args.schema", whitespace: str = "bounded"
) -> Grammar:
    """The JSON texts that `schema` allows.

    schema: JSON text, or its value. whitespace: "bounded" lets the model choose line breaks with an
    indent of at most 16, "none" allows none at all.
    Raises RequestError naming the place in the schema, the reason and a way out: for what is not a
    schema, a keyword that could not be enforced, and a schema that no value satisfies.
    """
    known = known_shapes(schema, field)
    written = rules_of(known, whitespace)
    grammar = pruned(Grammar(written.rules, written.names[known.root]))
    if grammar is None:
        raise uncountable(known)
    return grammar


@dataclass(frozen=True)
class Known:
    """A schema, worked out: its root, and the shapes of it and of all that is inside."""

    document: Document
    root: SchemaSet
    values: dict[SchemaSet, list[Written]]


def known_shapes(schema: Any, field: str) -> Known:
    """What a schema allows. Raises RequestError as `schema_grammar` does."""
    document = read_document(schema, field)
    shaper = Shaper(document)
    root = shaper.set_of("")
    try:
        found = _explore(shaper, root)
    except RecursionError:
        hint = "use shorter chains of $ref, and less nesting in const and enum"
        raise RequestError("its parts lead too deep", field=field, hint=hint) from None
    except TooManyStates:
        hint = "use shorter patterns, smaller lengths, fewer values"
        raise RequestError("it has too many cases", field=field, hint=hint) from None
    alive = _with_values(found)
    _refuse_contradictions(shaper, root, found, alive)
    kept = {one: _kept(shapes, alive) for one, shapes in found.items() if one in alive}
    return Known(document, root, kept)


def rules_of(known: Known, whitespace: str, prefix: str = "") -> JsonRules:
    """The rules of all that is inside. Raises RequestError naming what is too much."""
    try:
        return json_rules(known.values, whitespace, prefix)
    except TooManyRules as error:
        what = f"it is too large: with it, the grammar has more than {MAX_RULES} rules"
        hint = "use smaller maxItems, minItems and maxLength, or fewer properties"
        raise known.document.error(min(error.schemas, default=""), what, hint) from None


def uncountable(known: Known) -> RequestError:
    """The error for a schema that values satisfy, but none that can be written here."""
    hint = (
        "name the keys that minProperties counts; leave room between the bounds of a number, which "
        "has at most 17 decimals; private characters of plane 16 cannot be written"
    )
    return known.document.error("", "no value that satisfies it can be written", hint)


def _explore(shaper: Shaper, root: SchemaSet) -> dict[SchemaSet, list[Written]]:
    """The shapes of all sets that values inside lead to, arrays and objects laid out."""
    found: dict[SchemaSet, list[Written]] = {}
    waiting = [root]
    while waiting:
        schemas = waiting.pop(0)
        if schemas in found:
            continue
        shapes = () if NEVER in schemas else shaper.shapes(schemas)
        found[schemas] = [_laid_out(shape) for shape in shapes]
        for one in found[schemas]:
            waiting += children(one) if isinstance(one, Layout) else ()
    return found


def _laid_out(shape: Shape) -> Written:
    if isinstance(shape, Array):
        return array_layout(shape)
    return object_layout(shape) if isinstance(shape, Object) else shape


def _kept(shapes: list[Written], alive: set[SchemaSet]) -> list[Written]:
    """The shapes without what has no values."""
    kept: list[Written] = []
    for shape in shapes:
        left = alive_part(shape, alive) if isinstance(shape, Layout) else shape
        if left is not None and not (isinstance(left, Strings) and not left.dfa.accepting):
            kept.append(left)
    return kept


def _with_values(found: dict[SchemaSet, list[Written]]) -> set[SchemaSet]:
    """The sets that some finite value satisfies."""
    alive: set[SchemaSet] = set()
    grew = True
    while grew:
        fresh = {one for one in found if one not in alive and _kept(found[one], alive)}
        alive |= fresh
        grew = bool(fresh)
    return alive


def _refuse_contradictions(
    shaper: Shaper,
    root: SchemaSet,
    found: dict[SchemaSet, list[Written]],
    alive: set[SchemaSet],
) -> None:
    """Refuse a schema that nothing satisfies, at the root or as it is written further inside.

    A place that only a combination makes impossible, or that says `false`, just stays empty.
    """
    document = shaper.document
    dead = [one for one in found if one not in alive and len(one) == 1 and NEVER not in one]
    if root in alive and not dead:
        return
    # The innermost are to blame: what contains them is dead because of them.
    blamed = [one for one in dead if not any(_leads_to(found[one], o) for o in dead if o != one)]
    pointer = min(min(blamed or dead or [root], key=sorted))
    what = "no value satisfies it"
    if pointer == NEVER:
        raise document.error("", "`false` allows nothing", "say what the output may be")
    if root not in alive and not blamed and not dead:
        raise document.error("", what, "required properties contradict each other")
    raise document.error(pointer, what, "look for limits that contradict each other")


def _leads_to(shapes: list[Written], other: SchemaSet) -> bool:
    return any(other in children(shape) for shape in shapes if isinstance(shape, Layout))
