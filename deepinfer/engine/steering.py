"""What steers a continuation beside its parameters: a grammar, and a limit on its thoughts.

Token ids only. A grammar may wait for a trigger, such as the end of the thoughts; until then the
text is free but may not end.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from deepinfer.sampling_params import FREE
from deepinfer.step import Int32


class Matcher(Protocol):
    """A grammar at one point of a text: xgrammar's GrammarMatcher."""

    def accept_token(self, token_id: int) -> bool:
        """Go on with the token; False, and nothing changed, if the grammar does not allow it."""

    def fill_next_token_bitmask(self, bitmask: Int32, index: int = 0) -> bool:
        """Write the tokens that may come into row `index` of int32 [n, ceil(V / 32)]."""

    def is_completed(self) -> bool:
        """The text may end here."""

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens that were accepted."""


class GrammarState:
    """A grammar over the tokens of one continuation.

    end_ids: the tokens that end it. They may come only where the text is complete, and there they
    end it even if the grammar could take them for text. trigger_ids, bound_id: as in `SoArgs`.
    Attributes: `is_on`, the grammar holds from the next token on; `must_end`, the last mask allowed
    nothing but the end.
    """

    def __init__(
        self,
        matcher: Matcher,
        end_ids: Sequence[int],
        vocab_size: int,
        trigger_ids: Sequence[int] = (),
        bound_id: int | None = None,
    ) -> None:
        self._matcher, self._end_ids = matcher, tuple(end_ids)
        self._trigger, self._bound_id = tuple(trigger_ids), bound_id
        self._num_words = -(-vocab_size // 32)
        self._tail: tuple[int, ...] = ()
        self._is_bound = False
        self._num_accepted = 0
        self.is_on = not trigger_ids
        self.must_end = False

    @property
    def may_end(self) -> bool:
        """What was generated is complete."""
        return self.is_on and self._matcher.is_completed()

    def mask(self) -> Int32 | None:
        """int32 [ceil(V / 32)] of the tokens that may come; None while the text is free."""
        if not self.is_on:
            return None
        words = np.full(self._num_words, -1, np.int32)
        self._matcher.fill_next_token_bitmask(words[None])
        _set_bits(words, self._end_ids, allowed=False)
        may_end = self.may_end
        self.must_end = may_end and not words.any()
        _set_bits(words, self._end_ids, allowed=may_end)
        return words

    def banned(self) -> list[int]:
        """The tokens that may not come while the text is free: it must not end before it obeys."""
        return [] if self.is_on else [one for one in self._end_ids if one != self._bound_id]

    def forced(self) -> int:
        """The token of the trigger that must come now, FREE for none."""
        return self._trigger[len(self._tail)] if self._is_bound and not self.is_on else FREE

    def add(self, token_id: int) -> bool:
        """Take the token that was drawn; False if the grammar does not allow it."""
        if self.is_on:
            if token_id in self._end_ids:
                return self.may_end
            accepted = self._matcher.accept_token(token_id)
            self._num_accepted += accepted
            return accepted
        self._is_bound = self._is_bound or token_id == self._bound_id
        tail = (*self._tail, token_id)
        # The longest end of the text that begins the trigger.
        while tail and tail != self._trigger[: len(tail)]:
            tail = tail[1:]
        self._tail = tail
        self.is_on = tail == self._trigger
        return True

    def ahead(self) -> "GrammarState":
        """A copy to go on with for a while; `back` must follow before this one is used again."""
        return copy(self)

    def back(self, ahead: "GrammarState") -> None:
        """Take the matcher, which both share, back to where this one stands."""
        if ahead._num_accepted > self._num_accepted:
            self._matcher.rollback(ahead._num_accepted - self._num_accepted)


class ThinkingLimit:
    """Ends the thoughts after `most` tokens. end_id: the token that ends them."""

    def __init__(self, end_id: int, most: int) -> None:
        self._end_id, self._num_left = end_id, most
        self._is_open = True

    def forced(self) -> int:
        """The end of the thoughts when it is due, else FREE."""
        return self._end_id if self._is_open and self._num_left <= 0 else FREE

    def add(self, token_id: int) -> None:
        """Take the token that was drawn."""
        self._is_open = self._is_open and token_id != self._end_id
        self._num_left -= 1


@dataclass
class Steering:
    """Both, as far as a continuation has them."""

    grammar: GrammarState | None = None
    thinking: ThinkingLimit | None = None

    @property
    def may_end(self) -> bool:
        """Nothing forbids the text to end here."""
        return self.grammar is None or self.grammar.may_end

    @property
    def must_end(self) -> bool:
        """The grammar leaves nothing but the end."""
        return self.grammar is not None and self.grammar.must_end

    def mask(self) -> Int32 | None:
        """The tokens that may come, None for all."""
        return None if self.grammar is None else self.grammar.mask()

    def banned(self) -> list[int]:
        """Tokens that may not come."""
        return [] if self.grammar is None else self.grammar.banned()

    def forced(self) -> int:
        """The token that must come, FREE for none. A grammar that holds is not interrupted."""
        found = FREE if self.grammar is None else self.grammar.forced()
        is_free = self.grammar is None or not self.grammar.is_on
        if found == FREE and is_free and self.thinking is not None:
            found = self.thinking.forced()
        return found

    @contextmanager
    def looking_ahead(self) -> Iterator["Steering"]:
        """A copy that takes tokens for a `with` block, while this one stays where it is."""
        ahead = Steering(
            None if self.grammar is None else self.grammar.ahead(), copy(self.thinking)
        )
        try:
            yield ahead
        finally:
            if self.grammar is not None and ahead.grammar is not None:
                self.grammar.back(ahead.grammar)

    def add(self, token_id: int) -> bool:
        """Take the token that was drawn; False if the grammar does not allow it."""
        if self.thinking is not None:
            self.thinking.add(token_id)
        return self.grammar is None or self.grammar.add(token_id)


def thinking_limit(
    prompt_ids: Sequence[int], most: int | None, thinking_ids: tuple[int, int] | None
) -> ThinkingLimit | None:
    """The limit, if there is one and the prompt ends inside a thinking block.

    thinking_ids: the tokens around thoughts, None if the model has none.
    """
    if most is None or thinking_ids is None:
        return None
    start_id, end_id = thinking_ids
    last = next((one for one in reversed(prompt_ids) if one in thinking_ids), None)
    return ThinkingLimit(end_id, most) if last == start_id else None


def _set_bits(words: Int32, token_ids: Sequence[int], *, allowed: bool) -> None:
    bits = words.view(np.uint32)
    for token_id in token_ids:
        bit = np.uint32(1 << (token_id % 32))
        if allowed:
            bits[token_id // 32] |= bit
        else:
            bits[token_id // 32] &= ~bit
