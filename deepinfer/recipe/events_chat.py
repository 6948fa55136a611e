"""Chat Completions: chunks of a stream, and the whole completion (spec recipe 8.1).

Knows the protocol. Does not know how an answer is read.
"""

import time
from collections.abc import Mapping
from typing import Any

from deepinfer.recipe.chunks import Ready, Usage
from deepinfer.recipe.events import (
    CallArguments,
    CallOpened,
    ContentText,
    Event,
    Finished,
    ReasoningText,
)
from deepinfer.recipe.protocol_event import Clock, ProtocolEvent, seconds
from deepinfer.recipe.request import ConversationRequest

DONE = "[DONE]"


class ChatEvents:
    """Writes the chunks of one completion.

    Logprobs of a run of tokens come once, with the first text of the run.
    """

    def __init__(
        self, request: ConversationRequest, response_id: str, *, clock: Clock = time.time
    ) -> None:
        self._thinking = request.conversation.thinking
        self._continues_content = request.parsing.thinking_stage == "ContentContinuation"
        self._shows_no_usage = request.stream and not request.include_usage
        self._head: dict[str, Any] = {
            "id": response_id,
            "object": "chat.completion.chunk",
            "created": seconds(clock),
            "model": request.model,
        }

    def start(self, ready: Ready) -> list[ProtocolEvent]:
        """The chunk with the role."""
        self._head["system_fingerprint"] = ready.system_fingerprint
        key = "reasoning_content"
        if not self._thinking or self._continues_content:
            key = "content"
        return [self._chunk({"role": "assistant"} | self._texts(key, ""))]

    def write(self, event: Event) -> list[ProtocolEvent]:
        """One chunk for each event."""
        match event:
            case ContentText():
                return [self._text("content", event)]
            case ReasoningText():
                return [self._text("reasoning_content", event)]
            case CallOpened():
                function = {"name": event.name, "arguments": ""}
                return [self._call(event.index, function, id=event.id, type="function")]
            case CallArguments():
                return [self._call(event.index, {"arguments": event.text})]
        return []

    def finish(self, finished: Finished, usage: Usage) -> list[ProtocolEvent]:
        """The chunk with the finish reason and the usage."""
        delta = self._texts("content", "")
        return [self._chunk(delta, finish_reason=finished.reason, usage=_usage(usage))]

    def _text(self, key: str, event: ContentText | ReasoningText) -> ProtocolEvent:
        logprobs = {key: list(event.logprobs)} if event.logprobs else None
        return self._chunk(self._texts(key, event.text), logprobs=logprobs)

    def _texts(self, key: str, text: str) -> dict[str, Any]:
        """Who thinks has both keys in each delta of text."""
        if not self._thinking:
            return {key: text}
        return {"content": None, "reasoning_content": None} | {key: text}

    def _call(self, index: int, function: Mapping[str, Any], **opening: str) -> ProtocolEvent:
        call = {"index": index} | opening | {"function": function}
        return self._chunk({"tool_calls": [call]})

    def _chunk(
        self,
        delta: Mapping[str, Any],
        *,
        logprobs: Mapping[str, Any] | None = None,
        finish_reason: str | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> ProtocolEvent:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        data = self._head | {"choices": [choice]}
        if usage is not None or not self._shows_no_usage:
            data["usage"] = usage
        return ProtocolEvent(None, data)


class ChatAnswer:
    """The whole completion, from its chunks."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {"content": []}
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []
        self._logprobs: dict[str, list[Any]] = {}
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] | None = None

    def accumulate(self, event: ProtocolEvent) -> None:
        """Take the next chunk."""
        self._head = dict(event.data)
        (choice,) = event.data["choices"]
        for key in ("content", "reasoning_content"):
            if (text := choice["delta"].get(key)) is not None:
                self._texts.setdefault(key, []).append(text)
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                self._calls.append(call)
                self._arguments.append([])
            self._arguments[call["index"]].append(call["function"]["arguments"])
        for key, entries in (choice["logprobs"] or {}).items():
            self._logprobs.setdefault(key, []).extend(entries)
        self._finish_reason = choice["finish_reason"]
        self._usage = event.data.get("usage")

    @property
    def data(self) -> Mapping[str, Any]:
        """The completion so far."""
        message: dict[str, Any] = {"role": "assistant"}
        message |= {key: "".join(texts) for key, texts in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [
                call | {"function": call["function"] | {"arguments": "".join(arguments)}}
                for call, arguments in zip(self._calls, self._arguments, strict=True)
            ]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs or None,
            "finish_reason": self._finish_reason,
        }
        head = self._head | {"object": "chat.completion", "choices": [choice]}
        fingerprint = head.pop("system_fingerprint", None)
        return head | {"usage": self._usage, "system_fingerprint": fingerprint}


def _usage(usage: Usage) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if usage.reasoning_tokens is not None:
        details["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        **details,
        "prompt_cache_hit_tokens": usage.cached_tokens,
        "prompt_cache_miss_tokens": usage.prompt_tokens - usage.cached_tokens,
    }
