"""`StepPlan` -> index tensors: where every row's keys, values and neighbours lie.

All of the paging is arithmetic on positions, done here once a step for all layers: every layer of
one ratio shares the same indices. Shapes are decided on the host. Positions may be known on the
device only, where the step before is still to tell how many drafts it accepted: what depends on
them is computed there, and nothing waits for it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.cache.layout import BLOCK_TOKENS, SLACK_ROWS
from deepinfer.config.model import ModelConfig
from deepinfer.sampling.arrays import on_device
from deepinfer.step import Int64, StepPlan
from deepinfer.worker.follow import Starts, known_starts
from deepinfer.worker.step_index import EntryIndex, StepIndex

# A sequence with at most this many rows shares its index-score product with others like it; a
# longer one gets a product of its own, or the padding would cost more than the call.
FOLDED_ROWS = 8


def index_step(
    config: ModelConfig, plan: StepPlan, starts: Starts | None = None, spare_block: int = 0
) -> StepIndex:
    """Positions of the plan's rows -> indices into the pools.

    starts: None for `known_starts` on the CPU. spare_block: where entries are written of which it
    turns out on the device that they are not complete; no sequence has it.
    """
    starts = starts or known_starts(plan)
    rows = _rows(plan, starts)
    ring = config.sliding_window + SLACK_ROWS
    window_index, history = _window(rows, config.sliding_window, ring, plan)
    at_window, at_slack = _last(rows, ring), _last(rows, SLACK_ROWS)
    slot_of_row = rows.slots[rows.of_row]
    blocks = _blocks(rows, plan)
    return StepIndex(
        positions=rows.position,
        sequence_ids=rows.of_row,
        groups=_groups(rows),
        window_index=window_index,
        decoder_window_index=_decoder_window(rows, window_index, plan),
        history=history,
        window_rows=at_window,
        window_write=_in_ring(slot_of_row, rows.position, ring)[at_window],
        slack_rows=at_slack,
        slack_write=_in_ring(slot_of_row, rows.position, SLACK_ROWS)[at_slack],
        slack_read=_in_ring(rows.slots, starts.exact - 1, SLACK_ROWS),
        lookback=_lookback(rows, config.engram_max_ngram_size),
        entries={
            ratio: _entries(rows, plan, blocks, ratio, spare_block)
            for ratio in sorted(set(config.compress_ratios) - {0})
        },
    )


@dataclass(frozen=True)
class _Rows:
    """On the host: [B] counts, first_row; [T] sequence, place. On the device: [B] slots;
    [T] of_row (the sequence), at (place), first_of (the sequence's first row), position.
    """

    starts: Starts
    counts: Int64
    first_row: Int64
    sequence: Int64
    place: Int64
    slots: Tensor
    of_row: Tensor
    at: Tensor
    first_of: Tensor
    position: Tensor

    def tensor(self, array: Int64) -> Tensor:
        return on_device(array, self.position.device)


def _rows(plan: StepPlan, starts: Starts) -> _Rows:
    device = starts.exact.device
    counts = plan.num_rows.astype(np.int64)
    sequence = np.repeat(np.arange(len(counts)), counts)
    first_row = np.cumsum(counts) - counts
    place = np.arange(counts.sum()) - first_row[sequence]
    # Together: each copy to a device takes as long as a kernel.
    of_row, at, first_of = on_device(np.stack((sequence, place, first_row[sequence])), device)
    return _Rows(
        starts=starts,
        counts=counts,
        first_row=first_row,
        sequence=sequence,
        place=place,
        slots=on_device(plan.slot_ids, device, torch.int64),
        of_row=of_row,
        at=at,
        first_of=first_of,
        position=starts.exact[of_row] + at,
    )


def _last(rows: _Rows, count: int) -> Tensor:
    """The last `count` rows of each sequence."""
    if rows.counts.max(initial=0) <= count:
        return torch.arange(len(rows.place), device=rows.position.device)
    return rows.tensor(np.flatnonzero(rows.place >= rows.counts[rows.sequence] - count))


def _blocks(rows: _Rows, plan: StepPlan) -> Tensor:
    """Block tables of the sequences: int64 [B, n]. Only the device knows where a sequence ends:
    blocks for the furthest that one may come."""
    num_blocks = -(-int((rows.starts.most + rows.counts).max(initial=0)) // BLOCK_TOKENS)
    return rows.tensor(np.maximum(plan.block_tables[:, :num_blocks], 0).astype(np.int64))


def _in_ring(slot: Tensor, position: Tensor, ring: int) -> Tensor:
    return slot * ring + position % ring


def _window(rows: _Rows, window: int, ring: int, plan: StepPlan) -> tuple[Tensor, Tensor | None]:
    """`Batch.window_index` [T, W], oldest position first, and the history that it needs, if any."""
    device = rows.position.device
    seen = rows.position[:, None] + torch.arange(1 - window, 1, device=device)
    hidden = seen < 0
    if (plan.window_starts > np.maximum(rows.starts.least - window + 1, 0)).any():
        hidden = seen < rows.tensor(plan.window_starts.astype(np.int64))[rows.of_row][:, None]
    if rows.counts.max() <= ring - window + 1:
        # Writing so few rows cannot reach round the ring to a position that another one still sees.
        index = _in_ring(rows.slots[rows.of_row][:, None], seen, ring)
        return torch.where(hidden, -1, index), None
    kept = window - 1
    before = rows.starts.exact[:, None] + torch.arange(-kept, 0, device=device)
    history = _in_ring(rows.slots[:, None], before.clamp_min(0), ring).flatten()
    back = rows.at[:, None] + torch.arange(1 - window, 1, device=device)
    index = torch.where(
        back >= 0,
        len(history) + rows.first_of[:, None] + back,
        rows.of_row[:, None] * kept + kept + back,
    )
    return torch.where(hidden, -1, index), history


def _decoder_window(rows: _Rows, window_index: Tensor, plan: StepPlan) -> Tensor:
    """`Batch.decoder_window_index` [T, W]: nothing of positions before its sequence's start."""
    window = window_index.shape[1]
    first_seen = np.maximum(rows.starts.least - window + 1, plan.window_starts)
    if (first_seen >= plan.decoder_starts).all():
        return window_index  # every generated token ends here
    seen = rows.position[:, None] + torch.arange(1 - window, 1, device=window_index.device)
    hidden_before = rows.tensor(plan.decoder_starts.astype(np.int64))[rows.of_row]
    return torch.where(seen < hidden_before[:, None], -1, window_index)


def _lookback(rows: _Rows, ngram_size: int) -> Tensor:
    behind = torch.arange(ngram_size, device=rows.position.device)
    wanted, back = rows.position[:, None] - behind, rows.at[:, None] - behind
    row = rows.first_of[:, None] + back
    kept = _in_ring(rows.slots[rows.of_row][:, None], wanted, SLACK_ROWS) + len(rows.position)
    return torch.where(wanted < 0, -1, torch.where(back >= 0, row, kept))


def _groups(rows: _Rows) -> tuple[Tensor, ...]:
    """Rows of each sequence, [b, s], -1 for padding: short ones together, long ones alone."""
    short = np.flatnonzero(rows.counts <= FOLDED_ROWS)
    groups = []
    if len(short):
        places = np.arange(rows.counts[short].max())
        folded = rows.first_row[short][:, None] + places
        groups.append(rows.tensor(np.where(places < rows.counts[short][:, None], folded, -1)))
    for one in np.flatnonzero(rows.counts > FOLDED_ROWS):
        groups.append(rows.tensor(rows.first_row[one] + np.arange(rows.counts[one])[None]))
    return tuple(groups)


def _entries(
    rows: _Rows, plan: StepPlan, blocks: Tensor, ratio: int, spare_block: int
) -> EntryIndex:
    per_block = BLOCK_TOKENS // ratio
    least, most, counts = rows.starts.least, rows.starts.most, rows.counts
    # Where the start is not known, as many as could be completed from anywhere.
    known = (least + counts) // ratio - least // ratio
    num_new = np.where(least == most, known, -(-counts // ratio))
    sequence = np.repeat(np.arange(len(counts)), num_new)
    number = np.arange(len(sequence)) - np.repeat(np.cumsum(num_new) - num_new, num_new)
    per_entry = np.stack((sequence, number, counts[sequence] - 1, rows.first_row[sequence]))
    of_entry, numbers, last, first_row = rows.tensor(per_entry)
    last, first_row = last[:, None], first_row[:, None]
    starts = rows.starts.exact[of_entry]
    entry = starts // ratio + numbers
    tokens = entry[:, None] * ratio + torch.arange(ratio, device=entry.device)
    back = tokens - starts[:, None]
    # What was pooled of a token before this step is the row of its sequence in the kept part.
    kept = len(rows.position) + of_entry[:, None]
    write = entry
    if blocks.shape[1]:
        block = blocks[of_entry, (entry // per_block).clamp_max(blocks.shape[1] - 1)]
        write = block * per_block + entry % per_block
    if (plan.entry_starts > least).any():
        # Others may read them, and what a replay makes of them is another thing.
        kept_before = rows.tensor(plan.entry_starts.astype(np.int64))[of_entry]
        write = torch.where(tokens[:, -1] < kept_before, spare_block * per_block, write)
    if (least != most).any():
        is_whole = back[:, -1:] <= last
        write = torch.where(is_whole[:, 0], write, spare_block * per_block)
        back = torch.minimum(back, last)
    return EntryIndex(
        members=torch.where(back >= 0, first_row + back, kept),
        positions=entry * ratio,
        write=write,
        blocks=blocks,
        per_block=per_block,
        num_visible=(rows.position + 1) // ratio,
    )
