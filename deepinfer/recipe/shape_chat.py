"""What a Chat Completions request looks like: its fields and their types (spec recipe 6.1).

Only data. Does not know what the fields mean, nor which values make sense together.
"""

from typing import Any

from deepinfer.recipe.fields import (
    Unreadable,
    anything,
    boolean,
    f32,
    one_of,
    sequence,
    string,
    text_or,
    u8,
    u32,
    u64,
)
from deepinfer.recipe.records import maybe, need, prefixed, record, tagged

EFFORTS = "none minimal low medium high xhigh ultra max"
THINKING = "adaptive enabled disabled"
DETAILS = "low high original auto"
_BAD_CONTENT = "content should be a string or a list"
_BAD_CHOICE = "expected one of `none`, `auto`, `required` or a tool"
_KIND = one_of("function")

_BLOCK = tagged(
    "ChatCompletionRequestContentBlock",
    "type",
    {
        "text": {"text": need(string)},
        "image_url": {
            "image_url": need(
                record(
                    "struct ChatCompletionImageUrl",
                    {"url": need(string), "detail": maybe(one_of(DETAILS), counted=False)},
                )
            )
        },
        "file": {"file_id": maybe(string), "file_data": maybe(string), "filename": maybe(string)},
    },
)
_CONTENT = text_or(_BLOCK, _BAD_CONTENT)

_TOOL_CALL = record(
    "struct ChatCompletionRequestToolCall",
    {
        "id": need(string),
        "type": need(_KIND),
        "function": need(
            record(
                "struct ChatCompletionRequestFunctionCall",
                {"name": need(string), "arguments": need(string)},
            )
        ),
    },
)

_MESSAGE = tagged(
    "ChatCompletionRequestMessage",
    "role",
    {
        "system": {"content": need(_CONTENT), "name": maybe(string)},
        "user": {"content": need(_CONTENT), "name": maybe(string)},
        "assistant": {
            "content": maybe(_CONTENT),
            "reasoning_content": maybe(string),
            "name": maybe(string),
            "tool_calls": maybe(sequence(_TOOL_CALL)),
            "prefix": maybe(boolean),
        },
        "tool": {"content": need(_CONTENT), "tool_call_id": need(string)},
        "latest_reminder": {"content": need(string)},
    },
)

_TOOL = record(
    "struct ChatCompletionTool",
    {
        "type": need(_KIND),
        "function": need(
            record(
                "struct ChatCompletionFunctionDefinition",
                {
                    "name": need(string),
                    "description": maybe(string),
                    "parameters": maybe(anything),
                    "strict": maybe(boolean),
                },
            )
        ),
    },
)

_FORMAT = tagged(
    "ChatCompletionResponseFormat",
    "type",
    {
        "json_object": {},
        "json_schema": {
            "json_schema": need(
                record(
                    "struct ChatCompletionResponseFormatJsonSchema",
                    {"schema": need(anything), "name": maybe(string), "strict": maybe(boolean)},
                )
            )
        },
        "regex": {"regex": need(string)},
        "text": {},
    },
)

_read_choice_kind = prefixed("type", _KIND)
_read_choice_function = prefixed(
    "function", record("struct ChatCompletionToolChoiceFunction", {"name": need(string)})
)


def _tool_choice(value: Any) -> Any:
    """A word, or the name of a function in a dict."""
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    if not isinstance(value, dict) or "type" not in value:
        raise Unreadable(_BAD_CHOICE)
    _read_choice_kind(value["type"])
    return _read_choice_function(value.get("function"))


CHAT = record(
    "struct ChatCompletionRequest",
    {
        "messages": need(sequence(_MESSAGE)),
        "model": need(string),
        "frequency_penalty": maybe(f32),
        "logprobs": maybe(boolean),
        "top_logprobs": maybe(u8),
        "max_tokens": maybe(u32),
        "n": maybe(u8),
        "presence_penalty": maybe(f32),
        "seed": maybe(u64),
        "stop": maybe(text_or(string, "expected a string or a list")),
        "stream": maybe(boolean),
        "stream_options": maybe(
            record("struct ChatCompletionStreamOptions", {"include_usage": maybe(boolean)})
        ),
        "temperature": maybe(f32),
        "top_p": maybe(f32),
        "response_format": maybe(_FORMAT),
        "tools": maybe(sequence(_TOOL)),
        "tool_choice": maybe(_tool_choice),
        "reasoning_effort": maybe(one_of(EFFORTS)),
        "thinking": maybe(
            record(
                "struct ChatCompletionThinking",
                {"type": need(one_of(THINKING)), "budget_tokens": maybe(u64)},
            )
        ),
        "parallel_tool_calls": maybe(boolean),
    },
)
