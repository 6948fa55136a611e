"""What a Messages request looks like: its fields and their types (spec recipe 6.3).

Only data. Does not know what the fields mean, nor which values make sense together.
"""

from typing import Any

from deepinfer.recipe.fields import (
    Unreadable,
    anything,
    boolean,
    f32,
    one_of,
    read_at,
    sequence,
    string,
    text_or,
    u32,
    u64,
    wrong_type,
)
from deepinfer.recipe.records import maybe, need, prefixed, record, tagged
from deepinfer.recipe.shape_chat import EFFORTS, THINKING

_BAD_LIST = "expected a string or a list"
_MEDIA = "image/jpeg image/jpg image/png image/gif image/webp"
_MESSAGE_LABEL = "adjacently tagged enum MessagesMessage"

_IMAGE = {
    "source": need(
        tagged(
            "MessagesImageSource",
            "type",
            {
                "base64": {"media_type": need(one_of(_MEDIA)), "data": need(string)},
                "url": {"url": need(string)},
                "file": {"file_id": need(string)},
            },
        )
    )
}
_DOCUMENT = {"source": need(record("struct MessagesDocumentSource", {"media_type": maybe(string)}))}
_RESULT_BLOCK = tagged(
    "MessagesToolResultBlock",
    "type",
    {
        "text": {"text": need(string)},
        "image": _IMAGE,
        "document": _DOCUMENT,
        "tool_reference": {"tool_name": need(string)},
    },
)
_TOOL_USE = {"id": need(string), "name": need(string), "input": need(anything)}
_BLOCK = tagged(
    "MessagesContentBlock",
    "type",
    {
        "text": {"text": need(string)},
        "image": _IMAGE,
        "document": _DOCUMENT,
        "thinking": {"thinking": need(string), "signature": maybe(string)},
        "server_tool_use": _TOOL_USE,
        "tool_use": _TOOL_USE,
        "tool_result": {
            "tool_use_id": need(string),
            "content": maybe(text_or(_RESULT_BLOCK, _BAD_LIST)),
            "is_error": maybe(boolean),
        },
        "web_search_tool_result": {"tool_use_id": need(string), "content": need(anything)},
        "tool_addition": {
            "tool": need(
                tagged("MessagesToolReference", "type", {"tool_reference": {"name": need(string)}})
            )
        },
    },
)
_SYSTEM_BLOCK = tagged("MessagesSystemBlock", "type", {"text": {"text": need(string)}})

_read_role = one_of("user assistant system")
_read_content = text_or(_BLOCK, _BAD_LIST)


def _message(value: Any) -> dict[str, Any]:
    """A role and its content. The role is read first, wherever it stands."""
    if isinstance(value, list):
        if value and not isinstance(value[0], str):
            raise wrong_type(value[0], "variant identifier")
        if value:
            _read_role(value[0])
        if len(value) != 2:
            raise Unreadable(f"invalid length {len(value)}, expected {_MESSAGE_LABEL}")
        value = {"role": value[0], "content": value[1]}
    if not isinstance(value, dict):
        raise wrong_type(value, _MESSAGE_LABEL)
    found = {}
    for name, read in (("role", _read_role), ("content", _read_content)):
        if name not in value:
            raise Unreadable(f"missing field `{name}`").within(name)
        found[name] = read_at(name, read, value[name])
    return found


_TOOL_FIELDS = {
    "name": prefixed("name", string),
    "description": prefixed("description", maybe(string).read),
    "input_schema": anything,
    "defer_loading": prefixed("defer_loading", maybe(boolean).read),
}


def _tool(value: Any) -> dict[str, Any]:
    """A tool of the client, or of a server if it has a type."""
    if isinstance(value, dict) and "type" in value:
        kind = read_at("type", string, value["type"])
        read_at("name", maybe(string).read, value.get("name"))
        return {"type": kind}
    if not isinstance(value, dict) or "name" not in value:
        raise Unreadable("missing field `name`").within("name")
    return {"type": None} | {k: read(value.get(k)) for k, read in _TOOL_FIELDS.items()}


_PARALLEL = {"disable_parallel_tool_use": maybe(boolean)}

MESSAGES = record(
    "struct MessagesRequest",
    {
        "model": need(string),
        "messages": need(sequence(_message)),
        "system": maybe(text_or(_SYSTEM_BLOCK, _BAD_LIST)),
        "max_tokens": maybe(u32),
        "temperature": maybe(f32),
        "top_p": maybe(f32),
        "stop_sequences": maybe(sequence(string)),
        "stream": maybe(boolean),
        "tools": maybe(sequence(_tool)),
        "tool_choice": maybe(
            tagged(
                "MessagesToolChoice",
                "type",
                {
                    "auto": _PARALLEL,
                    "any": _PARALLEL,
                    "tool": {"name": need(string), **_PARALLEL},
                    "none": {},
                },
            )
        ),
        "thinking": maybe(
            record(
                "struct MessagesThinking",
                {"type": need(one_of(THINKING)), "budget_tokens": maybe(u64)},
            )
        ),
        "output_config": maybe(
            record("struct MessagesOutputConfig", {"effort": maybe(one_of(EFFORTS))})
        ),
        "metadata": maybe(record("struct MessagesMetadata", {"user_id": maybe(string)})),
    },
)
