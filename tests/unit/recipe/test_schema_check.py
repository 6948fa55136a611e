"""JSON schemas: whether they are, and the strict shape of those that are marked so."""

import pytest

from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.schema_check import schema_fault
from deepinfer.recipe.schema_links import link_fault
from deepinfer.recipe.strict_schema import strict_schema

NO_TYPE = "is not valid under any of the schemas listed in the 'anyOf' keyword"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": ["object", "null"], "x": 1, "default": None, "const": {"$ref": "#/no"}},
        {"properties": {"a": {"maxLength": 2.0}}, "required": ["a"]},
        {"$schema": DRAFT_7, "items": [{}], "$defs": 1},
        {"properties": {"a": {"$ref": "#/$defs/b~1c"}}, "$defs": {"b/c": {}}},
        {"$anchor": "x", "items": {"$ref": "#x"}},
        {"pattern": r"^\p{L}(?<n>\d+)\k<n>$"},
        # Nothing refers to it.
        {"$defs": {"a": {"pattern": "(", "$ref": "#/no"}}},
    ],
)
def test_good(schema):
    """A schema that works is refused."""
    assert schema_fault(schema) is None
    assert link_fault(schema) is None


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        (None, 'null is not of types "boolean", "object"'),
        ({"type": "text"}, f'"text" {NO_TYPE}'),
        ({"type": ["string", "string"]}, f'["string","string"] {NO_TYPE}'),
        ({"properties": {"a": {"properties": {"b": 1}}}}, '1 is not of types "boolean", "object"'),
        ({"required": ["a", "a"]}, '["a","a"] has non-unique elements'),
        ({"anyOf": []}, "[] has less than 1 item"),
        ({"maxLength": -1}, "-1 is less than the minimum of 0"),
        ({"maxLength": 1.5}, '1.5 is not of type "integer"'),
        ({"multipleOf": 0}, "0 is less than or equal to the minimum of 0"),
        ({"items": [{}]}, '[{}] is not of types "boolean", "object"'),
        ({"$anchor": "("}, '"(" does not match "^[A-Za-z_][-A-Za-z0-9._]*$"'),
        # The first group counts, then the first in the schema.
        ({"title": 1, "maxLength": "x"}, '"x" is not of type "integer"'),
        ({"minItems": "y", "maxLength": "x"}, '"y" is not of type "integer"'),
    ],
)
def test_bad_shape(schema, fault):
    """A schema that cannot be understood reaches the prompt and the constrained decoding."""
    assert schema_fault(schema) == fault


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"items": {"$ref": "#/$defs/x"}}, "Pointer '/$defs/x' does not exist"),
        ({"items": {"$ref": "#x"}}, "Anchor 'x' does not exist"),
        ({"properties": {"a": {"pattern": "(" * 5000}}}, f'"{"(" * 5000}" is not a "regex"'),
        ({"patternProperties": {"[": {}}}, '{} is not a "regex"'),
        (
            {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"pattern": "*"}}},
            '"*" is not a "regex"',
        ),
    ],
)
def test_bad_links(schema, fault):
    """A schema refers to nothing, and whoever uses it finds out in the middle of an answer."""
    assert link_fault(schema) == fault


def test_foreign_documents_are_not_fetched():
    """A request makes the server fetch an address of the client's choice."""
    fault = link_fault({"$defs": {"a": {"$ref": "http://x/y"}}})
    assert fault is not None
    assert "Retrieval is disabled" in fault


def strict(schema, *, empty=True):
    return strict_schema(schema, unreadable="U: ", whole="W", empty=empty)


def test_strict_shape():
    """A strict schema leaves an object open, or keeps keywords that cannot be enforced."""
    inner = {"type": "object", "properties": {"c": {"type": "number", "minimum": 0, "title": "t"}}}
    schema = {
        "description": "D",
        "type": "object",
        "properties": {
            "a": {"enum": ["p"], "type": "string", "minLength": 1, "description": "d"},
            "b": {"type": "array", "items": inner, "minItems": 1},
            "c": {"anyOf": [{"type": "null"}, inner]},
            "d": {"type": ["string", "null"], "enum": ["x"]},
            "e": {"$ref": "#", "description": "gone"},
        },
    }
    closed = {
        "type": "object",
        "properties": {"c": {"type": "number", "minimum": 0}},
        "additionalProperties": False,
        "required": ["c"],
    }
    assert strict(schema) == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "description": "d", "enum": ["p"]},
            "b": {"type": "array", "items": closed},
            "c": {"anyOf": [{"type": "null"}, closed]},
            "d": {"type": ["string", "null"]},
            "e": {"$ref": "#"},
        },
        "additionalProperties": False,
        "required": ["a", "b", "c", "d", "e"],
        "description": "D",
    }


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "U: one of `type`, `anyOf`, `$ref` field is required"),
        ({"type": "array"}, "U: missing field `items`"),
        ({"type": "string"}, "The top level of the W must be an object."),
        ({"type": "object", "required": ["a"]}, "Required property 'a' not found in object"),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}, "required": []},
            "Required properties must match all properties in the object",
        ),
        (
            {"type": "object", "additionalProperties": True},
            "additionalProperties should not be true",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "object"}}},
            "An object with no properties is not allowed.",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}},
            "U: unknown variant `date`, "
            "expected one of `email`, `hostname`, `ipv4`, `ipv6`, `uuid`",
        ),
    ],
)
def test_strict_refuses(schema, text):
    """A schema that cannot be enforced is promised to be."""
    with pytest.raises(ConversionError) as caught:
        strict(schema)
    assert caught.value.what == text


def test_strict_empty_object():
    """A function without parameters cannot be strict, or an empty answer can."""
    with pytest.raises(ConversionError):
        strict({"type": "object"}, empty=False)
    assert strict({"type": "object"})["properties"] == {}
