"""The messages of a Chat Completions request to those of a conversation (spec recipe 6.1).

Every message is checked in its place, so that errors come in the order of the request. Knows which
tool messages answer which calls. Does not know the rest of the request.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from deepinfer.recipe.blocks import NO_IMAGE, Block, Content, joined, shows_images
from deepinfer.recipe.conversation import (
    AssistantMessage,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    Version,
)
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.images import check_file, image_of_url

_UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'"
)


def chat_messages(
    messages: Sequence[Mapping[str, Any]], version: Version, image_token: str
) -> list[Message]:
    """All messages but the system's empty ones. Raises ConversionError."""
    if not messages:
        raise ConversionError("Empty input messages", field="messages")
    reader = _Messages(version, image_token)
    found = [reader.message(index, one) for index, one in enumerate(messages)]
    reader.finish()
    return [one for one in found if one.content or not isinstance(one, SystemMessage)]


class _Messages:
    """The messages of one request, each checked with those that must follow it."""

    def __init__(self, version: Version, image_token: str) -> None:
        self._version = version
        self._image_token = image_token
        # The calls of the last assistant message that still want a tool message, and all of them.
        self._waiting: set[str] = set()
        self._asked: set[str] = set()

    def finish(self) -> None:
        """No more messages come. Raises ConversionError if calls are left without an answer."""
        if self._waiting:
            raise ConversionError(
                f"{_UNANSWERED}. (insufficient tool messages following tool_calls message)",
                field="messages",
            )

    def message(self, index: int, message: Mapping[str, Any]) -> Message:
        """The next message. Raises ConversionError."""
        if message["role"] != "tool":
            self.finish()
        match message["role"]:
            case "system":
                return SystemMessage(*self._content(index, message["content"]))
            case "user":
                return UserMessage(*self._content(index, message["content"]))
            case "assistant":
                return self._assistant(index, message)
            case "tool":
                return self._tool(index, message)
            case _:
                return LatestReminderMessage(message["content"])

    def _assistant(self, index: int, message: Mapping[str, Any]) -> AssistantMessage:
        content, calls = message["content"], message["tool_calls"]
        if content is None and calls is None:
            raise ConversionError(
                "Invalid assistant message: content or tool_calls must be set",
                field=f"messages[{index}]",
            )
        if calls is not None:
            self._expect_answers(index, calls)
        text, images = self._content(index, content or "", may_show=False)
        assert not images
        return AssistantMessage(
            text,
            message["reasoning_content"],
            None
            if calls is None
            else tuple(
                ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls
            ),
            bool(message["prefix"]),
        )

    def _expect_answers(self, index: int, calls: Sequence[Mapping[str, Any]]) -> None:
        if not calls:
            field = f"messages[{index}].tool_calls"
            raise ConversionError(
                f"Invalid '{field}': empty array. Expected an array with minimum length 1, but got "
                "an empty array instead.",
                field=field,
            )
        self._asked = set()
        for call in calls:
            if call["id"] in self._asked:
                _refuse_duplicate(call["id"], index)
            self._asked.add(call["id"])
        self._waiting = set(self._asked)

    def _tool(self, index: int, message: Mapping[str, Any]) -> ToolMessage:
        call_id = message["tool_call_id"]
        if not self._waiting:
            raise ConversionError(
                "Messages with role 'tool' must be a response to a preceding message with "
                "'tool_calls'",
                field=f"messages[{index}]",
            )
        if call_id not in self._asked:
            raise ConversionError(
                f"{_UNANSWERED}, The following tool_call_ids did not have response messages: "
                f"{call_id}",
                field=f"messages[{index}].tool_call_id",
            )
        if call_id not in self._waiting:
            _refuse_duplicate(call_id, index)
        self._waiting.remove(call_id)
        text, images = self._content(index, message["content"])
        return ToolMessage(text, call_id, images)

    def _content(self, index: int, content: Any, *, may_show: bool = True) -> Content:
        """The text of a content, and the images that have their places in it."""
        if isinstance(content, str):
            return Content(content)
        if shows_images(self._version):
            for block in content:
                if block["type"] == "file":
                    check_file(block, f".messages[{index}]")
        return joined(self._block(index, block, may_show=may_show) for block in content)

    def _block(self, index: int, block: Mapping[str, Any], *, may_show: bool) -> Block:
        if block["type"] == "text":
            return Block(block["text"])
        if not shows_images(self._version):
            return Block(NO_IMAGE)
        if not may_show:
            raise ConversionError(
                "Image in assistant message is not supported", field=f"messages[{index}]"
            )
        image = block.get("image_url") or {"url": block["file_data"], "detail": None}
        return Block(self._image_token, image_of_url(image, f".messages[{index}]"))


def _refuse_duplicate(call_id: str, index: int) -> NoReturn:
    raise ConversionError(
        f"Duplicate value for 'tool_call_id' of {call_id} in message[{index}]",
        field=f"messages[{index}]",
    )
