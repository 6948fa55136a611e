"""Decode steps as CUDA graphs: from a step's numbers, padded to a size, through all layers.

Rows that pad a step belong to no sequence: they see nothing, and what they leave goes to the slot
and the block that nobody has. They visit experts like others, so that small steps are not padded.
"""

from collections.abc import Sequence

from torch import Tensor

from deepinfer.model.network import Hidden, Network
from deepinfer.sampling.arrays import on_device, pack, unpack
from deepinfer.step import Int64
from deepinfer.worker.drafter import Drafter
from deepinfer.worker.graphs import Inputs, Recorder, Recordings, padded
from deepinfer.worker.pools import Pools
from deepinfer.worker.ready import ready_rows
from deepinfer.worker.step_numbers import FOLDED_ROWS, StepNumbers, StepSize, pad_numbers

# More rows keep a device so long that launching them one by one does not show.
_MOST_ROWS = 2048
_LEAST_BLOCKS = 8  # of the longest sequence: tables are padded to powers of two from there


def step_size(numbers: StepNumbers[Int64]) -> StepSize | None:
    """The size of a step that decodes and nothing else; None for others."""
    num_rows, num_sequences = len(numbers.of_row), len(numbers.slots)
    most = int(numbers.at.max(initial=-1)) + 1  # of a sequence
    if not 0 < num_rows <= _MOST_ROWS or most > FOLDED_ROWS or numbers.has_history:
        return None
    rows, each = padded(num_rows), _power_of_two(most)
    # Rows that pad have a sequence of their own.
    sequences = rows if each == 1 else padded(num_sequences + (rows > num_rows))
    num_blocks = max(_LEAST_BLOCKS, numbers.blocks.shape[1])
    return StepSize(rows, sequences, each, _power_of_two(num_blocks))


class RecordedSteps:
    """Rows of decode steps through the network of one worker."""

    def __init__(
        self, network: Network, pools: Pools, drafter: Drafter | None, record: Recorder[Hidden]
    ) -> None:
        """drafter: keeps what the rows leave for it; None if there is none."""
        self._network, self._pools, self._drafter = network, pools, drafter
        self._recordings = Recordings(record)

    def run(self, numbers: StepNumbers[Int64], exact: Tensor, token_ids: Tensor) -> Hidden | None:
        """What `Network.run` gives, good until the next call; None for a step of another kind.

        exact: int64 [B], where its sequences start. token_ids: int64 [T], of all its rows.
        """
        size = step_size(numbers)
        if size is None:
            return None
        still = pad_numbers(numbers, size, self._pools.spare_slot)
        arrays = still.arrays()
        flat = on_device(pack(arrays), token_ids.device)

        def inputs() -> Inputs:
            shapes = (len(flat),), (size.sequences,), (size.rows,)
            blanks = [flat.new_zeros(shape) for shape in shapes]
            return Inputs([one.clone() for one in blanks], blanks)

        def run(tensors: Sequence[Tensor]) -> Hidden:
            flat, exact, token_ids = tensors
            views = still.of(unpack(flat, arrays))
            ready = ready_rows(self._network, self._pools, views, exact, token_ids)
            hidden = self._network.run(ready.batch, ready.store)
            if self._drafter is not None:
                index = ready.index
                self._drafter.keep_windows(hidden.features, index.positions, index.window_write)
            return hidden

        hidden = self._recordings.run(size, inputs, (flat, exact, token_ids), run)
        num_rows = len(token_ids)
        return Hidden(hidden.final[:num_rows], hidden.features[:num_rows])


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
