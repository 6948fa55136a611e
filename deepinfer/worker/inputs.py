"""`StepPlan` -> index arrays: where every row's keys, values and neighbours lie. Numpy, no torch.

All of the paging is arithmetic on positions, done here once a step for all layers: every layer of
one ratio shares the same indices.
"""

from dataclasses import dataclass

import numpy as np

from deepinfer.cache.layout import BLOCK_TOKENS, SLACK_ROWS
from deepinfer.config.model import ModelConfig
from deepinfer.step import Int64, StepPlan

# A sequence with at most this many rows shares its index-score product with others like it; a
# longer one gets a product of its own, or the padding would cost more than the call.
_FOLDED_ROWS = 8


@dataclass(frozen=True)
class EntryIndex:
    """Entries of one ratio, as in `Batch`. write: int64 [E], where new ones are stored."""

    members: Int64
    positions: Int64
    write: Int64
    table: Int64
    num_visible: Int64


@dataclass(frozen=True)
class StepIndex:
    """All indices of one step; see `Batch` for those that have its names.

    history: int64 [B * (W - 1)], ring rows of the positions before each sequence's first row, or
        None when every sequence is short enough for its rows to be written to the ring first and
        read there.
    decoder_window_index: the same object as window_index in a step that hides nothing.
    window_rows, window_write: int64 [n], which rows go to the ring, and where.
    slack_rows, slack_write: int64 [n], the same for what is kept per slot for SLACK_ROWS positions.
    slack_read: int64 [B], where the position before each sequence's first row is kept.
    lookback: int64 [T, n], rows of cat(token ids, kept token ids); -1 before the start.
    """

    positions: Int64
    sequence_ids: Int64
    groups: tuple[Int64, ...]
    window_index: Int64
    decoder_window_index: Int64
    history: Int64 | None
    window_rows: Int64
    window_write: Int64
    slack_rows: Int64
    slack_write: Int64
    slack_read: Int64
    lookback: Int64
    entries: dict[int, EntryIndex]


def index_step(config: ModelConfig, plan: StepPlan) -> StepIndex:
    """Positions of the plan's rows -> indices into the pools."""
    counts = plan.num_rows.astype(np.int64)
    starts = plan.num_computed.astype(np.int64)
    slots = plan.slot_ids.astype(np.int64)
    sequence = np.repeat(np.arange(len(counts)), counts)
    first_row = np.cumsum(counts) - counts
    place = np.arange(counts.sum()) - first_row[sequence]
    position = starts[sequence] + place
    rows = _Rows(counts, starts, slots, sequence, first_row, place, position)

    ring = config.sliding_window + SLACK_ROWS
    window_index, history = _window(rows, config.sliding_window, ring)
    decoder_starts = plan.decoder_starts.astype(np.int64)
    window_rows = np.flatnonzero(place >= counts[sequence] - ring)
    slack_rows = np.flatnonzero(place >= counts[sequence] - SLACK_ROWS)
    return StepIndex(
        positions=position,
        sequence_ids=sequence,
        groups=_groups(rows),
        window_index=window_index,
        decoder_window_index=_decoder_window(rows, window_index, decoder_starts),
        history=history,
        window_rows=window_rows,
        window_write=_in_ring(slots[sequence], position, ring)[window_rows],
        slack_rows=slack_rows,
        slack_write=_in_ring(slots[sequence], position, SLACK_ROWS)[slack_rows],
        slack_read=_in_ring(slots, starts - 1, SLACK_ROWS),
        lookback=_lookback(rows, config.engram_max_ngram_size),
        entries={
            ratio: _entries(rows, plan.block_tables.astype(np.int64), ratio)
            for ratio in sorted(set(config.compress_ratios) - {0})
        },
    )


@dataclass(frozen=True)
class _Rows:
    """[B]: counts, starts, slots, first_row. [T]: sequence, place, position."""

    counts: Int64
    starts: Int64
    slots: Int64
    sequence: Int64
    first_row: Int64
    place: Int64
    position: Int64


def _in_ring(slot: Int64, position: Int64, ring: int) -> Int64:
    return slot * ring + position % ring


def _window(rows: _Rows, window: int, ring: int) -> tuple[Int64, Int64 | None]:
    """`Batch.window_index` [T, W], oldest position first, and the history that it needs, if any."""
    seen = rows.position[:, None] + np.arange(1 - window, 1)
    sequence = rows.sequence[:, None]
    if rows.counts.max() <= ring - window + 1:
        # Writing so few rows cannot reach round the ring to a position that another one still sees.
        index = _in_ring(rows.slots[sequence], seen, ring)
        return np.where(seen < 0, -1, index), None
    kept = window - 1
    before = rows.starts[:, None] + np.arange(-kept, 0)
    history = _in_ring(rows.slots[:, None], np.maximum(before, 0), ring).ravel()
    back = seen - rows.starts[sequence]
    index = np.where(
        back >= 0,
        len(history) + rows.first_row[sequence] + back,
        sequence * kept + kept + back,
    )
    return np.where(seen < 0, -1, index), history


def _decoder_window(rows: _Rows, window_index: Int64, decoder_starts: Int64) -> Int64:
    """`Batch.decoder_window_index` [T, W]: nothing of positions before its sequence's start."""
    window = window_index.shape[1]
    if (np.maximum(rows.starts - window + 1, 0) >= decoder_starts).all():
        return window_index  # every generated token ends here
    seen = rows.position[:, None] + np.arange(1 - window, 1)
    return np.where(seen < decoder_starts[rows.sequence][:, None], -1, window_index)


def _lookback(rows: _Rows, ngram_size: int) -> Int64:
    wanted = rows.position[:, None] - np.arange(ngram_size)
    back = rows.place[:, None] - np.arange(ngram_size)
    row = rows.first_row[rows.sequence][:, None] + back
    kept = len(rows.position) + _in_ring(rows.slots[rows.sequence][:, None], wanted, SLACK_ROWS)
    return np.where(wanted < 0, -1, np.where(back >= 0, row, kept))


def _groups(rows: _Rows) -> tuple[Int64, ...]:
    """Rows of each sequence, [b, s], -1 for padding: short ones together, long ones alone."""
    short = np.flatnonzero(rows.counts <= _FOLDED_ROWS)
    groups = []
    if len(short):
        places = np.arange(rows.counts[short].max())
        folded = rows.first_row[short][:, None] + places
        groups.append(np.where(places < rows.counts[short][:, None], folded, -1))
    for one in np.flatnonzero(rows.counts > _FOLDED_ROWS):
        groups.append(rows.first_row[one] + np.arange(rows.counts[one])[None])
    return tuple(groups)


def _entries(rows: _Rows, block_tables: Int64, ratio: int) -> EntryIndex:
    per_block = BLOCK_TOKENS // ratio
    first, end = rows.starts // ratio, (rows.starts + rows.counts) // ratio
    sequence = np.repeat(np.arange(len(first)), end - first)
    entry = np.arange(len(sequence)) - np.repeat(np.cumsum(end - first) - end, end - first)
    tokens = entry[:, None] * ratio + np.arange(ratio)
    back = tokens - rows.starts[sequence][:, None]
    # What was pooled of a token before this step is the row of its sequence in the kept part.
    kept = len(rows.position) + sequence[:, None]
    places = block_tables[:, :, None] * per_block + np.arange(per_block)
    # Whole blocks: the width then has no small values, for which a library sums in another order.
    width = -(-end.max() // per_block) * per_block
    table = np.maximum(places.reshape(len(first), -1)[:, :width], 0)
    return EntryIndex(
        members=np.where(back >= 0, rows.first_row[sequence][:, None] + back, kept),
        positions=entry * ratio,
        write=table[sequence, entry],
        table=table,
        num_visible=(rows.position + 1) // ratio,
    )
