"""Texts as numbers: each is another text and one token more.

Of a text it is known, too, how it was computed: where it last turned into an approximation.
"""

from collections.abc import Iterable

ROOT = 0
START = 1


def advance(state: int, token_ids: Iterable[int]) -> int:
    """The rolling state after these tokens."""
    for token_id in token_ids:
        state = (state * 1_000_003 + token_id + 1) % (2**31 - 1)
    return state


def next_token(state: int) -> int:
    """The token that follows, below 1000."""
    return state % 1000


class Texts:
    """All that were ever made; number 0 is the empty one.

    Of each: parents, the text before its last token; tokens, that token; states, the rolling state
    of all tokens; turns, the length of the last bounded hit that it was computed behind, or 0.
    Equal numbers are equal texts, computed in the same way.
    """

    def __init__(self) -> None:
        self.parents, self.tokens, self.states, self.turns = [-1], [-1], [START], [0]
        self._numbers: dict[tuple[int, int, int], int] = {}

    def longer(self, text: int, token_id: int, turn: int) -> int:
        """A text and one token more."""
        found = self._numbers.setdefault((text, token_id, turn), len(self.parents))
        if found == len(self.parents):
            self.parents.append(text)
            self.tokens.append(token_id)
            self.states.append(advance(self.states[text], [token_id]))
            self.turns.append(turn)
        return found

    def last(self, text: int, num_tokens: int) -> list[int]:
        """The texts that end with each of its last tokens, as many as there are, in order."""
        found: list[int] = []
        while text != ROOT and len(found) < num_tokens:
            found.append(text)
            text = self.parents[text]
        return found[::-1]

    def last_tokens(self, text: int, num_tokens: int) -> list[int]:
        """Its last tokens, as many as there are."""
        return [self.tokens[one] for one in self.last(text, num_tokens)]
