"""Hands rows of tokens to the training, from the .npz files that `training.data.rows` writes:
token_ids uint16 [N, S], is_target as packed bits [N, S / 8].

A folder may hold files of several lengths S, and may still grow: it is looked at again when its
rows run out. Knows nothing of what tokens mean.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Batch(NamedTuple):
    """token_ids int64 [B, S]; is_target bool [B, S]: the token is to be predicted."""

    token_ids: Tensor
    is_target: Tensor


class _File(NamedTuple):
    token_ids: npt.NDArray[np.uint16]
    bits: npt.NDArray[np.uint8]


class Feed:
    """Gives out rows in order, every file's before any comes again."""

    def __init__(self, folder: Path, used: Mapping[int, int] | None = None) -> None:
        """used: how many rows of each length were given out before, as `self.used` counts them.
        Raises FileNotFoundError for a folder without rows.
        """
        self.folder = folder
        self.used: dict[int, int] = dict(used or {})
        self._files: dict[Path, _File] = {}
        self._counts: dict[int, int] = {}
        self._look()

    def take(self, num_tokens: int) -> Batch:
        """About `num_tokens` tokens in rows of one length, at least one row. Lengths take turns by
        how many tokens there are of each.
        """
        length = max(self._counts, key=self._lag)
        number, start = max(1, num_tokens // length), self.used.get(length, 0)
        if start // self._counts[length] != (start + number) // self._counts[length]:
            self._look()
        self.used[length] = start + number
        rows = [self._row(length, (start + i) % self._counts[length]) for i in range(number)]
        token_ids = np.stack([ids for ids, _ in rows]).astype(np.int64)
        bits = np.unpackbits(np.stack([bits for _, bits in rows]), axis=1, count=length)
        return Batch(torch.from_numpy(token_ids), torch.from_numpy(bits.astype(bool)))

    def _lag(self, length: int) -> float:
        """How far the use of a length lags behind its share of all tokens."""
        total = sum(size * count for size, count in self._counts.items())
        done = sum(size * self.used.get(size, 0) for size in self._counts) + 1
        return length * self._counts[length] / total - length * self.used.get(length, 0) / done

    def _row(self, length: int, number: int) -> tuple[npt.NDArray, npt.NDArray]:
        for file in self._files.values():
            if file.token_ids.shape[1] != length:
                continue
            if number < len(file.token_ids):
                return file.token_ids[number], file.bits[number]
            number -= len(file.token_ids)
        raise IndexError(number)

    def _look(self) -> None:
        for path in sorted(self.folder.glob("*.npz")):
            if path not in self._files:
                with np.load(path) as kept:
                    self._files[path] = _File(kept["token_ids"], kept["is_target"])
        if not self._files:
            raise FileNotFoundError(f"no .npz in {self.folder}")
        self._counts = {}
        for file in self._files.values():
            number, length = file.token_ids.shape
            self._counts[length] = self._counts.get(length, 0) + number


def write_copy_task(
    path: Path, *, vocab_size: int, num_rows: int, length: int, span: int = 6
) -> None:
    """Rows to try the training with: `span` random tokens, the same again, others, and so on."""
    rng = np.random.default_rng(0)
    low, high = vocab_size // 2, vocab_size // 2 + 40
    spans = rng.integers(low, high, size=(num_rows, length // (2 * span) + 1, span))
    token_ids = np.concatenate((spans, spans), axis=2).reshape(num_rows, -1)[:, :length]
    is_target = np.tile(np.arange(2 * span) >= span, (num_rows, spans.shape[1]))[:, :length]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, token_ids=token_ids.astype(np.uint16), is_target=np.packbits(is_target, axis=1))
