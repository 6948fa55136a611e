"""Messages: events of a stream, and the whole message (spec recipe 8.3).

Knows the protocol. Does not know how an answer is read.
"""

from collections.abc import Mapping
from typing import Any, Literal

from deepinfer.recipe.chunks import Ready, Usage
from deepinfer.recipe.events import (
    CallArguments,
    CallOpened,
    ContentText,
    Event,
    Finished,
    ReasoningText,
)
from deepinfer.recipe.json_text import read_json
from deepinfer.recipe.protocol_event import ProtocolEvent
from deepinfer.recipe.request import ConversationRequest

_STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}


class MessagesEvents:
    """Writes the events of one message.

    Who thinks has a thinking block first, even if it stays empty. signature: ends the thinking
    block; the response id if not given.
    """

    def __init__(
        self, request: ConversationRequest, response_id: str, *, signature: str | None = None
    ) -> None:
        self._thinking = request.conversation.thinking
        self._model = request.model
        self._id = response_id
        self._signature = response_id if signature is None else signature
        self._num_blocks = 0
        self._open: Literal["thinking", "text", "tool_use"] | None = None

    def start(self, ready: Ready) -> list[ProtocolEvent]:
        """The message without content, and the thinking block."""
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(Usage(ready.prompt_tokens, ready.cached_tokens)),
        }
        started = [_event("message_start", message=message)]
        return started + self._open_thinking() if self._thinking else started

    def write(self, event: Event) -> list[ProtocolEvent]:
        """A delta, in a block of its kind."""
        match event:
            case ReasoningText():
                opened = [] if self._open == "thinking" else self._open_thinking()
                return [*opened, self._delta("thinking_delta", thinking=event.text)]
            case ContentText():
                block = {"type": "text", "text": ""}
                opened = [] if self._open == "text" else self._open_block("text", block)
                return [*opened, self._delta("text_delta", text=event.text)]
            case CallOpened():
                block = {"type": "tool_use", "id": event.id, "name": event.name}
                return self._open_block("tool_use", block | {"input": {}})
            case CallArguments():
                return [self._delta("input_json_delta", partial_json=event.text)]
        return []

    def finish(self, finished: Finished, usage: Usage) -> list[ProtocolEvent]:
        """The stop reason and the usage."""
        stopped = finished.stop_sequence is not None
        delta = {
            "stop_reason": "stop_sequence" if stopped else _STOP_REASONS[finished.reason],
            "stop_sequence": finished.stop_sequence,
        }
        return [
            *self._close_block(),
            _event("message_delta", delta=delta, usage=_usage(usage)),
            _event("message_stop"),
        ]

    def _open_thinking(self) -> list[ProtocolEvent]:
        block = {"type": "thinking", "thinking": "", "signature": ""}
        return self._open_block("thinking", block)

    def _open_block(
        self, kind: Literal["thinking", "text", "tool_use"], block: Mapping[str, Any]
    ) -> list[ProtocolEvent]:
        closed = self._close_block()
        self._open = kind
        index = self._num_blocks
        self._num_blocks += 1
        opened = _event("content_block_start", index=index, content_block=block)
        return [*closed, opened] if index else [*closed, opened, _event("ping")]

    def _close_block(self) -> list[ProtocolEvent]:
        if self._open is None:
            return []
        stop = _event("content_block_stop", index=self._num_blocks - 1)
        if self._open == "thinking":
            return [self._delta("signature_delta", signature=self._signature), stop]
        return [stop]

    def _delta(self, kind: str, **delta: str) -> ProtocolEvent:
        index = self._num_blocks - 1
        return _event("content_block_delta", index=index, delta={"type": kind, **delta})


class MessagesAnswer:
    """The whole message, from the events of its stream."""

    def __init__(self) -> None:
        self._message: Mapping[str, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        # Of the open block: its texts by key.
        self._texts: dict[str, list[str]] = {}

    def accumulate(self, event: ProtocolEvent) -> None:
        """Take the next event. The input of a tool that is no JSON object becomes {}."""
        data = event.data
        match event.name:
            case "message_start":
                self._message = data["message"]
            case "content_block_start":
                self._blocks.append(dict(data["content_block"]))
            case "content_block_delta":
                for key, text in data["delta"].items():
                    self._texts.setdefault(key, []).append(text)
            case "content_block_stop":
                self._blocks[-1] = self._block()
                self._texts.clear()
            case "message_delta":
                self._message = {**self._message, **data["delta"], "usage": data["usage"]}

    @property
    def data(self) -> Mapping[str, Any]:
        """The message so far."""
        blocks = [*self._blocks[:-1], self._block()] if self._blocks else []
        return {**self._message, "content": blocks}

    def _block(self) -> dict[str, Any]:
        """The last block as it is now."""
        block = dict(self._blocks[-1])
        for key in self._texts.keys() & block.keys() - {"type"}:
            block[key] = "".join(self._texts[key])
        if "partial_json" in self._texts:
            block["input"] = _object("".join(self._texts["partial_json"]))
        return block


def _event(name: str, **data: Any) -> ProtocolEvent:
    return ProtocolEvent(name, {"type": name, **data})


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "service_tier": "standard",
    }


def _object(text: str) -> dict[str, Any]:
    try:
        value = read_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
