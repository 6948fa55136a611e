"""The text of one growing continuation, and where a stop string ends it.

Knows characters. Does not know requests, end tokens, parsers of markup, or who reads the text.

Stop strings are looked for in the text, not in the tokens: it makes no difference how tokens cut
it, nor in how many calls they come. The stop string that is complete first wins; of several that
are complete at the same character, the first in the caller's list. Text that may be the beginning
of a stop string is held back, and no other text.
"""

from collections.abc import Iterable, Sequence

from deepinfer.tokenizer.detokenize import Detokenizer
from deepinfer.tokenizer.tokenizer import Tokenizer


class TextStream:
    """What the calls of `push` and the last `finish` return, joined, is the continuation's text.

    stop: the stop strings. include_stop: the text ends with the stop string, not before it.
    min_tokens: a stop string that one of the first min_tokens tokens completes does not count.
    skip_special: leave out the spelling of special tokens.
    is_structured: a stop string counts only where the text, as it would be returned, is complete
        and a token ends; `push` is told where.

    Attributes: `num_tokens`, the tokens taken, the one that completed the stop string the last of
    them; `stop_reason`, the stop string that ended the text, or None.

    Example, with the stop string "\\n\\n": push("a\\n") -> "a", push("b\\n") -> "\\nb",
    push("\\nc") -> "", and stop_reason is set; finish() -> "".
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special: bool = False,
        is_structured: bool = False,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        self._matchers = [_Matcher(one) for one in stop]
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._held = ""
        self._final: list[str] = []
        self._num_taken = 0
        # Lengths of the text at which it was complete; all are, without a structure.
        self._complete: set[int] | None = set() if is_structured else None
        self.num_tokens = 0
        self.stop_reason: str | None = None

    @property
    def text(self) -> str:
        """All text that is final so far."""
        return "".join(self._final)

    def push(self, token_ids: Iterable[int], *, may_stop: bool = True) -> str:
        """The text that is final now; it may be empty. Tokens after a stop string are ignored.

        may_stop: of a structured text, that it is complete after the last of the tokens.
        Raises RequestError (field "token_ids") for an id that the model does not have.
        """
        pieces: list[str] = []
        for token_id in token_ids:
            if self.stop_reason is not None:
                break
            characters = self._detokenizer.push(token_id)
            self.num_tokens += 1
            if may_stop and self._complete is not None:
                self._complete.add(self._num_taken + len(characters))
            pieces.append(self._take(characters))
        return self._emit(pieces)

    def finish(self) -> str:
        """The text that was held back. No more tokens may follow.

        Half a character becomes U+FFFD, which a stop string may end with like any other.
        """
        pieces: list[str] = []
        if self.stop_reason is None:
            pieces.append(self._take(self._detokenizer.finish()))
            pieces.append(self._held)
            self._held = ""
        return self._emit(pieces)

    def _emit(self, pieces: list[str]) -> str:
        piece = "".join(pieces)
        if piece:
            self._final.append(piece)
        return piece

    def _take(self, characters: str) -> str:
        """What is final after `characters`; the rest goes to `_held`."""
        self._num_taken += len(characters)
        if not self._matchers:
            return characters
        text, start = self._held + characters, len(self._held)
        for end, character in enumerate(characters, start + 1):
            complete = [m.stop for m in self._matchers if m.advance(character)]
            before = self._num_taken - len(text)
            for stop in complete if self.num_tokens > self._min_tokens else ():
                cut = end if self._include_stop else end - len(stop)
                if self._complete is None or before + cut in self._complete:
                    self.stop_reason, self._held = stop, ""
                    return text[:cut]
        num_held = max(matcher.num_matched for matcher in self._matchers)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]


class _Matcher:
    """Follows a text character by character, at a constant cost each, however long the stop string
    is (Knuth, Morris and Pratt).

    Attributes: `num_matched`, the length of the longest beginning of `stop` that the text ends
    with, `stop` as a whole excepted.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        # For each beginning of `stop`: its longest end, short of all of it, that is a beginning.
        self._shorter = [0]
        for character in stop[1:]:
            length = self._extend(self._shorter[-1], character)
            self._shorter.append(length)

    def advance(self, character: str) -> bool:
        """Whether the text, now with `character` at its end, ends with `stop`."""
        self.num_matched = self._extend(self.num_matched, character)
        if self.num_matched < len(self.stop):
            return False
        self.num_matched = self._shorter[-1]
        return True

    def _extend(self, length: int, character: str) -> int:
        """The beginning that is matched after one more character."""
        while length and self.stop[length] != character:
            length = self._shorter[length - 1]
        return length + (self.stop[length] == character)
