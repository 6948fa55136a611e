"""Judges an answer: is it the wanted text, the wanted call, or JSON of the schema.

Knows the few keywords of the schemas that `eval_structured.py` writes, and refuses others. Does not
know how the answer came about.
"""

import json
from collections.abc import Mapping
from typing import Any

from deepinfer.recipe.message import ParsedMessage
from deepinfer.tools.eval_examples import Example

_KEYWORDS = {"type", "properties", "required", "additionalProperties", "enum", "items"}
_PLAIN: Mapping[str, type] = {"string": str, "integer": int, "boolean": bool}


def is_right(example: Example, message: ParsedMessage) -> bool:
    """Whether the answer is what the example wants, and ended by itself.

    A text must be the same to the character, a call have the same name and arguments; JSON must
    only be valid: `has_right_values` tells more.
    """
    if example.judge == "call":
        return message.finish_reason == "tool_calls" and _same_calls(example, message)
    if message.finish_reason != "stop":
        return False
    if example.judge == "json":
        schema = example.options["response_format"]["json_schema"]["schema"]
        try:
            return is_valid(json.loads(message.content), schema)
        except ValueError:
            return False
    return message.content == example.answer.content


def has_right_values(example: Example, message: ParsedMessage) -> bool:
    """Whether a JSON answer says what the user said."""
    try:
        return bool(json.loads(message.content) == json.loads(example.answer.content))
    except ValueError:
        return False


def is_valid(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a JSON value obeys a schema of the keywords that our tasks use.

    Types are compared as such: in JSON true is no integer and not 1; in Python it is.
    """
    unknown = set(schema) - _KEYWORDS
    assert not unknown, f"the judge does not know {sorted(unknown)}"
    if "enum" in schema:
        return any(type(one) is type(value) and one == value for one in schema["enum"])
    if isinstance(value, dict) and schema["type"] == "object":
        return _is_valid_object(value, schema)
    if isinstance(value, list) and schema["type"] == "array":
        return all(is_valid(one, schema["items"]) for one in value)
    return type(value) is _PLAIN.get(schema["type"])


def _is_valid_object(value: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    properties = schema["properties"]
    if not set(schema["required"]) <= set(value):
        return False
    if schema.get("additionalProperties") is False and not set(value) <= set(properties):
        return False
    return all(is_valid(one, properties[name]) for name, one in value.items() if name in properties)


def _same_calls(example: Example, message: ParsedMessage) -> bool:
    try:
        found = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    except ValueError:
        return False
    return found == [(call.name, json.loads(call.arguments)) for call in example.answer.calls]
