"""The items of a Responses answer, what is said while one grows, and those of text (spec recipe
8.2).

Knows one item at a time. Does not know calls, other items, or how an answer is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from deepinfer.recipe.parts import Note

Status = Literal["in_progress", "completed", "incomplete"]
# The type of an event without "response." in front, and its fields without those of the stream.
Said = tuple[str, dict[str, Any]]


class Place(NamedTuple):
    """Where an item is: output_index counts the items of the response."""

    response_id: str
    output_index: int


class Item(ABC):
    """An item that grows.

    Attributes: `id`; `data`, the item as it was said last.
    """

    prefix: str

    def __init__(self, place: Place) -> None:
        self.id = f"{self.prefix}_{place.response_id}_{place.output_index}"
        self.data: Mapping[str, Any] = {}

    @abstractmethod
    def add(self, text: str, logprobs: Note = ()) -> list[Said]:
        """More text."""

    def open(self) -> list[Said]:
        """The item without content."""
        return [self._item("added", "in_progress")]

    def close(self, status: Status, *, call_follows: bool = False) -> list[Said]:
        """The item as a whole. call_follows: the next item is a call."""
        return [self._item("done", status)]

    @abstractmethod
    def _describe(self, status: Status) -> dict[str, Any]:
        """The item as it is now."""

    def _item(self, change: str, status: Status) -> Said:
        self.data = self._describe(status)
        return f"output_item.{change}", {"item": self.data}


class TextItem(Item):
    """An item with one part of text."""

    kind: str

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._text: list[str] = []
        self._logprobs: list[Mapping[str, Any]] = []
        self._content: list[dict[str, Any]] = []

    def open(self) -> list[Said]:
        """The item, then the part."""
        return [*super().open(), self._say("content_part.added", part=self._part())]

    def add(self, text: str, logprobs: Note = ()) -> list[Said]:
        """A delta."""
        self._text.append(text)
        self._logprobs += logprobs
        return [self._say(f"{self.kind}.delta", delta=text, **self._shown(list(logprobs)))]

    def close(self, status: Status, *, call_follows: bool = False) -> list[Said]:
        """The text, the part and the item."""
        text = "".join(self._text)
        part = self._part()
        self._content = [part]
        return [
            self._say(f"{self.kind}.done", text=text, **self._shown(self._logprobs)),
            self._say("content_part.done", part=part),
            *super().close(status),
        ]

    def _part(self) -> dict[str, Any]:
        return {"type": self.kind, "text": "".join(self._text)}

    def _shown(self, logprobs: list[Mapping[str, Any]]) -> dict[str, Any]:
        """The fields for logprobs."""
        return {}

    def _say(self, event: str, **fields: Any) -> Said:
        return event, {"content_index": 0, "item_id": self.id, **fields}


class ReasoningItem(TextItem):
    """The reasoning. A name stands where the protocol has it encrypted."""

    prefix = "rs"
    kind = "reasoning_text"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._encrypted = f"{place.response_id}-{place.output_index}"

    def _describe(self, status: Status) -> dict[str, Any]:
        return {
            "type": "reasoning",
            "id": self.id,
            "status": status,
            "content": self._content,
            "summary": [],
            "encrypted_content": self._encrypted,
        }


class MessageItem(TextItem):
    """The answer, or what the model says before a call."""

    prefix = "msg"
    kind = "output_text"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._phase = "final_answer"

    def close(self, status: Status, *, call_follows: bool = False) -> list[Said]:
        """The text, the part and the item."""
        if call_follows:
            self._phase = "commentary"
        return super().close(status)

    def _describe(self, status: Status) -> dict[str, Any]:
        return {
            "type": "message",
            "id": self.id,
            "status": status,
            "role": "assistant",
            "phase": self._phase,
            "content": self._content,
        }

    def _part(self) -> dict[str, Any]:
        part = super()._part()
        return {"type": part.pop("type"), "annotations": [], **self._shown(self._logprobs), **part}

    def _shown(self, logprobs: list[Mapping[str, Any]]) -> dict[str, Any]:
        return {"logprobs": list(logprobs)}
