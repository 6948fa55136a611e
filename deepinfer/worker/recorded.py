"""Decode steps as CUDA graphs: a step's indices, padded to a size, and the rows through all layers.

Rows that pad a step belong to no sequence: they see nothing, and what they leave goes to the slot
and the block that nobody has. They visit experts like others, so that small steps are not padded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepinfer.cache.layout import SLACK_ROWS
from deepinfer.model.network import Hidden, Network
from deepinfer.worker.graphs import Inputs, Recorder, Recordings, padded
from deepinfer.worker.inputs import FOLDED_ROWS
from deepinfer.worker.pools import Pools
from deepinfer.worker.ready import Ready, batch_of, store_of
from deepinfer.worker.step_index import EntryIndex, StepIndex

# More rows keep a device so long that launching them one by one does not show.
_MOST_ROWS = 1024
_LEAST_BLOCKS = 8  # of the longest sequence: tables are padded to powers of two from there


@dataclass(frozen=True)
class StepSize:
    """rows, sequences: padded; each: rows of a sequence at most; blocks: of its table."""

    rows: int
    sequences: int
    each: int
    blocks: int


def step_size(ready: Ready) -> StepSize | None:
    """The size of a step that decodes and nothing else; None for others."""
    index, counts = ready.index, ready.plan.num_rows
    num_rows = len(index.positions)
    if not 0 < num_rows <= _MOST_ROWS or counts.max() > FOLDED_ROWS:
        return None
    if ready.rest is not None or index.history is not None:
        return None
    num_blocks = max((rows.blocks.shape[1] for rows in index.entries.values()), default=0)
    each = _power_of_two(int(counts.max()))
    return StepSize(
        rows=padded(num_rows),
        sequences=padded(num_rows if each == 1 else len(counts)),
        each=each,
        blocks=_power_of_two(max(_LEAST_BLOCKS, num_blocks)),
    )


class RecordedSteps:
    """Rows of decode steps through the network of one worker."""

    def __init__(self, network: Network, pools: Pools, record: Recorder[Hidden]) -> None:
        self._network, self._pools = network, pools
        self._recordings = Recordings(record)

    def run(self, ready: Ready) -> Hidden | None:
        """What `Network.run` gives, good until the next call; None for a step of another kind."""
        size = step_size(ready)
        if size is None:
            return None
        step = _Step(ready.batch.token_ids, ready.batch.lookback, ready.index)
        num_rows = len(step.token_ids)

        def inputs() -> Inputs:
            blanks = [
                one.new_full(shape, blank) for one, shape, blank in _parts(step, self._pools, size)
            ]
            return Inputs([one.clone() for one in blanks], blanks)

        def run(tensors: Sequence[Tensor]) -> Hidden:
            still = _filled(step, size, tensors)
            batch = batch_of(still.token_ids, still.lookback, still.index)
            return self._network.run(batch, store_of(self._network, self._pools, still.index))

        moved = _moved(step, size.rows)
        values = [one for one, _, _ in _parts(moved, self._pools, size)]
        hidden = self._recordings.run(size, inputs, values, run)
        return Hidden(hidden.final[:num_rows], hidden.features[:num_rows])


@dataclass(frozen=True)
class _Step:
    """token_ids int64 [T], lookback int64 [T, n] as of `Batch`, and where all of it lies."""

    token_ids: Tensor
    lookback: Tensor
    index: StepIndex


def _parts(
    step: _Step, pools: Pools, size: StepSize
) -> Iterator[tuple[Tensor, tuple[int, ...], int]]:
    """Each tensor of a step, the shape that it is padded to, and with what.

    Which rows are kept is not among them: of so few rows, all are.
    """
    index, rows, sequences = step.index, size.rows, size.sequences
    width, slot = index.window_index.shape[1], pools.spare_slot
    ring = next(iter(pools.window.values())).shape[1]
    yield step.token_ids, (rows,), 0
    yield step.lookback, (rows, step.lookback.shape[1]), -1
    yield index.positions, (rows,), 0
    yield index.sequence_ids, (rows,), 0
    yield index.groups[0], (sequences, size.each), -1
    yield index.window_index, (rows, width), -1
    yield index.decoder_window_index, (rows, width), -1
    yield index.window_write, (rows,), slot * ring
    yield index.slack_write, (rows,), slot * SLACK_ROWS
    yield index.slack_read, (sequences,), 0
    for ratio, entries in index.entries.items():
        # No more of them than rows, wherever in its pair a row may be.
        yield entries.members, (rows, ratio), 0
        yield entries.positions, (rows,), 0
        yield entries.write, (rows,), pools.spare_block * entries.per_block
        yield entries.blocks, (sequences, size.blocks), 0
        yield entries.num_visible, (rows,), 0


def _filled(step: _Step, size: StepSize, tensors: Sequence[Tensor]) -> _Step:
    """A step of the tensors that `_parts` lists, in its order. step: of the same kind."""
    rest = iter(tensors)
    token_ids, lookback, positions, sequence_ids, group = (next(rest) for _ in range(5))
    window_index, decoder_window_index, window_write = (next(rest) for _ in range(3))
    slack_write, slack_read = (next(rest) for _ in range(2))
    entries = {
        ratio: EntryIndex(
            members=next(rest),
            positions=next(rest),
            write=next(rest),
            blocks=next(rest),
            per_block=old.per_block,
            num_visible=next(rest),
        )
        for ratio, old in step.index.entries.items()
    }
    all_rows = torch.arange(size.rows, device=token_ids.device)
    index = StepIndex(
        positions=positions,
        sequence_ids=sequence_ids,
        groups=(group,),
        window_index=window_index,
        decoder_window_index=decoder_window_index,
        history=None,
        window_rows=all_rows,
        window_write=window_write,
        slack_rows=all_rows,
        slack_write=slack_write,
        slack_read=slack_read,
        lookback=step.index.lookback,
        entries=entries,
    )
    return _Step(token_ids, lookback, index)


def _moved(step: _Step, num_rows: int) -> _Step:
    """What was pooled before a step is counted behind its rows, so it moves as these are padded."""
    shift = num_rows - len(step.token_ids)
    if not shift:
        return step
    entries = {
        ratio: replace(old, members=old.members + shift * (old.members >= num_rows - shift))
        for ratio, old in step.index.entries.items()
    }
    return replace(step, index=replace(step.index, entries=entries))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
