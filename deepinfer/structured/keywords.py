"""Every keyword of JSON Schema 2020-12, and what becomes of it. Data; the documentation shows it.

A keyword that is not here is a mistake as far as anyone can tell (`minLenght`), and is refused,
unless its name begins with "x-".
"""

from typing import Literal

Status = Literal["enforced", "annotation", "refused"]

_ANY_ORDER = "say it in words in the prompt, and check the answer"

# keyword -> (status, what it takes, or why it is refused and what to write instead)
KEYWORDS: dict[str, tuple[Status, str]] = {
    "$schema": ("enforced", "draft 6, draft 7, 2019-09 or 2020-12; read as 2020-12"),
    "$id": ("annotation", "of the whole document; refused further inside"),
    "$anchor": ("enforced", "as the target of a $ref"),
    "$ref": ("enforced", "into the same document: '#', '#/...' or '#anchor'; siblings count too"),
    "$defs": ("enforced", "holds what $ref points to"),
    "definitions": ("enforced", "the older name of $defs"),
    "$comment": ("annotation", ""),
    "$vocabulary": ("refused", "leave it out"),
    "$dynamicRef": ("refused", "write $ref"),
    "$dynamicAnchor": ("refused", "write $anchor and $ref"),
    "$recursiveRef": ("refused", "write $ref"),
    "$recursiveAnchor": ("refused", "write $anchor and $ref"),
    "allOf": ("enforced", "all of them together with what stands beside it"),
    "anyOf": ("enforced", "together with what stands beside it"),
    "oneOf": ("enforced", "where the alternatives can be told apart, or one left out by its keys"),
    "not": ("enforced", "of types, values, string patterns, number ranges and required keys"),
    "if": ("enforced", "where `not` of it would be"),
    "then": ("enforced", "with if"),
    "else": ("enforced", "with if"),
    "dependentSchemas": ("enforced", ""),
    "dependentRequired": ("enforced", ""),
    "dependencies": ("refused", "write dependentRequired or dependentSchemas"),
    "type": ("enforced", "a name or a list of names"),
    "enum": ("enforced", ""),
    "const": ("enforced", ""),
    "multipleOf": ("enforced", "whole numbers up to 1000"),
    "maximum": ("enforced", ""),
    "exclusiveMaximum": ("enforced", ""),
    "minimum": ("enforced", ""),
    "exclusiveMinimum": ("enforced", ""),
    "maxLength": ("enforced", ""),
    "minLength": ("enforced", ""),
    "pattern": ("enforced", "regular ones: no look-around, back-references or word boundaries"),
    "format": ("enforced", "the formats listed below; any other is refused"),
    "properties": ("enforced", ""),
    "required": ("enforced", ""),
    "additionalProperties": ("enforced", "absent: no other keys where properties are declared"),
    "patternProperties": ("enforced", ""),
    "propertyNames": ("enforced", ""),
    "minProperties": ("enforced", "as far as keys can be counted without comparing them"),
    "maxProperties": ("enforced", "up to 256"),
    "unevaluatedProperties": ("refused", "write additionalProperties, or leave it out"),
    "prefixItems": ("enforced", ""),
    "items": ("enforced", "one schema; absent after prefixItems: no further items"),
    "additionalItems": ("refused", "write prefixItems and items"),
    "unevaluatedItems": ("refused", "write items"),
    "maxItems": ("enforced", "up to 4096"),
    "minItems": ("enforced", "up to 4096"),
    "contains": ("refused", "write prefixItems for the item that must be there"),
    "minContains": ("refused", "write prefixItems for the items that must be there"),
    "maxContains": ("refused", _ANY_ORDER),
    "uniqueItems": ("enforced", "false, or true with maxItems of at most 1; else refused"),
    "contentEncoding": ("refused", "write a pattern, or leave it out"),
    "contentMediaType": ("refused", "leave it out"),
    "contentSchema": ("refused", "leave it out"),
    "title": ("annotation", ""),
    "description": ("annotation", ""),
    "default": ("annotation", ""),
    "examples": ("annotation", ""),
    "example": ("annotation", ""),
    "deprecated": ("annotation", ""),
    "readOnly": ("annotation", ""),
    "writeOnly": ("annotation", ""),
}

# The kinds of value that a keyword takes, where a wrong one would change what the schema means.
SCHEMA_VALUES = frozenset("not if then else additionalProperties propertyNames items".split())
SCHEMA_LISTS = frozenset("allOf anyOf oneOf prefixItems".split())
SCHEMA_MAPS = frozenset("$defs definitions properties patternProperties dependentSchemas".split())
COUNTS = frozenset("maxLength minLength maxProperties minProperties maxItems minItems".split())
NUMBERS = frozenset("maximum exclusiveMaximum minimum exclusiveMinimum multipleOf".split())
STRINGS = frozenset("$schema $id $anchor $ref pattern format".split())
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
DIALECTS = ("draft-06", "draft-07", "2019-09", "2020-12")
