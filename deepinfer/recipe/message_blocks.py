"""The messages of a Messages request to those of a conversation (spec recipe 6.3).

Every block is looked at in its place, so that errors come in the order of the request. Knows which
results belong to which uses of tools. Does not know the rest of the request.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import Any, NamedTuple

from deepinfer.recipe.blocks import BETWEEN_BLOCKS, NO_IMAGE, Block, joined, shows_images
from deepinfer.recipe.conversation import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
    Version,
)
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.images import image_of_source
from deepinfer.recipe.json_text import spaced
from deepinfer.recipe.namespaces import SERVER_TOOLS

# Which roles may have a block of a kind; any may have those that are not here.
_ROLES = {
    "tool_use": "assistant",
    "server_tool_use": "assistant",
    "web_search_tool_result": "assistant",
    "tool_result": "user",
    "tool_addition": "system",
}
_SAID_AS = {"server_tool_use": "tool_use"}
_REMINDER = "<system-reminder>\n{}\n</system-reminder>"


class Setting(NamedTuple):
    """What all messages of one request are read with. tools: the declared ones, by name."""

    version: Version
    tools: Mapping[str, ToolDefinition]
    image_token: str
    drops_server_blocks: bool


class MessageBlocks:
    """Takes the messages of one request one by one. Attributes: `messages`."""

    def __init__(self, setting: Setting) -> None:
        self.messages: list[Message] = []
        self._setting = setting
        # Uses of tools without a result yet, and those that have theirs in the message in hand.
        self._waiting: set[str] = set()
        self._answered: set[str] = set()
        self._asked_at = 0

    def take(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Take all messages. Raises ConversionError."""
        for index, message in enumerate(messages):
            content = message["content"]
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            elif not content and message["role"] != "system":
                if message["role"] == "assistant":
                    self._expect_no_results(index)
                raise ConversionError(
                    f"messages.{index}: all messages must have non-empty content",
                    field=f"messages[{index}].content",
                )
            self._answered = set()
            _TAKERS[message["role"]](self, index, content)
            if self._waiting and message["role"] != "assistant":
                break
        if self._waiting:
            raise _without_result(f"messages.{self._asked_at}:", self._waiting)

    def _system(self, index: int, content: Sequence[Mapping[str, Any]]) -> None:
        self._expect_no_results(index)
        blocks, added = [], []
        for place, block in enumerate(content):
            self._check_role("system", index, block)
            if block["type"] == "tool_addition":
                name = block["tool"]["name"]
                if name not in self._setting.tools:
                    raise ConversionError(
                        f"messages.{index}.content.{place}: `tool_addition` references unknown "
                        f"tool '{name}'",
                        field=f"messages[{index}].content[{place}]",
                    )
                added.append(self._setting.tools[name])
            else:
                blocks.append(self._block(block, f"messages.{index}.content[{place}]"))
        text, images = joined(blocks)
        if self._setting.version == "v4.1":
            self.messages.append(SystemMessage(text, images, tuple(added)))
        elif text:
            self.messages.append(UserMessage(_REMINDER.format(text)))

    def _assistant(self, index: int, content: Sequence[Mapping[str, Any]]) -> None:
        self._expect_no_results(index)
        thoughts: list[str] = []
        blocks: list[Block] = []
        calls: list[ToolCall] = []
        for place, block in enumerate(content):
            self._check_role("assistant", index, block)
            match block["type"]:
                case "thinking":
                    thoughts.append(block["thinking"])
                case "tool_use":
                    calls.append(self._call(index, place, block))
                case "server_tool_use" | "web_search_tool_result":
                    if not self._setting.drops_server_blocks:
                        raise ConversionError(
                            f"Unsupported content block: {SERVER_TOOLS}",
                            field=f"messages[{index}].content[{place}]",
                        )
                case _:
                    if self._waiting:
                        raise _without_result(f"messages.{index}.{place}: ", self._waiting)
                    blocks.append(self._block(block, f"messages.{index}.content[{place}]"))
        # Empty blocks at the beginning leave no blank lines here.
        text, images = joined(dropwhile(lambda block: not block.text, blocks))
        if images:
            raise ConversionError(
                "Image in assistant message is unsupported", field=f"messages[{index}]"
            )
        reasoning = BETWEEN_BLOCKS.join(thoughts) if thoughts else None
        self.messages.append(AssistantMessage(text, reasoning, tuple(calls) or None))

    def _call(self, index: int, place: int, block: Mapping[str, Any]) -> ToolCall:
        if block["id"] in self._waiting:
            raise ConversionError(
                f"messages.{index}.content.{place}: `tool_use` ids must be unique",
                field=f"messages[{index}].content[{place}].id",
            )
        self._waiting.add(block["id"])
        self._asked_at = index
        # Both versions write small floats as V4 does here.
        return ToolCall(block["id"], block["name"], spaced(block["input"], "v4"))

    def _user(self, index: int, content: Sequence[Mapping[str, Any]]) -> None:
        added: list[ToolDefinition] = []
        for place, block in enumerate(content):
            self._check_role("user", index, block)
            if block["type"] == "tool_result":
                self._result(index, place, block, added)
            else:
                self._expect_no_results(index)
                one = self._block(block, f"messages.{index}.content[{place}]")
                self.messages.append(UserMessage(*joined([one])))
        if added and self._setting.version == "v4.1":
            self.messages.append(SystemMessage("", tools=tuple(added)))

    def _result(
        self, index: int, place: int, block: Mapping[str, Any], added: list[ToolDefinition]
    ) -> None:
        """A result; the tools that it refers to go to `added`."""
        use_id, path = block["tool_use_id"], f"messages.{index}.content.{place}"
        field = f"messages[{index}].content[{place}]"
        if use_id in self._answered:
            raise ConversionError(
                f"{path}: each tool_use must have a single result. Found multiple `tool_result` "
                f"blocks with id: {use_id}",
                field=field,
            )
        if use_id not in self._waiting:
            raise ConversionError(
                f"unexpected `{path}: tool_use_id` found in `tool_result` blocks: {use_id}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous "
                "message.",
                field=field,
            )
        self._waiting.remove(use_id)
        self._answered.add(use_id)
        content = block["content"] or ""
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        for inner in content:
            if inner["type"] == "tool_reference":
                name = inner["tool_name"]
                if name not in self._setting.tools:
                    raise ConversionError(
                        f"{path}: tool reference '{name}' not found in available tools",
                        field=field,
                    )
                added.append(self._setting.tools[name])
        blocks = []
        for inner_place, inner in enumerate(content):
            inner_path = f"{path}.tool_result"
            blocks.append(self._block(inner, f"{inner_path}.content[{inner_place}]", inner_path))
        text, images = joined(blocks)
        self.messages.append(ToolMessage(text, use_id, images))

    def _block(self, block: Mapping[str, Any], path: str, within: str | None = None) -> Block:
        """A block of text, or what stands in its place. within: what an image has as its path."""
        match block["type"]:
            case "text":
                return Block(block["text"])
            case "tool_reference":
                return Block(block["tool_name"])
            case "document":
                media_type = block["source"]["media_type"]
                said = "unknown" if media_type is None else media_type
                return Block(f"[Unsupported document type: {said}]")
            case "image" if shows_images(self._setting.version):
                image = replace(image_of_source(block["source"], path), path=within or path)
                return Block(self._setting.image_token, image)
            case _:
                return Block(NO_IMAGE)

    def _expect_no_results(self, index: int) -> None:
        if self._waiting:
            raise _without_result(f"messages.{index}: ", self._waiting)

    def _check_role(self, role: str, index: int, block: Mapping[str, Any]) -> None:
        kind = block["type"]
        if kind == "thinking" and role != "assistant":
            raise ConversionError(
                f"messages.{index}.content: thinking blocks may only be in `assistant` messages",
                field=f"messages[{index}]",
            )
        if _ROLES.get(kind, role) != role:
            raise ConversionError(
                f"messages.{index}: `{_SAID_AS.get(kind, kind)}` blocks can only be in "
                f"`{_ROLES[kind]}` messages",
                field=f"messages[{index}]",
            )


_TAKERS = {
    "system": MessageBlocks._system,
    "assistant": MessageBlocks._assistant,
    "user": MessageBlocks._user,
}


def _without_result(where: str, ids: Collection[str]) -> ConversionError:
    return ConversionError(
        f"{where}`tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(sorted(ids))}. Each `tool_use` block must have a corresponding `tool_result` "
        "block in the next message.",
        field="messages",
    )
