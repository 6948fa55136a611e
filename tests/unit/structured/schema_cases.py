"""Schemas that people write, by kind; all of them are accepted."""

from typing import Any

_TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 3},
    },
    "required": ["name"],
    "additionalProperties": False,
}
_POINT = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}
_NAME = {"type": "string", "pattern": "^[A-Z][a-z]{1,10}$"}


def obj(required: list[str] | None = None, extra: Any = False, **properties: Any) -> dict[str, Any]:
    """An object schema."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema["required"] = list(properties) if required is None else required
    return schema if extra is None else schema | {"additionalProperties": extra}


ACCEPTED: dict[str, list[Any]] = {
    "bare": [
        {},
        True,
        {"type": "object"},
        {"type": "array"},
        {"type": "string"},
        {"type": "number"},
        {"type": "integer"},
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["string", "null"]},
        {"type": ["integer", "boolean", "array"]},
        {"required": ["a"]},
        {"type": "object", "required": ["a", "b"]},
        {"title": "t", "description": "d", "default": 1, "examples": [1], "$comment": "c"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "integer"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "boolean"},
        {"x-order": 3, "type": "string"},
    ],
    "enum and const": [
        {"enum": ["a", "b", "c"]},
        {"enum": [1, 2.5, True, None, "x", [1, 2], {"k": "v"}]},
        {"const": "only"},
        {"const": 42},
        {"const": 1.0},
        {"const": {"a": [1, {"b": None}]}},
        {"const": ""},
        {"enum": ['with "quotes"', "back\\slash", "new\nline", "tab\t", "\u0001"]},
        {"enum": ["日本語", "😀", "é", "\u2028"]},
        {"type": "string", "enum": ["a", 1, None, "b"]},
        {"enum": ["abc", "abd", "b"], "pattern": "^ab"},
        {"enum": [1, 2, 3, 4, 5], "minimum": 2, "maximum": 4},
        {"enum": [str(n) * 3 for n in range(300)]},
    ],
    "numbers": [
        {"type": "integer", "minimum": -5, "maximum": 5},
        {"type": "integer", "minimum": 0},
        {"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 12},
        {"type": "integer", "maximum": -1},
        {"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 100},
        {"type": "integer", "minimum": 10**18},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "number", "minimum": -0.5, "exclusiveMaximum": 0.25},
        {"type": "number", "maximum": -1.5},
        {"type": "number", "multipleOf": 3},
        {"minimum": 3},
        {"type": ["integer", "string"], "minimum": 3, "maxLength": 2},
    ],
    "strings": [
        {"type": "string", "maxLength": 5},
        {"type": "string", "minLength": 3},
        {"type": "string", "minLength": 2, "maxLength": 2},
        {"type": "string", "maxLength": 0},
        {"type": "string", "maxLength": 1000},
        {"type": "string", "maxLength": 65536},
        {"type": "string", "minLength": 10, "maxLength": 600},
        {"type": "string", "pattern": "^[a-z]+$"},
        {"type": "string", "pattern": "foo"},
        {"type": "string", "pattern": r"^\d{3}-\d{4}$"},
        {"type": "string", "pattern": "^(red|green|blue)$"},
        {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
        {"type": "string", "pattern": "^a", "minLength": 3, "maxLength": 5},
        {"type": "string", "pattern": r"^[\w.-]+@[\w-]+\.[a-z]{2,3}$"},
        {"type": "string", "pattern": r"^\S+$", "maxLength": 12},
        {"type": "string", "pattern": '^"[^"]*"$', "maxLength": 12},
        {"type": "string", "pattern": r"^\\+$", "maxLength": 4},
        {"type": "string", "pattern": "^[一-龥]{2,4}$"},
        {"type": "string", "pattern": "^.{2,6}$"},
        {"type": "string", "pattern": "^(a|b)*c?$", "maxLength": 9},
        _NAME,
        *(
            {"type": "string", "format": name}
            for name in (
                *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6"),
                *("uri", "uri-reference", "uuid", "json-pointer", "relative-json-pointer"),
            )
        ),
        {"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083},
        {"type": "string", "format": "date", "pattern": "^20"},
        {"type": "string", "format": "email", "maxLength": 30},
    ],
    "arrays": [
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
        {"type": "array", "items": {"type": "null"}, "minItems": 10, "maxItems": 1000},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3},
        {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False},
        {"type": "array", "prefixItems": [{"type": "null"}], "minItems": 2, "maxItems": 3},
        {"type": "array", "items": False},
        {"type": "array", "maxItems": 0},
        {"type": "array", "uniqueItems": False, "items": {"enum": [1, 2]}, "maxItems": 5},
        {"type": "array", "uniqueItems": True, "maxItems": 1},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
        {"items": {"type": "integer"}, "type": "array", "maxItems": 5},
    ],
    "objects": [
        obj(name=_NAME, age={"type": "integer", "minimum": 0, "maximum": 150}),
        obj([], a={"type": "integer"}, b={"type": "boolean"}, c={"type": "null"}),
        obj(["b"], a={"type": "integer"}, b={"type": "boolean"}),
        obj(None, None, a={"type": "integer"}),
        obj(None, True, a={"type": "integer"}),
        obj(["a"], {"type": "integer"}, a={"type": "boolean"}),
        obj([], False),
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "additionalProperties": False},
        {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
        {"type": "object", "additionalProperties": {"const": 1}, "minProperties": 1},
        {"type": "object", "patternProperties": {"^n_": {"type": "integer"}}},
        {
            "type": "object",
            "properties": {"n_1": {"const": 7}},
            "patternProperties": {"^n_": {"type": "integer"}, "_s$": {"type": "string"}},
            "additionalProperties": False,
        },
        {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,4}$"}, "maxProperties": 3},
        {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "maxProperties": 3},
        obj([], a={"const": 1}, b={"const": 2}, c={"const": 3}) | {"minProperties": 2},
        obj([], a={"const": 1}, b={"const": 2}, c={"const": 3}) | {"maxProperties": 1},
        obj(["a"], None, a={"const": 1}) | {"required": ["a", "zz"]},
        obj(["a"], a={"const": 1}, b={"const": 2}) | {"dependentRequired": {"b": ["c"]}},
        obj([], a={"const": 1}, b={"const": 2}) | {"dependentRequired": {"a": ["b"]}},
        obj([], None, a={"const": 1}, b={})
        | {"dependentSchemas": {"a": {"required": ["b"], "properties": {"b": {"const": 5}}}}},
        obj(**{"名前": {"const": "値"}, "emoji😀": {"type": "null"}, 'q"uote': {"const": 1}}),
        obj(inner=obj(deeper=obj(deepest={"enum": [1, 2]}))),
        obj(**{"$ref": {"type": "integer"}, "type": {"const": "x"}, "~/": {"type": "null"}}),
        obj([], a=False, b={"const": 1}),
        {"properties": {"a": {"type": "integer"}}, "type": "object"},
        obj(**{f"key{n}": {"type": "integer"} for n in range(12)}),
        obj([], **{f"key{n}": {"type": "boolean"} for n in range(40)}),
    ],
    "references": [
        _TREE,
        {"$ref": "#/$defs/p", "$defs": {"p": _POINT}},
        {"type": "array", "items": {"$ref": "#/definitions/p"}, "definitions": {"p": _POINT}},
        {"$defs": {"n": {"$anchor": "num", "type": "integer"}}, "$ref": "#num"},
        {"$defs": {"s": {"enum": ["a", "b"]}}, "type": "array", "items": {"$ref": "#/$defs/s"}},
        {"$defs": {"s": {"enum": ["a", "b"]}}, "$ref": "#/$defs/s", "const": "b"},
        {"$id": "https://x.org/s", "$defs": {"n": {"type": "null"}}, "$ref": "#/$defs/n"},
        obj(a={"$ref": "#/$defs/a~1b"}) | {"$defs": {"a/b": {"const": 1}}},
        obj(a={"$ref": "#/properties/b"}, b={"type": "integer"}),
        {
            "$ref": "#/$defs/even",
            "$defs": {
                "even": obj([], next={"$ref": "#/$defs/odd"}),
                "odd": obj([], next={"$ref": "#/$defs/even"}, end={"const": True}),
            },
        },
        {
            "$defs": {
                "node": obj(["v"], v={"type": "integer"}, n={"$ref": "#/$defs/list"}),
                "list": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
            "$ref": "#/$defs/list",
        },
    ],
    "anyOf": [
        {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]},
        {"anyOf": [{"type": "null"}, _POINT]},
        {"type": "string", "anyOf": [{"maxLength": 2}, {"pattern": "^long"}]},
        obj([], a={"const": 1}, b={"const": 2})
        | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"anyOf": [{"const": 1}, {"const": 1.0}, {"const": "1"}]},
        {"anyOf": [{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 3}]},
        {"anyOf": [{"enum": ["z"]}, {"not": {}}]},
    ],
    "allOf": [
        {"allOf": [{"type": "integer"}, {"minimum": 2}, {"maximum": 8}]},
        {"allOf": [obj([], None, a={"const": 1}), obj(["b"], None, b={"const": 2})]},
        {
            "allOf": [
                {"properties": {"a": {"minimum": 1}}},
                obj(a={"type": "integer", "maximum": 3}),
            ]
        },
        {"allOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string", "maxLength": 4},
        {"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}]},
        {
            "allOf": [
                {"anyOf": [{"const": 1}, {"const": 2}]},
                {"anyOf": [{"const": 2}, {"const": 3}]},
            ]
        },
        {"allOf": [{"$ref": "#/$defs/p"}], "$defs": {"p": _POINT}, "description": "d"},
        {"allOf": [{"items": {"type": "integer"}}, {"items": {"minimum": 5}}], "type": "array"},
        {"allOf": [True, {"type": "string", "maxLength": 2}]},
    ],
    "oneOf": [
        {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 4}]},
        {
            "oneOf": [
                obj(kind={"const": "circle"}, r={"type": "integer"}),
                obj(kind={"const": "square"}, side={"type": "integer"}),
                obj(kind={"const": "point"}),
            ]
        },
        {
            "oneOf": [
                obj([], a={"const": 1}, b={"const": 2}) | {"required": ["a"]},
                {"required": ["b"], "type": "object"},
            ]
        },
        {
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
            **obj([], a={"const": 1}, b={"const": 2}),
        },
        {
            "oneOf": [
                {"type": "integer", "maximum": 3},
                {"type": "integer", "minimum": 2, "maximum": 6},
            ]
        },
        {"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]},
        {
            "oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "z$"}],
            "maxLength": 4,
        },
        {
            "oneOf": [
                {"type": "array", "maxItems": 1},
                {"type": "array", "minItems": 2, "maxItems": 2},
            ]
        },
    ],
    "not and if": [
        {"not": {"type": "string"}},
        {"not": {"type": ["object", "array", "string"]}},
        {"type": "string", "not": {"enum": ["a", "b"]}, "maxLength": 2},
        {"type": "string", "not": {"pattern": "^x"}, "maxLength": 3},
        {"type": "integer", "not": {"minimum": 3, "maximum": 5}, "minimum": 0, "maximum": 9},
        {"type": "integer", "not": {"const": 4}, "minimum": 3, "maximum": 5},
        obj([], a={"const": 1}, b={"const": 2}) | {"not": {"required": ["a", "b"]}},
        {"not": {"const": None}, "type": ["null", "boolean"]},
        {
            **obj(["t"], t={"enum": ["x", "y"]}, v={"type": "integer"}),
            "if": {"properties": {"t": {"const": "x"}}, "required": ["t", "v"]},
            "then": {"required": ["v"]},
        },
        {
            "type": ["string", "integer"],
            "if": {"type": "string"},
            "then": {"maxLength": 2},
            "else": {"minimum": 5},
        },
        {"if": {"type": "integer"}, "then": {"maximum": 3}, "type": "integer"},
    ],
    "nested": [
        obj(
            items={
                "type": "array",
                "items": obj(
                    id={"type": "integer"},
                    tags={"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
                ),
            }
        ),
        {
            "type": "array",
            "items": {
                "anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "boolean"}}]
            },
            "maxItems": 4,
        },
        obj(
            matrix={
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "items": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 2,
                    "items": {"type": "integer"},
                },
            }
        ),
        obj(
            user=obj(name=_NAME, mail={"type": "string", "format": "email"}),
            when={"type": "string", "format": "date-time"},
            score={"type": "number", "minimum": 0},
        ),
        obj([], maybe={"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}),
        obj(free={"type": "object"}, anything={}),
    ],
}
