"""The events of an answer -> the words of its protocol, streamed or whole.

Knows the three protocols' writers, which the recipe has, and what clients expect beyond them:
several choices, and usage in a chunk of its own. Does not know connections.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from deepinfer.recipe.chunks import Ready, Usage
from deepinfer.recipe.events import Event, Finished
from deepinfer.recipe.events_chat import DONE, ChatAnswer, ChatEvents
from deepinfer.recipe.events_messages import MessagesAnswer, MessagesEvents
from deepinfer.recipe.events_responses import ResponsesAnswer, ResponsesEvents
from deepinfer.recipe.protocol_event import Answer, EventWriter, ProtocolEvent
from deepinfer.recipe.request import ConversationRequest, Protocol
from deepinfer.server.errors import ApiError, error_object

_IDS: Mapping[Protocol, str] = {"chat": "chatcmpl-", "responses": "resp_", "messages": "msg_"}
_EVENTS: Mapping[Protocol, Callable[[ConversationRequest, str], EventWriter]] = {
    "chat": ChatEvents,
    "responses": ResponsesEvents,
    "messages": MessagesEvents,
}
_ANSWERS: Mapping[Protocol, Callable[[], Answer]] = {
    "chat": ChatAnswer,
    "responses": ResponsesAnswer,
    "messages": MessagesAnswer,
}
_encode = msgspec.json.Encoder().encode
STREAM_END = f"data: {DONE}\n\n".encode()


def sent(event: ProtocolEvent) -> bytes:
    """An event as it goes over the wire."""
    data = b"data: " + _encode(event.data) + b"\n\n"
    return data if event.name is None else b"event: " + event.name.encode() + b"\n" + data


class AnswerWriter:
    """All choices of one answer; only Chat Completions has more than one.

    Attribute `usage`: of the choices that have ended, together.
    """

    def __init__(self, request: ConversationRequest, unique: str, num_choices: int) -> None:
        self._request = request
        response_id = _IDS[request.protocol] + unique
        make = _EVENTS[request.protocol]
        self._writers = [make(request, response_id) for _ in range(num_choices)]
        self._is_chat = request.protocol == "chat"
        self._head: dict[str, Any] = {}
        self._last: Mapping[str, Any] = {}
        self.usage = Usage()

    def start(self, ready: Ready) -> list[ProtocolEvent]:
        """What comes before all else."""
        self.usage = Usage(ready.prompt_tokens, ready.cached_tokens)
        events = [
            one
            for choice, writer in enumerate(self._writers)
            for one in self._placed(choice, writer.start(ready))
        ]
        self._head = dict(events[0].data)
        return events

    def write(
        self, choice: int, events: Sequence[Event], usage: Callable[[], Usage]
    ) -> list[ProtocolEvent]:
        """The events of one choice, in the protocol. usage: of this choice, once it ends."""
        writer, written = self._writers[choice], list[ProtocolEvent]()
        for event in events:
            if isinstance(event, Finished):
                found = usage()
                self._add(found)
                written += writer.finish(event, found)
            else:
                written += writer.write(event)
        return self._placed(choice, written)

    def end(self) -> bytes:
        """What ends the stream after all choices have ended."""
        if not self._is_chat:
            return b""
        if not self._request.include_usage:
            return STREAM_END
        usage = chat_usage(self.usage)
        return sent(ProtocolEvent(None, {**self._head, "choices": [], "usage": usage})) + STREAM_END

    def failed(self, error: ApiError, request_id: str) -> bytes:
        """What ends a stream that cannot go on: never what a complete answer would end with."""
        data = error_object(error, self._request.protocol, request_id)
        if self._is_chat:
            return sent(ProtocolEvent(None, data)) + STREAM_END
        if self._request.protocol == "messages":
            return sent(ProtocolEvent("error", data))
        number = self._last.get("sequence_number", -1) + 1
        code = error.code or "server_error"
        head = {"type": "error", "sequence_number": number}
        told = {**head, "code": code, "message": error.message, "param": error.param}
        response = {
            **self._head.get("response", {}),
            "status": "failed",
            "error": {"code": "server_error", "message": error.message},
        }
        kind = "response.failed"
        end = {"type": kind, "response": response, "sequence_number": number + 1}
        return sent(ProtocolEvent("error", told)) + sent(ProtocolEvent(kind, end))

    def _placed(self, choice: int, events: list[ProtocolEvent]) -> list[ProtocolEvent]:
        """Chat's chunks know their choice, and have no usage: it has a chunk of its own."""
        for event in events if self._is_chat else ():
            event.data["choices"][0]["index"] = choice
            if event.data.get("usage") is not None:
                _settle_usage(event.data, is_shown=self._request.include_usage)
        if events:
            self._last = events[-1].data
        return events

    def _add(self, usage: Usage) -> None:
        before = self.usage
        reasoning = usage.reasoning_tokens
        if reasoning is not None:
            reasoning += before.reasoning_tokens or 0
        self.usage = Usage(
            before.prompt_tokens,
            before.cached_tokens,
            before.completion_tokens + usage.completion_tokens,
            reasoning,
        )


class WholeAnswer:
    """All choices of one answer, put together."""

    def __init__(self, protocol: Protocol, num_choices: int) -> None:
        self._answers = [_ANSWERS[protocol]() for _ in range(num_choices)]
        self._is_chat = protocol == "chat"

    def take(self, events: Sequence[ProtocolEvent]) -> None:
        """More events, of any choice."""
        for event in events:
            choice = event.data["choices"][0]["index"] if self._is_chat else 0
            self._answers[choice].accumulate(event)

    def data(self, usage: Usage) -> Mapping[str, Any]:
        """The answer. usage: of all choices."""
        if not self._is_chat:
            return self._answers[0].data
        wholes = [answer.data for answer in self._answers]
        choices = [{**one["choices"][0], "index": n} for n, one in enumerate(wholes)]
        return {**wholes[0], "choices": choices, "usage": chat_usage(usage)}


def chat_usage(usage: Usage) -> dict[str, Any]:
    """Usage as Chat Completions and Completions have it."""
    details = {"reasoning_tokens": usage.reasoning_tokens or 0}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": details,
    }


def _settle_usage(chunk: Mapping[str, Any], *, is_shown: bool) -> None:
    assert isinstance(chunk, dict)
    if is_shown:
        chunk["usage"] = None
    else:
        del chunk["usage"]
