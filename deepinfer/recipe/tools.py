"""The tools that a request declares, and which of them its tool choice leaves (spec recipe 5).

Knows no protocol's way to spell them. Does not know how they are shown.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deepinfer.recipe.conversation import ToolChoice, ToolDefinition
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.json_text import compact
from deepinfer.recipe.schema_check import schema_fault
from deepinfer.recipe.schema_links import link_fault
from deepinfer.recipe.strict_schema import strict_schema

NAME_LEN = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_EMPTY = "empty string. Expected a string with minimum length 1, but got an empty string instead."
_STRICT_FAULT = "Invalid tool parameters schema : "
_STRICT_WHOLE = "function parameters schema"


def empty_string(field: str) -> ConversionError:
    """The error for a string that must not be empty."""
    return ConversionError(f"Invalid '{field}': {_EMPTY}", field=field)


def unknown_tool(name: str) -> ConversionError:
    """The error for a choice of a tool that there is not."""
    return ConversionError(
        f"Invalid value for 'tool_call': no function named '{name}' was specified in the 'tools' "
        "parameter.",
        field="tool_choice",
    )


def check_name(name: str, field: str) -> None:
    """Refuse a name that is not 1 to 128 letters, digits, `_` and `-`."""
    if not name:
        raise empty_string(field)
    if len(name) > NAME_LEN:
        why = (
            f"string too long. Expected a string with maximum length {NAME_LEN}, "
            f"but got a string with length {len(name)} instead."
        )
    elif not _NAME.fullmatch(name):
        why = (
            "string does not match pattern. "
            f"Expected a string that matches the pattern '^{_NAME.pattern}$'."
        )
    else:
        return
    raise ConversionError(f"Invalid '{field}': {why}", field=field)


def settle_tools(
    tools: Sequence[ToolDefinition],
    choice: ToolChoice,
    named: str | None,
    *,
    thinking: bool,
    schema_needed: bool = False,
) -> tuple[tuple[ToolDefinition, ...], ToolChoice]:
    """The tools that may be called, their schemas checked, and how the model may choose.

    named: the only tool that may be called, and must be. schema_needed: no tool is without one.
    Raises ConversionError.
    """
    if choice == "none":
        return (), "none"
    if not tools:
        return (), "auto"
    settled = _all_checked(tools, schema_needed=schema_needed)
    if named is not None:
        settled = tuple(tool for tool in settled if tool.name == named)
        choice = "required"
        if not settled:
            raise unknown_tool(named)
    if choice == "required" and thinking:
        raise ConversionError(
            "Thinking mode does not support this tool_choice", field="tool_choice"
        )
    return settled, choice


def check_strict(tools: Sequence[ToolDefinition], *, names_format: bool) -> None:
    """Strict tools cannot be among others, nor in a request with a format of its own."""
    strict = [tool.strict is True for tool in tools]
    if any(strict) and not all(strict):
        raise ConversionError(
            "Cannot use strict tool with non-strict tool in the same request", field="tools"
        )
    if any(strict) and names_format:
        raise ConversionError(
            "response_format should not be used with tools", field="response_format"
        )


def check_schema(schema: Any, begin: str, field: str) -> None:
    """Refuse what is no JSON schema; the error's text starts with `begin`."""
    fault = schema_fault(schema) or link_fault(schema)
    if fault:
        raise ConversionError(f"{begin}{fault}", field=field)


def function_tools(tools: Sequence[ToolDefinition]) -> str:
    """The tools as constrained decoding wants them: a compact JSON array (spec recipe 5)."""
    return compact(
        [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": tool.strict,
                },
            }
            | ({"defer_loading": True} if tool.defer_loading else {})
            for tool in tools
        ]
    )


def _all_checked(
    tools: Sequence[ToolDefinition], *, schema_needed: bool
) -> tuple[ToolDefinition, ...]:
    checked: dict[str, ToolDefinition] = {}
    for tool in tools:
        if tool.name in checked:
            raise ConversionError("Tool names must be unique.", field="tools")
        checked[tool.name] = _checked(tool, schema_needed=schema_needed)
    return tuple(checked.values())


def _checked(tool: ToolDefinition, *, schema_needed: bool) -> ToolDefinition:
    if tool.strict:
        schema = {"type": "object"} if tool.parameters is None else tool.parameters
        schema = strict_schema(schema, unreadable=_STRICT_FAULT, whole=_STRICT_WHOLE, empty=True)
        return replace(tool, parameters=schema)
    if tool.parameters is None and not schema_needed:
        return replace(tool, parameters={})
    begin = f"Invalid schema for function '{tool.name}': "
    check_schema(tool.parameters, begin, "tools")
    kind = tool.parameters.get("type") if isinstance(tool.parameters, dict) else None
    if kind != "object":
        got = "null" if kind is None else compact(kind)
        raise ConversionError(
            f"{begin}schema must be a JSON Schema of 'type: \"object\"', got 'type: {got}'.",
            field="tools",
        )
    return tool
