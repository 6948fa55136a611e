"""Schemas marked strict: what may be in them, and the fixed shape in which they go on (spec
recipe 5).

Every object is closed, and all of its properties are required. Keywords that constrained decoding
does not know vanish. Does not know tools or response formats.
"""

from collections.abc import Callable, Mapping
from typing import Any

from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.fields import (
    Reader,
    Unreadable,
    boolean,
    i64,
    mapping,
    one_of,
    read_at,
    sequence,
    string,
    wrong_type,
)
from deepinfer.recipe.records import Field, maybe, need, prefixed, record, tagged

_NO_SCHEMA = "one of `type`, `anyOf`, `$ref` field is required"


def _node(value: Any) -> dict[str, Any]:
    """One schema: of a type, of a list of types, of alternatives, or a reference."""
    for name, fits, read in _FORMS:
        if isinstance(value, dict) and name in value and fits(value[name]):
            found: dict[str, Any] = read(value)
            return found
    raise Unreadable(_NO_SCHEMA)


def _nodes(value: Any) -> dict[str, Any]:
    return {name: read_at(name, _node, one) for name, one in mapping(value).items()}


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(value, "a JSON number")
    return value


def _numeric(read: Reader) -> Mapping[str, Field]:
    names = "const default minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"
    return {"description": maybe(string)} | {name: maybe(read) for name in names.split()}


_DESCRIBED = {"description": maybe(string)}
# The fields stand in the order in which they are written.
_read_typed = tagged(
    "JsonSchemaType",
    "type",
    {
        "object": {
            "properties": maybe(_nodes),
            "additionalProperties": maybe(boolean),
            "required": maybe(sequence(string)),
            "description": maybe(string),
            "$def": maybe(_nodes),
        },
        "string": {
            **_DESCRIBED,
            "pattern": maybe(string),
            "format": maybe(one_of("email hostname ipv4 ipv6 uuid")),
            "enum": maybe(sequence(string)),
        },
        "number": _numeric(_number),
        "integer": _numeric(i64),
        "boolean": _DESCRIBED,
        "array": {"items": need(_node), **_DESCRIBED},
        "null": _DESCRIBED,
    },
)
_read_types = record(
    "struct SimpleTypes",
    {
        "type": need(prefixed("type", sequence(one_of("string number integer boolean null")))),
        "description": maybe(prefixed("description", string)),
    },
)
_read_choices = record("struct AnyOf", {"anyOf": need(prefixed("anyOf", sequence(_read_typed)))})
_read_reference = record("struct Reference", {"$ref": need(prefixed("$ref", string))})


def _always(_: Any) -> bool:
    return True


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_FORMS: tuple[tuple[str, Callable[[Any], bool], Reader], ...] = (
    ("type", _is_list, _read_types),
    ("type", _always, _read_typed),
    ("anyOf", _always, _read_choices),
    ("$ref", _always, _read_reference),
)


def strict_schema(schema: Any, *, unreadable: str, whole: str, empty: bool) -> dict[str, Any]:
    """The schema in the shape that constrained decoding wants.

    unreadable: how an error about a keyword begins. whole: what errors call the schema. empty: the
    outermost object may be without properties. Raises ConversionError.
    """
    try:
        node = _node(schema)
    except Unreadable as error:
        raise ConversionError(f"{unreadable}{error.text}") from None
    closed = _closed(node, empty=empty)
    if closed.get("type") != "object":
        raise ConversionError(f"The top level of the {whole} must be an object.")
    return closed


def _closed(node: dict[str, Any], *, empty: bool = False) -> dict[str, Any]:
    """The same with all objects closed; what is None is left out."""
    if node.get("type") == "object":
        return _closed_object(node, empty=empty)
    inner: dict[str, Any] = {}
    if "items" in node:
        inner["items"] = _closed(node["items"])
    if "anyOf" in node:
        inner["anyOf"] = [_closed(one, empty=empty) for one in node["anyOf"]]
    return {name: one for name, one in (node | inner).items() if one is not None}


def _closed_object(node: dict[str, Any], *, empty: bool) -> dict[str, Any]:
    properties = node["properties"] or {}
    if not properties and not empty:
        raise ConversionError("An object with no properties is not allowed.")
    closed = {name: _closed(one) for name, one in properties.items()}
    if node["required"] is not None:
        _check_required(node["required"], closed)
    if node["additionalProperties"]:
        raise ConversionError("additionalProperties should not be true")
    definitions = node["$def"]
    found = {
        "type": "object",
        "properties": closed,
        "additionalProperties": False,
        "required": list(closed),
        "description": node["description"],
        "$def": definitions and {name: _closed(one) for name, one in definitions.items()},
    }
    return {name: one for name, one in found.items() if one is not None}


def _check_required(required: list[str], properties: Mapping[str, Any]) -> None:
    seen: set[str] = set()
    for name in required:
        if name not in properties:
            raise ConversionError(f"Required property '{name}' not found in object")
        if name in seen:
            raise ConversionError(f"Duplicate required property '{name}'")
        seen.add(name)
    if len(seen) < len(properties):
        raise ConversionError("Required properties must match all properties in the object")
