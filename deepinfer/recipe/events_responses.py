"""Responses: events of a stream, and the whole response (spec recipe 8.2).

Knows the protocol. Does not know how an answer is read, or what one item says.
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
from deepinfer.recipe.request import ConversationRequest, ResponsesEcho
from deepinfer.recipe.responses_calls import call_item
from deepinfer.recipe.responses_items import (
    Item,
    MessageItem,
    Place,
    ReasoningItem,
    Said,
    Status,
)

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesEvents:
    """Writes the events of one response."""

    def __init__(
        self, request: ConversationRequest, response_id: str, *, clock: Clock = time.time
    ) -> None:
        self._model = request.model
        self._echo = request.echo or ResponsesEcho()
        self._id = response_id
        self._clock = clock
        self._created_at = seconds(clock)
        self._num_events = 0
        self._items: list[Item] = []

    def start(self, ready: Ready) -> list[ProtocolEvent]:
        """The response without output, twice."""
        response = self._response("in_progress")
        return [
            self._event("created", response=response),
            self._event("in_progress", response=response),
        ]

    def write(self, event: Event) -> list[ProtocolEvent]:
        """A delta, in an item of its kind."""
        match event:
            case ReasoningText():
                return self._text(ReasoningItem, event)
            case ContentText():
                return self._text(MessageItem, event)
            case CallOpened():
                closed = self._close("completed", call_follows=True)
                return closed + self._open(call_item(event, self._next_place(), self._echo))
            case CallArguments():
                return self._said(self._items[-1].add(event.text))
        return []

    def finish(self, finished: Finished, usage: Usage) -> list[ProtocolEvent]:
        """The end of the last item, and the response as a whole."""
        reason = _INCOMPLETE.get(finished.reason)
        status: Status = "completed" if reason is None else "incomplete"
        closed = self._close(status)
        response = self._response(status, reason=reason, usage=_usage(usage))
        return [*closed, self._event(status, response=response)]

    def _text(
        self, kind: type[ReasoningItem | MessageItem], event: ReasoningText | ContentText
    ) -> list[ProtocolEvent]:
        opened: list[ProtocolEvent] = []
        if not (self._items and isinstance(self._items[-1], kind)):
            opened = self._close("completed") + self._open(kind(self._next_place()))
        return opened + self._said(self._items[-1].add(event.text, event.logprobs))

    def _next_place(self) -> Place:
        return Place(self._id, len(self._items))

    def _open(self, item: Item) -> list[ProtocolEvent]:
        self._items.append(item)
        return self._said(item.open())

    def _close(self, status: Status, *, call_follows: bool = False) -> list[ProtocolEvent]:
        if not self._items:
            return []
        return self._said(self._items[-1].close(status, call_follows=call_follows))

    def _said(self, said: list[Said]) -> list[ProtocolEvent]:
        index = len(self._items) - 1
        return [self._event(kind, **fields, output_index=index) for kind, fields in said]

    def _event(self, kind: str, **fields: Any) -> ProtocolEvent:
        """The fields of an event are in the order of the alphabet."""
        fields["sequence_number"] = self._num_events
        self._num_events += 1
        name = f"response.{kind}"
        return ProtocolEvent(name, {"type": name, **dict(sorted(fields.items()))})

    def _response(
        self,
        status: Status,
        *,
        reason: str | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        echo = self._echo
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "background": False,
            "completed_at": None if status == "in_progress" else seconds(self._clock),
            "content_filters": None,
            "error": None,
            "frequency_penalty": 0.0,
            "incomplete_details": None if reason is None else {"reason": reason},
            "instructions": echo.instructions,
            "max_output_tokens": echo.max_output_tokens,
            "max_tool_calls": None,
            "model": self._model,
            "moderation": None,
            "output": [item.data for item in self._items],
            "parallel_tool_calls": True,
            "presence_penalty": 0.0,
            "previous_response_id": None,
            "prompt_cache_key": None,
            "prompt_cache_retention": None,
            "reasoning": {"effort": None, "summary": None} | echo.reasoning,
            "safety_identifier": None,
            "service_tier": "default",
            "store": False,
            "temperature": 1.0 if echo.temperature is None else echo.temperature,
            "text": {"format": {"type": "text"}, "verbosity": None} | echo.text,
            "tool_choice": "auto" if echo.tool_choice is None else echo.tool_choice,
            "tools": echo.tools,
            "top_logprobs": echo.top_logprobs or 0,
            "top_p": 1.0 if echo.top_p is None else echo.top_p,
            "truncation": "disabled",
            "usage": usage,
            "user": echo.user,
            "metadata": {},
        }


class ResponsesAnswer:
    """The whole response: the events that carry it carry all of it."""

    def __init__(self) -> None:
        self.data: Mapping[str, Any] = {}

    def accumulate(self, event: ProtocolEvent) -> None:
        """Take the next event."""
        self.data = event.data.get("response", self.data)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
