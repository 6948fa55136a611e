"""Counts what one request gets while it is answered: tokens, and when they came.

Knows counts and clocks. Does not know protocols.
"""

import time
from collections.abc import Iterable, Sequence

from deepinfer.messages import Delta
from deepinfer.server.admission import Place
from deepinfer.server.exchange import Exchange
from deepinfer.server.state import HttpStats


class Progress:
    """One prompt of a request. place: given up with the first token."""

    def __init__(
        self, exchange: Exchange, stats: HttpStats, place: Place, num_prompt_tokens: int
    ) -> None:
        self._exchange, self._stats, self._place = exchange, stats, place
        self._num_prompt_tokens = num_prompt_tokens
        self._is_first = True
        self._last_s: dict[int, float] = {}
        self.cached_tokens = 0

    def saw(self, deltas: Sequence[Delta]) -> None:
        """News that came just now."""
        now_s = time.monotonic()
        if self._is_first:
            self._first(deltas, now_s)
        num_tokens = 0
        for choice, num_new in _tokens_by_choice(deltas).items():
            num_tokens += num_new
            last_s = self._last_s.get(choice)
            if last_s is not None:
                self._stats.between_tokens_s.observe((now_s - last_s) / num_new, num_new)
            self._last_s[choice] = now_s
        self._stats.output_tokens += num_tokens
        self._exchange.output_tokens += num_tokens

    def _first(self, deltas: Iterable[Delta], now_s: float) -> None:
        self._is_first = False
        self._place.leave()
        self.cached_tokens = max((one.num_cached for one in deltas if one.choice == 0), default=0)
        self.cached_tokens = min(self.cached_tokens, self._num_prompt_tokens)
        exchange, stats = self._exchange, self._stats
        if exchange.first_token_s is None:
            exchange.first_token_s = now_s
            stats.first_token_s.observe(now_s - exchange.arrival_s)
        exchange.cached_tokens += self.cached_tokens
        stats.prompt_tokens += self._num_prompt_tokens
        stats.cached_tokens += self.cached_tokens


def _tokens_by_choice(deltas: Iterable[Delta]) -> dict[int, int]:
    found: dict[int, int] = {}
    for delta in deltas:
        if delta.token_id is not None:
            found[delta.choice] = found.get(delta.choice, 0) + 1
    return found
