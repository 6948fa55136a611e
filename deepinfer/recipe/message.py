"""One answer as a whole, for callers who want no protocol.

Knows events. Does not know markup, requests or protocols.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from deepinfer.recipe.conversation import ToolCall, ToolDefinition
from deepinfer.recipe.events import (
    AnswerEnd,
    CallArguments,
    CallOpened,
    ContentText,
    Event,
    Finished,
    ReasoningText,
    Unread,
)
from deepinfer.recipe.unwrap import unwrapped


@dataclass(frozen=True)
class ParsedMessage:
    """What a model answered.

    reasoning_content: None if there was none. finish_reason: None if the answer has not ended.
    tool_calls: their arguments are what the model wrote, which need not be JSON.
    """

    content: str = ""
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: AnswerEnd | None = None
    stop_sequence: str | None = None


def parsed_message(events: Iterable[Event], tools: Iterable[ToolDefinition] = ()) -> ParsedMessage:
    """All events of an answer, put together.

    Nothing that a model wrote becomes an empty answer. Where a block of tool calls was begun and
    no call could be read in it, or JSON was asked for and none was found, what the model wrote
    stands in the content, markup included; with one call, or with JSON, nothing is added.

    tools: those the model was shown. A call that wraps the arguments of one of them in a parameter
    that it does not have is unwrapped (see `unwrapped`).
    """
    by_name = {tool.name: tool for tool in tools}
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[CallOpened] = []
    arguments: list[list[str]] = []
    finished: Finished | None = None
    unread = ""
    for event in events:
        match event:
            case ContentText():
                content.append(event.text)
            case ReasoningText():
                reasoning.append(event.text)
            case CallOpened():
                calls.append(event)
                arguments.append([])
            case CallArguments():
                arguments[event.index].append(event.text)
            case Unread():
                unread = event.text
            case Finished():
                finished = event
    text = "".join(content)
    opened = zip(calls, map("".join, arguments), strict=True)
    return ParsedMessage(
        # Blanks stand for words that are in `unread`.
        (text if text.strip() else "") + unread if unread else text,
        "".join(reasoning) if reasoning else None,
        tuple(unwrapped(ToolCall(c.id, c.name, text), by_name.get(c.name)) for c, text in opened),
        None if finished is None else finished.reason,
        None if finished is None else finished.stop_sequence,
    )
