"""`Batch`: everything one forward reads besides weights, and `KVStore`: where its keys and values
lie.

A forward runs T rows (query tokens) of B sequences. The network computes on rows; which rows belong
together, what each may see and where that lies is said here, in index tensors, and nowhere else.
Whole sequences (`make_batch`, `FreshStore`) and a paged engine differ only in who fills these two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from deepinfer.config.model import ModelConfig
from deepinfer.kernels.values import EntryView, Target


@dataclass(frozen=True)
class EntryRows:
    """The compressed entries of one ratio, as this forward meets them.

    members: int64 [E, ratio], for each entry completed in this forward the rows of its tokens in
        what `KVStore.pending` returns.
    positions: int64 [E], the entries' rotary positions (entry * ratio).
    blocks: int64 [B, n], of `per_block` entries each: entry j of sequence b is row
        blocks[b, j // per_block] * per_block + j % per_block of what `KVStore.entries` returns; any
        block of it where the sequence has none.
    num_visible: int64 [T], how many entries of its sequence each row sees (spec 7.4).
    """

    members: Tensor
    positions: Tensor
    blocks: Tensor
    per_block: int
    num_visible: Tensor


@dataclass(frozen=True)
class Batch:
    """One forward's rows.

    token_ids: int64 [T].
    positions: int64 [T], absolute, from 0.
    lookback: int64 [T, n], ids of the row's token and the n - 1 before it; -1 before the sequence
    start.
    sequence_ids: int64 [T], which of the B sequences a row belongs to.
    groups: every row once. int64 [b, s] each: s rows of b sequences whose index scores are computed
        together; -1 where a sequence has fewer rows than s.
    window_index: int64 [T, W], rows that a row attends to in what `KVStore.window` returns; -1 for
    none.
    decoder_window_index: the same for the layers of the decoder half, which may see less of it.
    entries: by compression ratio.
    """

    token_ids: Tensor
    positions: Tensor
    lookback: Tensor
    sequence_ids: Tensor
    groups: tuple[Tensor, ...]
    window_index: Tensor
    decoder_window_index: Tensor
    entries: Mapping[int, EntryRows]

    def view(self, ratio: int) -> EntryView:
        """The entries of a ratio, as the rows see them."""
        rows = self.entries[ratio]
        return EntryView(
            rows.blocks, rows.per_block, self.sequence_ids, rows.num_visible, self.groups
        )


class KVStore(Protocol):
    """Takes what this forward computed for a layer; returns all that its rows may refer to by
    index.
    """

    def target(self, layer_id: int) -> Target | None:
        """Where the window KV of the T rows goes at once; its store is what `window` would return,
        which is not called then. None: `window` takes the rows."""
        ...

    def window(self, layer_id: int, kv: Tensor) -> Tensor:
        """Window KV of the T rows [T, C] -> store [*, C], indexed by `Batch.window_index`."""
        ...

    def pending(self, layer_id: int, values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Uncompressed values and scores of the T rows, float32 [T, C] each -> stores [*, C],
        indexed by `EntryRows.members`."""
        ...

    def entries(self, layer_id: int, entries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Entries [E, C] and index keys [E, Ci] completed now -> stores, in the blocks of
        `EntryRows.blocks`.
        """
        ...


@dataclass(frozen=True)
class Rest:
    """The rows that the decoder half runs, where they are fewer (spec 7.9).

    rows: int64 [R], places among the T rows of the forward, ascending; there may be none. batch,
    store: of these rows alone.
    """

    rows: Tensor
    batch: Batch
    store: KVStore


class FreshStore:
    """The store of whole sequences: nothing came before, so what is computed is all."""

    def target(self, layer_id: int) -> None:
        """Nowhere."""

    def window(self, layer_id: int, kv: Tensor) -> Tensor:
        """All rows."""
        return kv

    def pending(self, layer_id: int, values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """All rows."""
        return values, scores

    def entries(self, layer_id: int, entries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """All entries."""
        return entries, keys


class GrowingStore:
    """The store of B equally long sequences that go on: keeps all that was ever computed."""

    def __init__(self, num_sequences: int) -> None:
        self.num_sequences = num_sequences
        self.kept: dict[tuple[str, int], Tensor] = {}

    def target(self, layer_id: int) -> None:
        """Nowhere: rows are put in order."""

    def window(self, layer_id: int, kv: Tensor) -> Tensor:
        """Rows of all positions so far, sequence by sequence."""
        return self._grow("window", layer_id, kv)

    def pending(self, layer_id: int, values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of all positions so far, sequence by sequence."""
        return self._grow("values", layer_id, values), self._grow("scores", layer_id, scores)

    def entries(self, layer_id: int, entries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """All entries so far, sequence by sequence."""
        return self._grow("entries", layer_id, entries), self._grow("keys", layer_id, keys)

    def _grow(self, what: str, layer_id: int, new: Tensor) -> Tensor:
        new = new.unflatten(0, (self.num_sequences, new.shape[0] // self.num_sequences))
        old = self.kept.get((what, layer_id))
        self.kept[what, layer_id] = new if old is None else torch.cat((old, new), 1)
        return self.kept[what, layer_id].flatten(0, 1)


def make_batch(
    config: ModelConfig, token_ids: Tensor, start: int = 0, decoder_start: int = 0
) -> Batch:
    """The rows of positions start..S-1 of B sequences of the same length: token_ids int64 [B, S].

    start 0 is a forward over whole sequences, for FreshStore. A later start continues in the
    GrowingStore that has seen all positions before it. decoder_start: the first position whose
    window keys the decoder half sees (deepinfer.config.replay).
    """
    num_sequences, length = token_ids.shape
    device = token_ids.device
    num_rows = length - start
    positions = torch.arange(start, length, device=device)
    sequence = torch.arange(num_sequences, device=device)
    seen = positions[:, None] - torch.arange(config.sliding_window - 1, -1, -1, device=device)
    window_index = torch.where(seen < 0, -1, sequence[:, None, None] * length + seen).flatten(0, 1)
    hidden = (seen < decoder_start).repeat(num_sequences, 1)
    return Batch(
        token_ids=token_ids[:, start:].flatten(),
        positions=positions.repeat(num_sequences),
        lookback=lookback(token_ids, config.engram_max_ngram_size)[:, start:].flatten(0, 1),
        sequence_ids=sequence.repeat_interleave(num_rows),
        groups=(sequence[:, None] * num_rows + torch.arange(num_rows, device=device),),
        window_index=window_index,
        decoder_window_index=window_index.masked_fill(hidden, -1),
        entries={
            ratio: _entry_rows(sequence, positions, length, ratio)
            for ratio in sorted(set(config.compress_ratios) - {0})
        },
    )


def lookback(token_ids: Tensor, ngram_size: int) -> Tensor:
    """[B, S] -> [B, S, n]: the token, the one before it, and so on; -1 before the start."""
    length = token_ids.shape[1]
    padded = torch.nn.functional.pad(token_ids, (ngram_size - 1, 0), value=-1)
    shifts = [padded[:, ngram_size - 1 - back :][:, :length] for back in range(ngram_size)]
    return torch.stack(shifts, -1)


def _entry_rows(sequence: Tensor, positions: Tensor, length: int, ratio: int) -> EntryRows:
    device, total = positions.device, length // ratio
    # The first entry completed now may have its first token in the store already.
    fresh = torch.arange((length - positions.shape[0]) // ratio, total, device=device)
    first = (sequence[:, None] * length + fresh * ratio).flatten()
    return EntryRows(
        members=first[:, None] + torch.arange(ratio, device=device),
        positions=(fresh * ratio).repeat(sequence.shape[0]),
        blocks=sequence[:, None] if total else sequence[:, None][:, :0],
        per_block=max(1, total),
        num_visible=((positions + 1) // ratio).repeat(sequence.shape[0]),
    )
