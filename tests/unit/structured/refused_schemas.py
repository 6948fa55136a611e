"""Schemas that are refused, where the error points, and a word of what it says."""

from typing import Any

from tests.unit.structured.schema_cases import obj

# schema -> (where the error points, a word of what it says)
REFUSED: list[tuple[Any, str, str]] = [
    (False, "", "nothing"),
    ({"type": "object", "properties": {"a": {"enum": []}}}, "/properties/a/enum", "found []"),
    ({"type": "string", "enum": [1, 2]}, "", "no value"),
    ({"const": 1, "enum": [2, 3]}, "", "no value"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "", "no value"),
    ({"type": "string", "minLength": 5, "maxLength": 3}, "", "no value"),
    ({"type": "string", "pattern": "^[a-z]{5}$", "maxLength": 3}, "", "no value"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "", "no value"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "", "no value"),
    (obj(a={"type": "integer", "const": "x"}), "/properties/a", "no value"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "", "no value"),
    (
        {"$ref": "#/$defs/loop", "$defs": {"loop": obj(next={"$ref": "#/$defs/loop"})}},
        "/$defs/loop",
        "no value",
    ),
    ({"type": "string", "format": "nonsense"}, "/format", "nonsense"),
    ({"type": "string", "pattern": "(?=a)b"}, "/pattern", "look"),
    ({"type": "string", "pattern": "(a)\\1"}, "/pattern", "back"),
    ({"type": "string", "pattern": "(a"}, "/pattern", "character"),
    ({"type": "string", "pattern": "\\bword"}, "/pattern", "\\b"),
    ({"$ref": "https://x.org/other.json"}, "/$ref", "outside"),
    ({"$ref": "#/$defs/missing"}, "/$ref", "nowhere"),
    ({"$ref": "#missing"}, "/$ref", "missing"),
    ({"$ref": "#"}, "", "itself"),
    ({"anyOf": [{"$ref": "#"}, {"type": "integer"}]}, "", "itself"),
    ({"type": "array", "uniqueItems": True}, "/uniqueItems", "uniqueItems"),
    ({"type": "array", "contains": {"const": 1}}, "/contains", "contains"),
    ({"type": "object", "unevaluatedProperties": False}, "/unevaluatedProperties", "unevaluated"),
    ({"dependencies": {"a": ["b"]}}, "/dependencies", "dependencies"),
    ({"$dynamicRef": "#x"}, "/$dynamicRef", "dynamicRef"),
    ({"contentEncoding": "base64"}, "/contentEncoding", "contentEncoding"),
    ({"minLenght": 3}, "/minLenght", "no keyword"),
    ({"type": "strnig"}, "/type", "strnig"),
    ({"type": "number", "multipleOf": 0.01}, "/multipleOf", "0.01"),
    ({"minLength": -1}, "/minLength", "-1"),
    ({"items": [{"type": "integer"}]}, "/items", "found"),
    ({"properties": []}, "/properties", "found"),
    ({"required": "a"}, "/required", "found"),
    ({"anyOf": []}, "/anyOf", "found"),
    ([1], "", "found"),
    ("{not json", "", "not JSON"),
    (obj(a={"properties": {"b": {"oops": 1}}}), "/properties/a/properties/b/oops", "no keyword"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"}, "/$schema", "draft-04"),
    (
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 5},
        "",
        "written",
    ),
    ({"type": "object", "maxProperties": 100000}, "/maxProperties", "100000"),
    ({"type": "array", "minItems": 10**9}, "/minItems", "1000000000"),
    ({"not": {"properties": {"a": {"items": {"const": 1}}}}}, "/not", "opposite"),
    (
        {
            "oneOf": [
                {"type": "array", "items": {"const": 1}},
                {"type": "array", "items": {"const": 2}},
            ]
        },
        "/oneOf/1",
        "together",
    ),
    ({"properties": {"a": {"$id": "x"}}}, "/properties/a/$id", "second base"),
]
