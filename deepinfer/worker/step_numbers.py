"""What the host knows of where a step's rows lie: numbers that `index_step` makes indices of.

Arrays here, the same as tensors there. Their shapes are all that a step's kernels are launched for,
so steps of one size can share a CUDA graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from deepinfer.cache.layout import BLOCK_TOKENS, SLACK_ROWS
from deepinfer.config.model import ModelConfig
from deepinfer.sampling.arrays import together
from deepinfer.step import Int64, StepPlan
from deepinfer.worker.follow import Starts

# A sequence with at most this many rows shares its index-score product with others like it; a
# longer one gets a product of its own, or the padding would cost more than the call.
FOLDED_ROWS = 8

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class StepNumbers(Generic[A]):
    """Of T rows and B sequences, int64.

    of_row, at: [T], a row's sequence, and how many of its rows come before.
    first, slots: [B], a sequence's first row, and its slot.
    window_starts, decoder_starts, entry_starts: [B], as in the plan.
    blocks: [B, n], the sequences' block tables.
    window_rows, slack_rows: [n], rows that the ring and the slack keep.
    groups: as in `Batch`.
    entries: of each ratio [3, E], an entry's sequence, its number among those that this step may
        complete, and the number of the sequence's last row.
    has_history: rows may overwrite what others of them see. hides_decoder: the decoder half may see
        less than the window.
    """

    of_row: A
    at: A
    first: A
    slots: A
    window_starts: A
    decoder_starts: A
    entry_starts: A
    blocks: A
    window_rows: A
    slack_rows: A
    groups: tuple[A, ...]
    entries: dict[int, A]
    has_history: bool
    hides_decoder: bool

    def map(self, function: Callable[[A], B]) -> "StepNumbers[B]":
        """function of each array, always in the same order."""
        return StepNumbers(
            of_row=function(self.of_row),
            at=function(self.at),
            first=function(self.first),
            slots=function(self.slots),
            window_starts=function(self.window_starts),
            decoder_starts=function(self.decoder_starts),
            entry_starts=function(self.entry_starts),
            blocks=function(self.blocks),
            window_rows=function(self.window_rows),
            slack_rows=function(self.slack_rows),
            groups=tuple(function(one) for one in self.groups),
            entries={ratio: function(one) for ratio, one in self.entries.items()},
            has_history=self.has_history,
            hides_decoder=self.hides_decoder,
        )

    def arrays(self) -> list[A]:
        """All of them, in the order of `map`."""
        found: list[A] = []
        self.map(found.append)
        return found

    def of(self, others: Sequence[B]) -> "StepNumbers[B]":
        """The same with other arrays, in the order of `arrays`."""
        rest = iter(others)
        return self.map(lambda _: next(rest))


def step_numbers(config: ModelConfig, plan: StepPlan, starts: Starts) -> StepNumbers[Int64]:
    """Of a plan whose sequences start there."""
    counts = plan.num_rows.astype(np.int64)
    first = np.cumsum(counts) - counts
    of_row = np.repeat(np.arange(len(counts)), counts)
    at = np.arange(len(of_row)) - first[of_row]
    window = config.sliding_window
    first_seen = np.maximum(starts.least - window + 1, plan.window_starts)
    # Only the device knows where a sequence ends: blocks for the furthest that one may come.
    num_blocks = -(-int((starts.most + counts).max(initial=0)) // BLOCK_TOKENS)
    return StepNumbers(
        of_row=of_row,
        at=at,
        first=first,
        slots=plan.slot_ids.astype(np.int64),
        window_starts=plan.window_starts.astype(np.int64),
        decoder_starts=plan.decoder_starts.astype(np.int64),
        entry_starts=plan.entry_starts.astype(np.int64),
        blocks=np.maximum(plan.block_tables[:, :num_blocks], 0).astype(np.int64),
        window_rows=_last(counts[of_row] - at, window + SLACK_ROWS),
        slack_rows=_last(counts[of_row] - at, SLACK_ROWS),
        groups=tuple(_groups(counts, first)),
        entries={
            ratio: _entries(counts, starts, ratio)
            for ratio in sorted(set(config.compress_ratios) - {0})
        },
        # Writing fewer rows cannot reach round the ring to a position that another one still sees.
        has_history=bool(counts.max(initial=0) > SLACK_ROWS + 1),
        hides_decoder=bool((first_seen < plan.decoder_starts).any()),
    )


def _last(left: Int64, count: int) -> Int64:
    """The last `count` rows of each sequence. left: [T], rows from this one to its last."""
    return np.flatnonzero(left <= count)


def _groups(counts: Int64, first: Int64) -> list[Int64]:
    """Rows of each sequence, [b, s], -1 for padding: short ones together, long ones alone."""
    short = np.flatnonzero(counts <= FOLDED_ROWS)
    groups = []
    if len(short):
        places = np.arange(counts[short].max())
        folded = first[short][:, None] + places
        groups.append(np.where(places < counts[short][:, None], folded, -1))
    for one in np.flatnonzero(counts > FOLDED_ROWS):
        groups.append(first[one] + np.arange(counts[one])[None])
    return groups


def _entries(counts: Int64, starts: Starts, ratio: int) -> Int64:
    # Where the start is not known, as many as could be completed from anywhere.
    known = (starts.least + counts) // ratio - starts.least // ratio
    num_new = np.where(starts.least == starts.most, known, -(-counts // ratio))
    sequence = np.repeat(np.arange(len(counts)), num_new)
    number = np.arange(len(sequence)) - np.repeat(np.cumsum(num_new) - num_new, num_new)
    return np.stack((sequence, number, counts[sequence] - 1))


@dataclass(frozen=True)
class StepSize:
    """rows, sequences: padded; each: rows of a sequence at most; blocks: of its table."""

    rows: int
    sequences: int
    each: int
    blocks: int


def pad_numbers(numbers: StepNumbers[Int64], size: StepSize, spare_slot: int) -> StepNumbers[Int64]:
    """Of a step that decodes, its one group and its entries padded too.

    Rows that pad belong to a sequence of their own, in nobody's slot, and stand before its start:
    they see nothing. Entries that pad are never complete.
    """

    def filled(array: Int64, shape: tuple[int, ...], blank: int) -> Int64:
        full = np.full(shape, blank, np.int64)
        full[tuple(map(slice, array.shape))] = array
        return full

    rows, sequences = size.rows, size.sequences
    num_sequences = len(numbers.slots)
    of_sequence = (sequences,)
    all_rows = np.arange(rows)
    entries = {ratio: filled(old, (3, rows), 0) for ratio, old in numbers.entries.items()}
    for ratio, old in numbers.entries.items():
        entries[ratio][2, old.shape[1] :] = -1
    (group,) = numbers.groups
    return replace(
        numbers,
        of_row=filled(numbers.of_row, (rows,), min(num_sequences, sequences - 1)),
        at=filled(numbers.at, (rows,), -1),
        first=filled(numbers.first, of_sequence, 0),
        slots=filled(numbers.slots, of_sequence, spare_slot),
        window_starts=filled(numbers.window_starts, of_sequence, 0),
        decoder_starts=filled(numbers.decoder_starts, of_sequence, 0),
        entry_starts=filled(numbers.entry_starts, of_sequence, 0),
        blocks=filled(numbers.blocks, (sequences, size.blocks), 0),
        window_rows=all_rows,
        slack_rows=all_rows,
        groups=(filled(group, (sequences, size.each), -1),),
        entries=entries,
        hides_decoder=True,  # or not: one graph for both
    )


def on_device_numbers(
    numbers: StepNumbers[Int64], device: torch.device | str
) -> StepNumbers[Tensor]:
    """The same as tensors, in one copy."""
    return numbers.of(together(numbers.arrays(), device))
