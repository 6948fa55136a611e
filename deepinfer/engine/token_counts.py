"""How often each token occurred, as arrays that are ready for a step: what penalties ask for.

What grows is counted token by token, and only for a continuation whose penalties are on.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from deepinfer.step import Float32, Int32


class Counted(NamedTuple):
    """token_ids: int32, each once. counts: float32, how often."""

    token_ids: Int32
    counts: Float32


class TokenCounts:
    """How often each token occurred, as arrays that are ready for a step."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.zeros(16, np.int32)
        self._counts = np.zeros(16, np.float32)

    @property
    def token_ids(self) -> Int32:
        """int32, each token once; a view that the next `add` may outdate."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Float32:
        """float32, of `token_ids`."""
        return self._counts[: len(self._places)]

    def ahead(self, token_ids: Sequence[int]) -> Iterator[Counted]:
        """What would be counted after none, one, two ... of `token_ids`; nothing is counted.

        Good until the next `add`.
        """
        token_ids_so_far, counts, new = self.token_ids, self.counts, dict[int, int]()
        yield Counted(token_ids_so_far, counts)
        for token_id in token_ids:
            place = self._places.get(token_id, new.get(token_id))
            if place is None:
                new[token_id] = len(token_ids_so_far)
                token_ids_so_far = np.append(token_ids_so_far, np.int32(token_id))
                counts = np.append(counts, np.float32(1))
            else:
                counts = counts.copy()
                counts[place] += 1
            yield Counted(token_ids_so_far, counts)

    def add(self, token_id: int) -> None:
        """Count one token."""
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[place] = token_id
        self._counts[place] += 1
