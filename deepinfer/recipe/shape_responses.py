"""What a Responses request looks like: its fields and their types (spec recipe 6.2).

Only data. Does not know what the fields mean, nor which values make sense together.
"""

from typing import Any

from deepinfer.recipe.fields import (
    Unreadable,
    anything,
    boolean,
    f32,
    mapping,
    one_of,
    sequence,
    string,
    text_or,
    u8,
    u32,
)
from deepinfer.recipe.records import maybe, need, record, tagged, unless_absent
from deepinfer.recipe.shape_chat import DETAILS, EFFORTS

SKIPPED = "skipped"  # the kind of tools and input items that the recipe does not know
_BAD_INPUT = "input should be a string or a list of input items"
_BAD_ITEM = "invalid input item"
_BAD_CONTENT = "content should be a string or a list of content blocks"
_BAD_OUTPUT = "output should be a string or a list of output content parts"
_BAD_CHOICE = "expected one of `none`, `auto`, `required` or a tool choice object"
_SIZES = one_of("low medium high")
_SUMMARIES = one_of("auto concise detailed")
_EXECUTION = maybe(one_of("client server"))

_IMAGE = {"image_url": maybe(string), "detail": maybe(one_of(DETAILS)), "file_id": maybe(string)}
_IMAGE_LABEL = {"input_image": "struct ResponsesInputImage"}
_BLOCK = tagged(
    "ResponsesContentBlock",
    "type",
    {
        "input_text": {"text": need(string)},
        "output_text": {"text": need(string)},
        "input_image": _IMAGE,
        "input_file": {},
    },
    labels=_IMAGE_LABEL,
)
_OUTPUT_BLOCK = tagged(
    "ResponsesToolCallOutputItem",
    "type",
    {"input_text": {"text": need(string)}, "input_image": _IMAGE, "input_file": {}},
    labels=_IMAGE_LABEL,
)
_OUTPUT = text_or(_OUTPUT_BLOCK, _BAD_OUTPUT)

_FUNCTION = {
    "name": need(string),
    "description": maybe(string),
    "parameters": maybe(anything),
    "strict": maybe(boolean),
}
_WEB_SEARCH = {
    "search_context_size": maybe(_SIZES),
    "user_location": maybe(
        record(
            "struct ResponsesUserLocation",
            {k: maybe(string) for k in ("city", "country", "region", "timezone")},
        )
    ),
}
_TOOL_LABELS = {
    "function": "struct ResponsesFunctionTool",
    "web_search": "struct ResponsesWebSearchTool",
    "web_search_2025_08_26": "struct ResponsesWebSearchTool",
}
_NAMESPACE_TOOL = tagged(
    "ResponsesNamespaceTool",
    "type",
    {"function": _FUNCTION, "custom": {"name": need(string)}},
    labels=_TOOL_LABELS,
)
_TOOL = tagged(
    "ResponsesTool",
    "type",
    {
        "function": _FUNCTION,
        "custom": {"name": need(string)},
        "namespace": {
            "name": need(string),
            "description": maybe(string),
            "tools": need(sequence(_NAMESPACE_TOOL)),
        },
        "tool_search": {
            "execution": _EXECUTION,
            "description": maybe(string),
            "parameters": maybe(anything),
        },
        "web_search": _WEB_SEARCH,
        "web_search_2025_08_26": _WEB_SEARCH,
    },
    labels=_TOOL_LABELS,
    others=SKIPPED,
)

_MESSAGE = {
    "role": need(one_of("user assistant system developer")),
    "content": need(text_or(_BLOCK, _BAD_CONTENT)),
}
_read_message = record("struct ResponsesMessage", _MESSAGE)
_read_item = tagged(
    "ResponsesInputItem",
    "type",
    {
        "message": _MESSAGE,
        "reasoning": {
            "content": maybe(
                sequence(record("struct ResponsesReasoningContent", {"text": need(string)}))
            ),
            "encrypted_content": maybe(string),
        },
        "function_call": {
            "arguments": need(string),
            "call_id": need(string),
            "name": need(string),
            "namespace": maybe(string),
        },
        "function_call_output": {"call_id": maybe(string), "output": need(_OUTPUT)},
        "custom_tool_call": {
            "call_id": need(string),
            "name": need(string),
            "input": need(string),
        },
        "custom_tool_call_output": {"call_id": need(string), "output": maybe(_OUTPUT)},
        "web_search_call": {},
        "tool_search_call": {
            "call_id": need(string),
            "execution": _EXECUTION,
            "arguments": need(mapping),
        },
        "tool_search_output": {
            "call_id": need(string),
            "execution": _EXECUTION,
            "tools": need(sequence(_TOOL)),
        },
    },
    others=SKIPPED,
)


def _item(value: Any) -> dict[str, Any]:
    """An input item; one with a role and without a type is a message."""
    if isinstance(value, dict) and "type" in value:
        found: dict[str, Any] = _read_item(value)
        return found
    if isinstance(value, dict) and "role" in value:
        return {"type": "message", **_read_message(value)}
    raise Unreadable(_BAD_ITEM)


_read_choice = tagged(
    "ResponsesToolChoice",
    "type",
    {
        "function": {"name": need(string)},
        "web_search": {},
        "web_search_2025_08_26": {},
        "custom": {"name": need(string)},
    },
)


def _tool_choice(value: Any) -> Any:
    """A word, or a dict that names a tool."""
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    if not isinstance(value, dict) or "type" not in value:
        raise Unreadable(_BAD_CHOICE)
    return _read_choice(value)


_FORMAT = tagged(
    "ResponsesTextFormat",
    "type",
    {
        "text": {},
        "json_schema": {
            "name": need(string),
            "schema": need(anything),
            "description": maybe(string),
            "strict": maybe(boolean),
        },
        "json_object": {},
    },
)

RESPONSES = record(
    "struct ResponsesRequest",
    {
        "model": need(string),
        "input": maybe(text_or(_item, _BAD_INPUT)),
        "instructions": maybe(string),
        "max_output_tokens": maybe(u32),
        "reasoning": maybe(
            record(
                "struct ResponsesReasoningConfig",
                {
                    "effort": maybe(one_of(EFFORTS)),
                    "summary": maybe(_SUMMARIES),
                    "generate_summary": maybe(_SUMMARIES),
                },
            )
        ),
        "stream": maybe(boolean),
        "temperature": maybe(f32),
        "text": maybe(
            record(
                "struct ResponsesTextConfig",
                {"format": unless_absent(_FORMAT, {"type": "text"}), "verbosity": maybe(_SIZES)},
            )
        ),
        "tool_choice": maybe(_tool_choice),
        "tools": maybe(sequence(_TOOL)),
        "top_logprobs": maybe(u8),
        "top_p": maybe(f32),
        "user": maybe(string),
    },
)
