"""The input items of a Responses request to the messages of a conversation (spec recipe 6.2).

Reasoning, text and calls that follow one another are one turn of the assistant; the outputs of its
calls follow it. Knows which items belong together. Does not know the rest of the request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deepinfer.recipe.blocks import (
    BETWEEN_BLOCKS,
    NO_IMAGE,
    Block,
    Content,
    joined,
    shows_images,
)
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
from deepinfer.recipe.images import NO_FILE_ID, image_of_url
from deepinfer.recipe.json_text import compact
from deepinfer.recipe.namespaces import TOOL_SEARCH, Functions, as_found
from deepinfer.recipe.shape_responses import SKIPPED
from deepinfer.recipe.tools import empty_string

_NO_DOCUMENT = "[Unsupported Document]"
_SEARCHES = ("tool_search_call", "tool_search_output")


@dataclass
class _Turn:
    """A turn of the assistant. calls, answers: by id; added: tools that came with the answers."""

    reasoning: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    has_message: bool = False
    calls: dict[str, ToolCall] = field(default_factory=dict)
    answers: dict[str, ToolMessage] = field(default_factory=dict)
    added: list[SystemMessage] = field(default_factory=list)

    def is_waiting(self) -> bool:
        """Whether a call has no answer yet."""
        return len(self.answers) < len(self.calls)

    def messages(self) -> list[Message]:
        """The turn, and the answers to its calls; both in the order of the calls' ids."""
        ids = sorted(self.calls)
        assistant = AssistantMessage(
            BETWEEN_BLOCKS.join(self.texts),
            "\n".join(self.reasoning) or None,
            tuple(self.calls[call_id] for call_id in ids) or None,
        )
        return [assistant, *(self.answers[call_id] for call_id in ids), *self.added]


class InputItems:
    """Takes the items of one request one by one, and checks that calls and outputs match.

    Attributes: `messages`; `found`, the tools that searches have found.
    """

    def __init__(self, functions: Functions, version: Version, image_token: str) -> None:
        self.messages: list[Message] = []
        self.found: list[ToolDefinition] = []
        self._functions = functions
        self._version = version
        self._image_token = image_token
        self._turn = _Turn()
        self._found_at: dict[int, list[ToolDefinition]] = {}
        self._call_ids: set[str] = set()
        self._answered: set[str] = set()

    def take(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Take all items. Raises ConversionError."""
        known = [
            (index, item)
            for index, item in enumerate(items)
            if item["type"] != SKIPPED and not (item["type"] in _SEARCHES and self._version == "v4")
        ]
        # What searches find has its names before the history's calls get theirs.
        self._found_at = {
            index: self._functions.found(item["tools"], f"input[{index}]")
            for index, item in known
            if item["type"] == "tool_search_output"
        }
        for index, item in known:
            kind = item["type"]
            if kind == "web_search_call":
                self._expect_outputs()
            elif kind == "message":
                self._message(index, item)
            elif kind == "reasoning":
                self._reasoning(item)
            elif kind.endswith("_output"):
                self._output(index, item)
            else:
                self._call(index, item)
        self._close()

    def _message(self, index: int, item: Mapping[str, Any]) -> None:
        path = f"input[{index}]"
        if item["role"] == "assistant":
            if self._turn.calls:
                self._close()
            text, _ = self._content(item["content"], path, "content", may_show=False)
            self._turn.has_message = True
            self._turn.texts += [text] if text else []
            return
        self._close()
        content = self._content(item["content"], path, "content")
        as_user = item["role"] == "user" or (item["role"] == "developer" and self._version == "v4")
        self.messages.append(UserMessage(*content) if as_user else SystemMessage(*content))

    def _reasoning(self, item: Mapping[str, Any]) -> None:
        text = "\n".join(one["text"] for one in item["content"] or ())
        if not text:
            self._expect_outputs()
            return
        if self._turn.calls or self._turn.texts:
            self._close()
        self._turn.reasoning.append(text)

    def _call(self, index: int, item: Mapping[str, Any]) -> None:
        call_id = item["call_id"]
        if self._turn.calls and not self._turn.is_waiting():
            self._close()
        if not call_id:
            raise empty_string(f"input[{index}].call_id")
        if call_id in self._call_ids:
            raise ConversionError(f"Duplicate 'call_id': {call_id}.", field=f"input[{index}]")
        self._call_ids.add(call_id)
        match item["type"]:
            case "function_call":
                name = self._functions.name(item["namespace"], item["name"])
                call = ToolCall(call_id, name, item["arguments"])
            case "custom_tool_call":
                call = ToolCall(call_id, item["name"], compact({"input": item["input"]}))
            case _:
                call = ToolCall(call_id, TOOL_SEARCH, compact(item["arguments"]))
        self._turn.calls[call_id] = call

    def _output(self, index: int, item: Mapping[str, Any]) -> None:
        call_id, path = item["call_id"], f"input[{index}]"
        is_search = item["type"] == "tool_search_output"
        content = Content("") if is_search else self._content(item["output"] or "", path, "output")
        if call_id is None:
            self._close()
            self.messages.append(ToolMessage(content.text, None, content.images))
            return
        if not call_id:
            raise empty_string(f"{path}.call_id")
        if call_id in self._answered:
            raise ConversionError(f"Duplicate tool output for call_id: {call_id}.", field=path)
        if call_id not in self._turn.calls:
            raise ConversionError(
                f"No tool call found for tool output with call_id {call_id}.", field=path
            )
        self._answered.add(call_id)
        if is_search:
            content = self._found(index, item["tools"])
        self._turn.answers[call_id] = ToolMessage(content.text, call_id, content.images)

    def _found(self, index: int, tools: Sequence[Mapping[str, Any]]) -> Content:
        """What a search has found, as its result; the tools join those of the request."""
        if any(tool["type"] == SKIPPED for tool in tools):
            raise ConversionError(
                f"input[{index}]: the enum variant ResponsesTool::Unsupported cannot be serialized",
                field=f"input[{index}]",
            )
        added = self._found_at[index]
        if added:
            self.found += added
            self._turn.added.append(SystemMessage("", tools=tuple(added)))
        return Content(compact(as_found(tools)))

    def _close(self) -> None:
        """End the turn in hand, if there is one; all of its calls must have their outputs."""
        self._expect_outputs()
        turn, self._turn = self._turn, _Turn()
        if turn.reasoning or turn.has_message or turn.calls:
            self.messages += turn.messages()

    def _expect_outputs(self) -> None:
        """All calls so far must have their outputs."""
        if self._turn.is_waiting():
            call_id = next(one for one in self._turn.calls if one not in self._turn.answers)
            raise ConversionError(f"No tool output found for tool call {call_id}.", field="input")

    def _content(self, content: Any, path: str, part: str, *, may_show: bool = True) -> Content:
        """The text of a content, and the images that have their places in it."""
        if isinstance(content, str):
            return Content(content)
        if shows_images(self._version):
            for index, block in enumerate(content):
                _check_image(block, f"{path}.{part}[{index}]")
        blocks = []
        for block in content:
            if block["type"] == "input_file":
                blocks.append(Block(_NO_DOCUMENT))
            elif block["type"] != "input_image":
                blocks.append(Block(block["text"]))
            elif not shows_images(self._version):
                blocks.append(Block(NO_IMAGE))
            else:
                if not may_show:
                    raise ConversionError(
                        f"{path}: Image in assistant message is unsupported", field=path
                    )
                image = image_of_url({"url": block["image_url"], "detail": block["detail"]}, path)
                blocks.append(Block(self._image_token, image))
        return joined(blocks)


def _check_image(block: Mapping[str, Any], path: str) -> None:
    """Of a block that is an image: it is an address, and only that."""
    if block["type"] != "input_image":
        return
    has_file = block["file_id"] is not None
    if not block["image_url"] and not has_file:
        why = "input_image must have image_url or file_id"
    elif block["image_url"] and has_file:
        why = "input_image cannot have both image_url and file_id"
    elif not block["image_url"]:
        why = NO_FILE_ID
    else:
        return
    raise ConversionError(f"{path}: {why}", field=path)
