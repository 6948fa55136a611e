"""What the three protocols' streams have in common: their events, and what makes them.

Knows no protocol.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from deepinfer.recipe.chunks import Ready, Usage
from deepinfer.recipe.events import Event, Finished

Clock = Callable[[], float]


@dataclass(frozen=True)
class ProtocolEvent:
    """One event of a stream. name: of the server-sent event; None where the protocol has none."""

    name: str | None
    data: Mapping[str, Any]

    def to_json(self) -> str:
        """The event's data, compact, not escaped beyond need."""
        return to_json(self.data)


class EventWriter(Protocol):
    """Says in a protocol's words what the parser found. Made for one answer."""

    def start(self, ready: Ready) -> list[ProtocolEvent]:
        """What comes before all else."""

    def write(self, event: Event) -> list[ProtocolEvent]:
        """All events but Finished."""

    def finish(self, finished: Finished, usage: Usage) -> list[ProtocolEvent]:
        """The end."""


class Answer(Protocol):
    """A whole response, put together from the events of its stream."""

    def accumulate(self, event: ProtocolEvent) -> None:
        """Take the next event."""

    @property
    def data(self) -> Mapping[str, Any]:
        """The response so far."""


def to_json(data: Mapping[str, Any]) -> str:
    """Compact JSON text.

    Raises ValueError for a number that JSON does not have.
    """
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def seconds(clock: Clock = time.time) -> int:
    """The time in whole seconds, as all protocols have it."""
    return int(clock())
