"""Rules about a conversation's history that all protocols share (spec recipe 5).

Works on the finished list of messages. Does not know how a protocol spells them.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeGuard

from deepinfer.recipe.conversation import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolDefinition,
    UserMessage,
)
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.request import ConversionOptions

_JSON = re.compile("json", re.ASCII | re.IGNORECASE)


def says_json(messages: Iterable[Message]) -> bool:
    """Whether the word json stands in a message; a JSON answer wants it (spec recipe 6)."""
    return any(_JSON.search(message.content) for message in messages)


def settle_reasoning(
    messages: Sequence[Message],
    options: ConversionOptions,
    name: str,
    *,
    thinking: bool,
    declares_tools: bool,
) -> tuple[Message, ...]:
    """The messages with the reasoning of earlier turns as the thinking switch wants it.

    None when thinking is off. When it is on, reasoning that is missing becomes empty, or is refused
    where a model would need it to go on with its tool calls. name: what the protocol calls it.
    """
    if thinking and options.missing_reasoning == "reject":
        _refuse_missing(messages, name, declares_tools=declares_tools)
    return tuple(
        replace(one, reasoning_content=(one.reasoning_content or "") if thinking else None)
        if isinstance(one, AssistantMessage)
        else one
        for one in messages
    )


def _refuse_missing(messages: Sequence[Message], name: str, *, declares_tools: bool) -> None:
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return
        if not isinstance(message, AssistantMessage) or message.reasoning_content is not None:
            continue
        if declares_tools or message.tool_calls:
            raise ConversionError(
                f"The `{name}` in the thinking mode must be passed back to the API.",
                field="messages",
            )


def keep_shown_tools(
    messages: Sequence[Message], tools: Sequence[ToolDefinition]
) -> tuple[Message, ...]:
    """The messages, with only those tools added in them that may be called after all.

    tools: those that may be, as they were settled. A message that only added tools goes with them.
    """
    settled = {tool.name: tool for tool in tools}
    return tuple(
        replace(one, tools=tuple(settled[t.name] for t in one.tools if t.name in settled))
        if isinstance(one, SystemMessage)
        else one
        for one in messages
        if not _only_adds(one) or any(tool.name in settled for tool in one.tools)
    )


def _only_adds(message: Message) -> TypeGuard[SystemMessage]:
    """Whether all that the message does is to add tools."""
    return isinstance(message, SystemMessage) and bool(message.tools) and not message.content
