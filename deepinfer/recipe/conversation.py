"""The conversation that all three protocols become, and that a prompt is rendered from.

Plain data. Knows nothing of requests, prompts or tokens.
"""

from dataclasses import dataclass
from typing import Any, Literal

ToolChoice = Literal["auto", "none", "required"]
Effort = Literal["low", "high", "xhigh", "max"]
ResponseFormat = Literal["text", "json_object", "json_schema", "regex"]
ImageDetail = Literal["low", "high", "original", "auto"]
Version = Literal["v4", "v4.1"]


@dataclass(frozen=True)
class SpecialTokens:
    """The spelling of every control token. dsml has no angle brackets; those around it are text."""

    bos: str = "<｜begin▁of▁sentence｜>"
    eos: str = "<｜end▁of▁sentence｜>"
    thinking_start: str = "<think>"
    thinking_end: str = "</think>"
    system: str = "<｜System｜>"
    user: str = "<｜User｜>"
    assistant: str = "<｜Assistant｜>"
    latest_reminder: str = "<｜latest_reminder｜>"
    dsml: str = "｜DSML｜"
    image: str = "<｜image｜>"


@dataclass(frozen=True)
class ToolCall:
    """A call that an assistant made. arguments: JSON text of an object; not checked."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ToolDefinition:
    """A tool of the client. parameters: a JSON schema, or None.

    strict: passed on; whoever constrains the output reads it. defer_loading: not shown up front.
    """

    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None
    defer_loading: bool = False


@dataclass(frozen=True)
class ImageSource:
    """Where an image comes from. Just one of data_url, url and data is set.

    path: where in the request it stood, as errors name it. at: where in the message's text its
    placeholder is, in code points; None: at the next image token that is spelled there.
    """

    detail: ImageDetail = "high"
    data_url: str | None = None
    url: str | None = None
    data: bytes | None = None
    path: str = ""
    at: int | None = None


@dataclass(frozen=True)
class SystemMessage:
    """tools: definitions that this message adds (V4.1: "Updated Tool Schemas")."""

    content: str
    image_sources: tuple[ImageSource, ...] = ()
    tools: tuple[ToolDefinition, ...] = ()


@dataclass(frozen=True)
class UserMessage:
    """The first len(image_sources) image tokens spelled in `content` are the placeholders."""

    content: str
    image_sources: tuple[ImageSource, ...] = ()


@dataclass(frozen=True)
class AssistantMessage:
    """tool_calls: None and an empty tuple differ in V4. prefix: the model is to continue it."""

    content: str
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    prefix: bool = False


@dataclass(frozen=True)
class ToolMessage:
    """A tool's result."""

    content: str
    tool_call_id: str | None = None
    image_sources: tuple[ImageSource, ...] = ()


@dataclass(frozen=True)
class LatestReminderMessage:
    """More instructions, in place."""

    content: str


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage | LatestReminderMessage


@dataclass(frozen=True)
class Conversation:
    """What a prompt says.

    response_schema, response_regex: set with response_format "json_schema" and "regex".
    """

    messages: tuple[Message, ...] = ()
    thinking: bool = True
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = "auto"
    effort: Effort | None = None
    response_format: ResponseFormat = "text"
    response_schema: Any = None
    response_regex: str | None = None

    @property
    def has_tools(self) -> bool:
        """Tools are shown and may be called."""
        return bool(self.tools) and self.tool_choice != "none"
