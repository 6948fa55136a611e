"""Where a step's rows find and leave what is kept: indices, made by `index_step`."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class EntryIndex:
    """Entries of one ratio, as in `Batch`. write: int64 [E], where new ones are stored."""

    members: Tensor
    positions: Tensor
    write: Tensor
    blocks: Tensor
    per_block: int
    num_visible: Tensor


@dataclass(frozen=True)
class StepIndex:
    """All indices of one step, int64; see `Batch` for those that have its names.

    history: [B * (W - 1)], ring rows of the positions before each sequence's first row, or None
        when every sequence is short enough for its rows to be written to the ring first and read
        there.
    decoder_window_index: the same object as window_index in a step that hides nothing.
    window_rows, window_write: [n], which rows go to the ring, and where: all of them, in order,
        when there is no history.
    slack_rows, slack_write: [n], the same for what is kept per slot for SLACK_ROWS positions.
    slack_read: [B], where the position before each sequence's first row is kept.
    lookback: [T, n], rows of cat(token ids, kept token ids); -1 before the start.
    """

    positions: Tensor
    sequence_ids: Tensor
    groups: tuple[Tensor, ...]
    window_index: Tensor
    decoder_window_index: Tensor
    history: Tensor | None
    window_rows: Tensor
    window_write: Tensor
    slack_rows: Tensor
    slack_write: Tensor
    slack_read: Tensor
    lookback: Tensor
    entries: dict[int, EntryIndex]
