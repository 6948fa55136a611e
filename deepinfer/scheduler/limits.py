"""`Limits`: when the tokens of a request end. Knows counts and ids of tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """When the tokens of a request end.

    max_tokens: most output tokens, at least 1.
    min_tokens: so many output tokens come before an end token may end the request. (Choosing the
        tokens keeps end tokens away until then; here they just do not count.)
    stop_token_ids: they end the request, always.
    eos_ids: they end it too, unless ignore_eos.
    """

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    eos_ids: frozenset[int] = frozenset()

    def ends_with(self, token_id: int) -> bool:
        """The token ends a request that has its least number of tokens."""
        return token_id in self.stop_token_ids or (token_id in self.eos_ids and not self.ignore_eos)
