"""A JSON schema as a document: its subschemas by pointer, references, and keywords that make sense.

Knows names and shapes of keywords; what they allow is shapes.py's.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from deepinfer.errors import RequestError
from deepinfer.structured.keywords import (
    COUNTS,
    DIALECTS,
    KEYWORDS,
    NUMBERS,
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    SCHEMA_VALUES,
    STRINGS,
    TYPES,
)

MAX_DEPTH = 100
MAX_BITS = 1024  # of a whole number: more than float64 reaches
MAX_CHARACTERS = 1_000_000
# A set of subschemas that must all hold, by pointer. The empty set allows any JSON value.
SchemaSet = frozenset[str]
# The pointer of a schema that allows nothing; no real pointer begins so.
NEVER = "!"
# Before a pointer: whatever the schema there does not allow.
NOT = "~"


@dataclass(frozen=True)
class Document:
    """The whole schema. field: how the request calls it, for errors."""

    root: Any
    field: str
    anchors: dict[str, str]

    def at(self, pointer: str) -> Any:
        """The subschema at a pointer that `child` or `target` made."""
        if pointer == NEVER:
            return False
        value = self.root
        for token in _tokens(pointer):
            value = value[int(token)] if isinstance(value, list) else value[token]
        return value

    def target(self, pointer: str) -> str:
        """What the $ref of the subschema at `pointer` points to."""
        reference: str = self.at(pointer)["$ref"]
        base = self.root.get("$id", "") if isinstance(self.root, dict) else ""
        fragment = reference.removeprefix(base) if base else reference
        where = child(pointer, "$ref")
        if fragment in ("", "#"):
            return ""
        if not fragment.startswith("#"):
            raise self.error(where, f"{reference!r} lies outside the schema", "copy it into $defs")
        found = unquote(fragment[1:])
        if not found.startswith("/"):
            if found not in self.anchors:
                raise self.error(where, f"there is no $anchor {found!r}", "check its spelling")
            return self.anchors[found]
        try:
            self.at(found)
        except (KeyError, IndexError, ValueError, TypeError):
            hint = "the pointer must lead to a schema of this document"
            raise self.error(where, f"{reference!r} leads nowhere", hint) from None
        return found

    def error(self, pointer: str, what: str, hint: str) -> RequestError:
        """An error that names the place in the schema."""
        return RequestError(what, field=f"{self.field}#{pointer}", hint=hint)


def read_document(schema: Any, field: str) -> Document:
    """The schema, given as JSON text or as its value. Raises RequestError for what is not one."""
    if isinstance(schema, str):
        schema = _parse(schema, field)
    anchors: dict[str, str] = {}
    document = Document(schema, field, anchors)
    _check_values(document)
    for pointer, value in _subschemas(document):
        name = value.get("$anchor")
        if isinstance(name, str):
            if name in anchors:
                where = child(pointer, "$anchor")
                raise document.error(where, f"{name!r} stands twice", "rename one of the two")
            anchors[name] = pointer
    return document


def child(pointer: str, *tokens: str | int) -> str:
    """The pointer to a part of the schema at `pointer`."""
    escaped = (str(token).replace("~", "~0").replace("/", "~1") for token in tokens)
    return "/".join((pointer, *escaped))


def checked(document: Document, pointer: str) -> dict[str, Any]:
    """The subschema's keywords, each known and of the right kind; {} for true.

    `false` is for the caller. Raises RequestError naming the keyword.
    """
    schema = document.at(pointer)
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        hint = 'a schema is an object, true or false, such as {"type": "string"}'
        raise document.error(pointer, f"found {_kind(schema)}", hint)
    for keyword, value in schema.items():
        _check_keyword(document, pointer, keyword, value)
    return schema


def _check_keyword(document: Document, pointer: str, keyword: str, value: Any) -> None:
    where = child(pointer, keyword)
    if keyword.startswith("x-"):
        return
    if keyword not in KEYWORDS:
        hint = "check its spelling; names that begin with x- are let pass"
        raise document.error(where, f"{keyword!r} is no keyword of JSON Schema", hint)
    status, note = KEYWORDS[keyword]
    if status == "refused":
        raise document.error(where, f"{keyword!r} could not be enforced", note)
    expected = _expected(keyword, value)
    if expected:
        raise document.error(where, f"found {_kind(value)}", f"expected {expected}")
    if keyword == "$id" and pointer:
        raise document.error(where, "a second base for references", "leave it out")
    if keyword == "$schema" and not any(name in value for name in DIALECTS):
        raise document.error(where, f"{value!r} is not a known dialect", f"one of {DIALECTS}")


def _expected(keyword: str, value: Any) -> str:
    """What the keyword takes, if `value` is something else; else nothing."""
    for keywords, is_good, expected in _RULES:
        if keyword in keywords and not is_good(value):
            return expected
    return ""


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _are_types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_lists_of_names(value: Any) -> bool:
    return isinstance(value, dict) and all(_are_names(names) for names in value.values())


_Rule = tuple[Collection[str], Callable[[Any], bool], str]
_RULES: tuple[_Rule, ...] = (
    (COUNTS, _is_count, "a whole number of at least 0"),
    (NUMBERS, _is_number, "a number"),
    (("multipleOf",), lambda value: value > 0, "a number above 0"),
    (STRINGS, lambda value: isinstance(value, str), "a string"),
    (SCHEMA_LISTS, lambda value: isinstance(value, list) and bool(value), "a list of schemas"),
    (SCHEMA_MAPS, lambda value: isinstance(value, dict), "an object of schemas"),
    (("items",), lambda value: not isinstance(value, list), "a schema; prefixItems takes a list"),
    (SCHEMA_VALUES, lambda value: isinstance(value, dict | bool), "a schema"),
    (("type",), _are_types, f"one or some of {', '.join(TYPES)}"),
    (("enum",), lambda value: isinstance(value, list) and bool(value), "a list of values"),
    (("required",), _are_names, "a list of names"),
    (("dependentRequired",), _are_lists_of_names, "names, each with a list of names"),
    (("uniqueItems",), lambda value: isinstance(value, bool), "true or false"),
)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    text = json.dumps(value, default=repr, ensure_ascii=False)[:40]
    return text if len(text) < 40 else names.get(type(value), "a number")


def _parse(text: str, field: str) -> Any:
    if len(text) > MAX_CHARACTERS:
        raise RequestError(
            f"the schema has {len(text)} characters",
            field=field,
            hint=f"at most {MAX_CHARACTERS}",
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "write the schema as JSON text, or pass it as a dict"
        raise RequestError(f"not JSON: {error}", field=field, hint=hint) from None


def _tokens(pointer: str) -> Iterator[str]:
    for token in pointer.split("/")[1:]:
        yield token.replace("~1", "/").replace("~0", "~")


def _check_values(document: Document) -> None:
    """Refuse what is nested too deep, and what JSON cannot say."""
    waiting: list[tuple[Any, int]] = [(document.root, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > 2 * MAX_DEPTH:
            raise document.error("", "nested too deep", f"at most {MAX_DEPTH} levels of schemas")
        if isinstance(value, float) and not math.isfinite(value):
            raise document.error("", f"{value} is no number of JSON", "write a finite number")
        if type(value) is int and value.bit_length() > MAX_BITS:
            raise document.error("", "a number of hundreds of digits", "write a smaller number")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise document.error("", f"the key {key!r}", "keys of JSON are strings")
            waiting += [(inner, depth + 1) for inner in value.values()]
        elif isinstance(value, list):
            waiting += [(inner, depth + 1) for inner in value]


def _subschemas(document: Document) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of the document that is an object. Values that only look like one, in const or
    examples say, are none.
    """
    waiting: list[tuple[str, Any]] = [("", document.root)]
    while waiting:
        pointer, value = waiting.pop()
        if not isinstance(value, dict):
            continue
        yield pointer, value
        for keyword, inner in value.items():
            where = child(pointer, keyword)
            if keyword in SCHEMA_VALUES:
                waiting.append((where, inner))
            elif keyword in SCHEMA_LISTS and isinstance(inner, list):
                waiting += [(child(where, place), one) for place, one in enumerate(inner)]
            elif keyword in SCHEMA_MAPS and isinstance(inner, dict):
                waiting += [(child(where, key), one) for key, one in inner.items()]
