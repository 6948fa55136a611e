"""The chunks of a growing answer, and the parts into which decisions cut them (spec recipe 7.3).

Knows chunks, and decisions about the characters that come next. Does not know how decisions are
found.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from deepinfer.recipe.stages import Action

Note = tuple[Mapping[str, Any], ...]


class Part(NamedTuple):
    """Some text and what it is. note: its chunk's, with the first part of the chunk alone."""

    action: Action
    text: str
    note: Note = ()


class PartQueue:
    """Neighbours with one action are one part. No part reaches over the end of a chunk, and none
    is passed on before it is certain that it does not go on.
    """

    def __init__(self) -> None:
        self._chunks: deque[_Chunk] = deque()
        self._parts: list[Part] = []
        # What the last decided character is. A match goes for SKIP here: it is said once.
        self._last: Action | None = None

    def add(self, text: str, shown: str | None, note: Note) -> None:
        """A chunk. shown: how a control token is spelled for which `text` stands."""
        self._chunks.append(_Chunk(text, shown, note))
        self._drop_empty()

    def decide(self, length: int, action: Action) -> None:
        """The next `length` characters are `action`."""
        while length:
            chunk = self._next_chunk(action)
            taken = min(length, chunk.num_undecided)
            if chunk.action is not action or chunk.says is not None:
                self._close(chunk)
                chunk.action = action
            chunk.end += taken
            length -= taken
            self._drop_decided()

    def decide_match(self, length: int, action: Action, says: str) -> None:
        """The next `length` characters are a match: a part for itself, which says `says`."""
        while length:
            chunk = self._next_chunk(Action.SKIP)
            taken = min(length, chunk.num_undecided)
            self._close(chunk)
            chunk.action, chunk.says = action, says
            # The chunks that it reaches into say nothing of it.
            action = Action.SKIP
            chunk.end += taken
            length -= taken
            self._drop_decided()

    def take(self) -> list[Part]:
        """The parts that are certain and were not taken yet."""
        parts, self._parts = self._parts, []
        return parts

    def _next_chunk(self, action: Action) -> "_Chunk":
        """The chunk of the next undecided character, which is `action`."""
        first = self._last is None
        self._last = action
        if first:
            # Empty chunks at the very beginning are of what comes first.
            self._drop_empty()
        return self._chunks[0]

    def _drop_decided(self) -> None:
        if not self._chunks[0].num_undecided:
            self._close(self._chunks.popleft())
            self._drop_empty()

    def _drop_empty(self) -> None:
        """An empty chunk is an empty part, of what the text before it is."""
        while self._last is not None and self._chunks and not self._chunks[0].num_undecided:
            chunk = self._chunks.popleft()
            if self._last is not Action.SKIP:
                self._parts.append(Part(self._last, "", chunk.note))

    def _close(self, chunk: "_Chunk") -> None:
        """The open part of a chunk does not go on."""
        if chunk.action not in (None, Action.SKIP):
            self._parts.append(Part(chunk.action, chunk.open_text, chunk.take_note()))
        chunk.action, chunk.says, chunk.start = None, None, chunk.end


class _Chunk:
    """Attributes: `start` and `end` of the open part, its `action`, what it `says` if it is a
    match, and the `note` if no part has taken it.
    """

    __slots__ = ("_shown", "_text", "action", "end", "note", "says", "start")

    def __init__(self, text: str, shown: str | None, note: Note) -> None:
        self._text = text
        self._shown = shown
        self.note = note
        self.action: Action | None = None
        self.says: str | None = None
        self.start = self.end = 0

    @property
    def num_undecided(self) -> int:
        return len(self._text) - self.end

    @property
    def open_text(self) -> str:
        if self.says is not None:
            return self.says
        return self._text[self.start : self.end] if self._shown is None else self._shown

    def take_note(self) -> Note:
        note, self.note = self.note, ()
        return note
