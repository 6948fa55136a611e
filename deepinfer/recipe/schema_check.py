"""Whether a value is a JSON schema, and if not, why: the shape of every keyword (spec recipe 5).

The shapes are those of the 2020-12 meta-schema, group by group in its order, since the first fault
is the one that is told. Schemas that name an older draft are judged by it as far as it differs in
what people write. schema_links.py looks for references and patterns.

Knows no instances: nothing is validated against the schema.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from deepinfer.recipe.json_text import compact

_ANCHOR = r"^[A-Za-z_][-A-Za-z0-9._]*$"
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_NONE_FITS = "is not valid under any of the schemas listed in the 'anyOf' keyword"
_IS: Mapping[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool) and isinstance(value, int | float) and value == int(value)
    ),
    "number": lambda value: not isinstance(value, bool) and isinstance(value, int | float),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def schema_fault(schema: Any) -> str | None:
    """Why the value is no JSON schema, or None if it is one."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    draft = str(named).rstrip("#").replace("https:", "http:").rpartition("json-schema.org/")[2]
    return _schema(schema, _DRAFTS.get(draft, {}))


Check = Callable[[Any, Mapping[str, Any]], str | None]


def _schema(value: Any, draft: Mapping[str, Any]) -> str | None:
    if isinstance(value, bool):
        return None
    if not isinstance(value, dict):
        return f'{compact(value)} is not of types "boolean", "object"'
    return _first(
        draft.get(name, group[name])(one, draft)
        for group in _GROUPS
        for name, one in value.items()
        if name in group
    )


def _a(kind: str) -> Check:
    def check(value: Any, _: Mapping[str, Any]) -> str | None:
        return None if _IS[kind](value) else f'{compact(value)} is not of type "{kind}"'

    return check


def _text_like(pattern: str) -> Check:
    def check(value: Any, draft: Mapping[str, Any]) -> str | None:
        if not isinstance(value, str):
            return _a("string")(value, draft)
        # A dollar sign would match before a last newline, too.
        fits = re.fullmatch(pattern.strip("^$"), value)
        return None if fits else f"{compact(value)} does not match {compact(pattern)}"

    return check


def _count(value: Any, draft: Mapping[str, Any]) -> str | None:
    fault = _a("integer")(value, draft)
    if not fault and value < 0:
        fault = f"{compact(value)} is less than the minimum of 0"
    return fault


def _above_zero(value: Any, draft: Mapping[str, Any]) -> str | None:
    fault = _a("number")(value, draft)
    if not fault and value <= 0:
        fault = f"{compact(value)} is less than or equal to the minimum of 0"
    return fault


def _list_of(check: Check, *, least: int = 0, unique: bool = False) -> Check:
    def check_all(value: Any, draft: Mapping[str, Any]) -> str | None:
        if not isinstance(value, list):
            return _a("array")(value, draft)
        if len(value) < least:
            return f"{compact(value)} has less than {least} item"
        fault = _first(check(one, draft) for one in value)
        if not fault and unique and len({compact(one) for one in value}) < len(value):
            fault = f"{compact(value)} has non-unique elements"
        return fault

    return check_all


def _map_of(check: Check) -> Check:
    def check_all(value: Any, draft: Mapping[str, Any]) -> str | None:
        if not isinstance(value, dict):
            return _a("object")(value, draft)
        return _first(check(one, draft) for one in value.values())

    return check_all


def _either(*checks: Check) -> Check:
    def check(value: Any, draft: Mapping[str, Any]) -> str | None:
        fits = any(one(value, draft) is None for one in checks)
        return None if fits else f"{compact(value)} {_NONE_FITS}"

    return check


def _type_name(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if value in _TYPES else "no type"


def _anything(_: Any, __: Mapping[str, Any]) -> str | None:
    return None


def _first(faults: Any) -> str | None:
    return next((str(fault) for fault in faults if fault), None)


_STRING, _BOOLEAN, _NUMBER = _a("string"), _a("boolean"), _a("number")
_SCHEMAS = _list_of(_schema, least=1)
_STRINGS = _list_of(_STRING, unique=True)

_CORE: Mapping[str, Check] = {
    "$id": _text_like("^[^#]*#?$"),
    "$schema": _STRING,
    "$ref": _STRING,
    "$anchor": _text_like(_ANCHOR),
    "$dynamicRef": _STRING,
    "$dynamicAnchor": _text_like(_ANCHOR),
    "$vocabulary": _map_of(_BOOLEAN),
    "$comment": _STRING,
    "$defs": _map_of(_schema),
}
_APPLICATOR: Mapping[str, Check] = {
    "prefixItems": _SCHEMAS,
    **dict.fromkeys(("items", "contains", "additionalProperties"), _schema),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _map_of(_schema)),
    **dict.fromkeys(("propertyNames", "if", "then", "else"), _schema),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _SCHEMAS),
    "not": _schema,
}
_UNEVALUATED: Mapping[str, Check] = {
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), _schema),
}
_VALIDATION: Mapping[str, Check] = {
    "type": _either(_type_name, _list_of(_type_name, least=1, unique=True)),
    "enum": _a("array"),
    "multipleOf": _above_zero,
    **dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"), _NUMBER),
    **dict.fromkeys(("maxLength", "minLength"), _count),
    "pattern": _STRING,
    **dict.fromkeys(("maxItems", "minItems"), _count),
    "uniqueItems": _BOOLEAN,
    **dict.fromkeys(("maxContains", "minContains", "maxProperties", "minProperties"), _count),
    "required": _STRINGS,
    "dependentRequired": _map_of(_STRINGS),
}
_META_DATA: Mapping[str, Check] = {
    **dict.fromkeys(("title", "description"), _STRING),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), _BOOLEAN),
    "examples": _a("array"),
}
_FORMAT: Mapping[str, Check] = {"format": _STRING}
_CONTENT: Mapping[str, Check] = {
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _STRING),
    "contentSchema": _schema,
}
_DEPRECATED: Mapping[str, Check] = {
    "definitions": _map_of(_schema),
    "dependencies": _map_of(_either(_schema, _STRINGS)),
    "$recursiveAnchor": _text_like(_ANCHOR),
    "$recursiveRef": _STRING,
}
_GROUPS = (
    *(_DEPRECATED, _CORE, _APPLICATOR, _UNEVALUATED, _VALIDATION, _META_DATA),
    *(_FORMAT, _CONTENT),
)

# What older drafts see otherwise.
_NEW_IN_2019 = (
    *("$anchor", "$vocabulary", "$defs", "dependentSchemas", "unevaluatedItems"),
    *("unevaluatedProperties", "maxContains", "minContains", "dependentRequired", "deprecated"),
    *("contentSchema", "$recursiveAnchor", "$recursiveRef"),
)
_BEFORE_2020 = {
    "items": _either(_schema, _SCHEMAS),
    **dict.fromkeys(("prefixItems", "$dynamicRef", "$dynamicAnchor"), _anything),
}
_DRAFT_7 = {**_BEFORE_2020, **dict.fromkeys(_NEW_IN_2019, _anything), "$id": _STRING}
_DRAFT_6 = {
    **_DRAFT_7,
    **dict.fromkeys(("$comment", "if", "then", "else", "readOnly", "writeOnly"), _anything),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _anything),
}
_DRAFT_4 = {
    **_DRAFT_6,
    **dict.fromkeys(("$id", "contains", "propertyNames", "examples"), _anything),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum"), _BOOLEAN),
    "required": _list_of(_STRING, least=1, unique=True),
}
_DRAFTS: Mapping[str, Mapping[str, Check]] = {
    "draft-04/schema": _DRAFT_4,
    "draft-06/schema": _DRAFT_6,
    "draft-07/schema": _DRAFT_7,
    "draft/2019-09/schema": {**_BEFORE_2020, "$recursiveAnchor": _BOOLEAN},
}
