"""The parts of a prompt that both model versions write alike (spec recipe 4.1 to 4.5, 4.7, 4.8).

Knows efforts, tools, response formats and calls. Does not know the order of messages.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from deepinfer.recipe import prompt_text
from deepinfer.recipe.conversation import (
    Conversation,
    Effort,
    ImageSource,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from deepinfer.recipe.json_text import read_json, spaced
from deepinfer.recipe.pieces import Dialect, Piece, fill, lines, with_placeholders

MessageWithImages = SystemMessage | UserMessage | ToolMessage


def effort_text(conversation: Conversation, dialect: Dialect) -> str:
    """What the model is told about its effort; nothing when it does not think."""
    if not conversation.thinking:
        return ""
    effort: Effort = conversation.effort or prompt_text.DEFAULT_EFFORT
    return prompt_text.EFFORT[dialect.version][effort]


def tools_and_format(conversation: Conversation, dialect: Dialect) -> list[Piece]:
    """The tools, then the response format; [] if there is neither."""
    tools = _tools(conversation.tools, dialect) if conversation.has_tools else ()
    return [*tools, *_response_format(conversation, dialect)]


def tool_schema(tool: ToolDefinition, dialect: Dialect) -> Piece:
    """The line that describes one tool."""
    shown = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters,
    }
    return Piece(spaced(shown, dialect.version))


def content(message: MessageWithImages, dialect: Dialect) -> Iterator[Piece]:
    """What a message without markup of its own, or a tool's result, says."""
    text = with_placeholders(message.content, message.image_sources, dialect)
    if not isinstance(message, ToolMessage):
        return text
    return _enclosed(text)


def tool_calls(calls: Iterable[ToolCall], dialect: Dialect) -> Iterator[Piece]:
    """The calls that an assistant made."""
    yield from fill(dialect, prompt_text.CALLS_START)
    for call in calls:
        yield from fill(dialect, prompt_text.INVOKE_START, name=call.name)
        arguments = _arguments(call.arguments)
        yield from lines([_parameter(dialect, *item) for item in arguments.items()], dialect)
        yield from fill(dialect, prompt_text.INVOKE_END)
    yield from fill(dialect, prompt_text.CALLS_END)


def generation_prompt(
    conversation: Conversation, dialect: Dialect, *, continues: bool
) -> Iterator[Piece]:
    """What the model's answer follows. continues: the last message is to be continued."""
    if not continues:
        think = "{thinking_start}" if conversation.thinking else "{thinking_end}"
        yield from fill(dialect, "{assistant}" + think)
    if conversation.has_tools and conversation.tool_choice == "required":
        yield from fill(dialect, prompt_text.CALLS_START)


def image_sources(messages: Iterable[Message]) -> Iterator[ImageSource]:
    """All images, in the order of the messages."""
    for message in messages:
        if isinstance(message, MessageWithImages):
            yield from message.image_sources


def _tools(tools: Iterable[ToolDefinition], dialect: Dialect) -> Iterator[Piece]:
    shown = [[tool_schema(tool, dialect)] for tool in tools if not tool.defer_loading]
    yield from fill(dialect, prompt_text.TOOLS_START)
    yield from lines(shown, dialect)
    yield from fill(dialect, prompt_text.TOOLS_END)


def _response_format(conversation: Conversation, dialect: Dialect) -> Iterator[Piece]:
    schema: Any
    if conversation.response_format == "json_schema":
        schema = conversation.response_schema
    elif conversation.response_format != "json_object":
        return
    elif dialect.version == "v4":
        yield Piece(prompt_text.JSON_OBJECT_V4)
        return
    else:
        schema = prompt_text.ANY_OBJECT_SCHEMA
    yield from fill(dialect, prompt_text.SCHEMA_FORMAT, schema=spaced(schema, dialect.version))


def _enclosed(result: Iterable[Piece]) -> Iterator[Piece]:
    yield Piece(prompt_text.TOOL_RESULT_START)
    yield from result
    yield Piece(prompt_text.TOOL_RESULT_END)


def _arguments(text: str) -> dict[str, Any]:
    """The arguments by name. A text that is no object is one argument, as it stands."""
    try:
        value = read_json(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def _parameter(dialect: Dialect, key: str, value: Any) -> Iterator[Piece]:
    is_string = isinstance(value, str)
    return fill(
        dialect,
        prompt_text.PARAMETER,
        key=key,
        is_string="true" if is_string else "false",
        value=value if is_string else spaced(value, dialect.version),
    )
