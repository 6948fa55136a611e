"""Index tensors: where every row's keys, values and neighbours lie.

All of the paging is arithmetic on positions, done here once a step for all layers: every layer of
one ratio shares the same indices. Shapes are decided on the host (`step_numbers`). Positions may be
known on the device only, where the step before is still to tell how many drafts it accepted: what
depends on them is computed here, and nothing waits for it.
"""

import torch
from torch import Tensor

from deepinfer.cache.layout import BLOCK_TOKENS, SLACK_ROWS
from deepinfer.config.model import ModelConfig
from deepinfer.worker.step_index import EntryIndex, StepIndex
from deepinfer.worker.step_numbers import StepNumbers


def index_step(
    config: ModelConfig, numbers: StepNumbers[Tensor], exact: Tensor, spare_block: int = 0
) -> StepIndex:
    """Indices into the pools.

    exact: int64 [B], the positions of the sequences' first rows. spare_block: where entries are
    written of which it turns out here that they are not complete; no sequence has it.
    """
    of_row = numbers.of_row
    position = exact[of_row] + numbers.at
    ring = config.sliding_window + SLACK_ROWS
    window_index, history = _window(numbers, exact, position, config.sliding_window)
    slot_of_row = numbers.slots[of_row]
    at_window, at_slack = numbers.window_rows, numbers.slack_rows
    return StepIndex(
        positions=position.clamp_min(0),  # rows that pad a step are nowhere
        sequence_ids=of_row,
        groups=numbers.groups,
        window_index=window_index,
        decoder_window_index=_decoder_window(numbers, window_index, position),
        history=history,
        window_rows=at_window,
        window_write=_in_ring(slot_of_row, position, ring)[at_window],
        slack_rows=at_slack,
        slack_write=_in_ring(slot_of_row, position, SLACK_ROWS)[at_slack],
        slack_read=_in_ring(numbers.slots, exact - 1, SLACK_ROWS),
        lookback=_lookback(numbers, position, slot_of_row, config.engram_max_ngram_size),
        entries={
            ratio: _entries(numbers, exact, position, ratio, spare_block)
            for ratio in numbers.entries
        },
    )


def _in_ring(slot: Tensor, position: Tensor, ring: int) -> Tensor:
    return slot * ring + position % ring


def _window(
    numbers: StepNumbers[Tensor], exact: Tensor, position: Tensor, window: int
) -> tuple[Tensor, Tensor | None]:
    """`Batch.window_index` [T, W], oldest position first, and the history that it needs, if any."""
    ring = window + SLACK_ROWS
    behind = torch.arange(1 - window, 1, device=position.device)
    seen = position[:, None] + behind
    hidden = seen < numbers.window_starts[numbers.of_row][:, None]
    if not numbers.has_history:
        index = _in_ring(numbers.slots[numbers.of_row][:, None], seen, ring)
        return torch.where(hidden, -1, index), None
    kept = window - 1
    before = exact[:, None] + torch.arange(-kept, 0, device=position.device)
    history = _in_ring(numbers.slots[:, None], before.clamp_min(0), ring).flatten()
    back = numbers.at[:, None] + behind
    index = torch.where(
        back >= 0,
        len(history) + numbers.first[numbers.of_row][:, None] + back,
        numbers.of_row[:, None] * kept + kept + back,
    )
    return torch.where(hidden, -1, index), history


def _decoder_window(numbers: StepNumbers[Tensor], window_index: Tensor, position: Tensor) -> Tensor:
    """`Batch.decoder_window_index` [T, W]: nothing of positions before its sequence's start."""
    if not numbers.hides_decoder:
        return window_index  # every generated token ends here
    window = window_index.shape[1]
    seen = position[:, None] + torch.arange(1 - window, 1, device=position.device)
    hidden = seen < numbers.decoder_starts[numbers.of_row][:, None]
    return window_index.masked_fill(hidden, -1)


def _lookback(
    numbers: StepNumbers[Tensor], position: Tensor, slot_of_row: Tensor, ngram_size: int
) -> Tensor:
    behind = torch.arange(ngram_size, device=position.device)
    wanted, back = position[:, None] - behind, numbers.at[:, None] - behind
    row = numbers.first[numbers.of_row][:, None] + back
    kept = _in_ring(slot_of_row[:, None], wanted, SLACK_ROWS) + len(position)
    return torch.where(wanted < 0, -1, torch.where(back >= 0, row, kept))


def _entries(
    numbers: StepNumbers[Tensor], exact: Tensor, position: Tensor, ratio: int, spare_block: int
) -> EntryIndex:
    per_block = BLOCK_TOKENS // ratio
    blocks, (of_entry, number, last) = numbers.blocks, numbers.entries[ratio]
    starts = exact[of_entry]
    entry = starts // ratio + number
    tokens = entry[:, None] * ratio + torch.arange(ratio, device=entry.device)
    # Behind the last row there are drafts that were not made, or nothing at all.
    back = torch.minimum(tokens - starts[:, None], last[:, None])
    is_whole = tokens[:, -1] - starts <= last
    # Others may read entries before the start, and what a replay makes of them is another thing.
    is_written = is_whole & (tokens[:, -1] >= numbers.entry_starts[of_entry])
    write = entry
    if blocks.shape[1]:
        block = blocks[of_entry, (entry // per_block).clamp_max(blocks.shape[1] - 1)]
        write = block * per_block + entry % per_block
    # What was pooled of a token before this step is the row of its sequence in the kept part.
    kept = len(position) + of_entry[:, None]
    return EntryIndex(
        members=torch.where(back >= 0, numbers.first[of_entry][:, None] + back, kept),
        positions=entry * ratio,
        write=torch.where(is_written, write, spare_block * per_block),
        blocks=blocks,
        per_block=per_block,
        num_visible=(position + 1) // ratio,
    )
