"""Arguments that a model has wrapped in one parameter too many.

Knows the arguments of one call and the tool's schema. Does not know markup or answers.
"""

from dataclasses import replace
from typing import Any

from deepinfer.recipe.conversation import ToolCall, ToolDefinition
from deepinfer.recipe.json_text import read_json

_WRAPPERS = ("arguments", "input")


def unwrapped(call: ToolCall, tool: ToolDefinition | None) -> ToolCall:
    """The call with the arguments that it wraps, if it is sure that it wraps them.

    It is when the only argument is called "arguments" or "input", the tool declares no such
    property, and the value, or the JSON text in it, is an object whose keys are all declared. All
    other calls come back as they are. Digits of numbers are kept.
    """
    declared = _properties(tool)
    outer = _read_object(call.arguments)
    if declared is None or outer is None or len(outer) != 1:
        return call
    ((name, value),) = outer.items()
    if name not in _WRAPPERS or name in declared:
        return call
    # The parser writes one argument so; whatever is written otherwise stays.
    prefix = f'{{"{name}": '
    inner = value if isinstance(value, str) else call.arguments.removeprefix(prefix)[:-1]
    keys = _read_object(inner)
    if keys is None or not keys.keys() <= declared:
        return call
    return replace(call, arguments=inner)


def _properties(tool: ToolDefinition | None) -> frozenset[str] | None:
    """The names that a tool declares; None if it declares nothing."""
    schema = tool and tool.parameters
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return frozenset(properties) if isinstance(properties, dict) else None


def _read_object(text: str) -> dict[str, Any] | None:
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
