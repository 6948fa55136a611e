"""CUDA graphs: functions of tensors, recorded for each size that comes again, then replayed.

A replay costs the host one call where the function cost it thousands. It reads inputs and writes
results that stay where they are: both are padded to a size, and results are good until the next
replay. Knows no model.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Generic, TypeVar

import torch
from torch import Tensor

# A graph of a step holds the arguments of a few thousand kernels: some MB of memory each.
_MOST_KEPT = 200
_EXACT_BITS = 4
_LOG = logging.getLogger("deepinfer")

T = TypeVar("T")
Recorder = Callable[[Callable[[], T]], Callable[[], T]]


def padded(number: int) -> int:
    """Up to 16 as it is, beyond that the next of 8 sizes for each doubling: little is wasted, and
    there are few graphs."""
    step = 1 << max(0, (number - 1).bit_length() - _EXACT_BITS)
    return -(-number // step) * step


@dataclass(frozen=True)
class Inputs:
    """Tensors that stay in place. blanks: of their shapes, what they hold where nothing is put."""

    tensors: Sequence[Tensor]
    blanks: Sequence[Tensor]

    def fill(self, values: Sequence[Tensor]) -> None:
        """Put values [n, ..] of no larger shapes at the front; all else is blank."""
        fronts = [
            tensor[tuple(map(slice, value.shape))]
            for tensor, value in zip(self.tensors, values, strict=True)
        ]
        torch._foreach_copy_(self.tensors, self.blanks)
        torch._foreach_copy_(fronts, values)


@dataclass
class _Kept(Generic[T]):
    """replay: None before the size came a second time."""

    inputs: Inputs
    replay: Callable[[], T] | None = None


class Recordings(Generic[T]):
    """One function, by size. Replays follow one another on one stream."""

    def __init__(self, record: Recorder[T]) -> None:
        """record: makes a function that does again what the given one does, on the same tensors
        (`record_graph`)."""
        self._record = record
        self._kept: OrderedDict[Hashable, _Kept[T]] = OrderedDict()

    def run(
        self,
        size: Hashable,
        make_inputs: Callable[[], Inputs],
        values: Sequence[Tensor],
        function: Callable[[Sequence[Tensor]], T],
    ) -> T:
        """function(inputs filled with values). The first time it runs as it is: kernels are built,
        and many sizes never come again. The second time it is recorded."""
        kept = self._kept.get(size)
        is_new = kept is None
        if kept is None:
            kept = self._kept[size] = _Kept(make_inputs())
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(size)
        kept.inputs.fill(values)
        if is_new:
            return function(kept.inputs.tensors)
        if kept.replay is None:
            again, start = partial(function, kept.inputs.tensors), perf_counter()
            try:
                kept.replay = self._record(again)
                _LOG.info("%s: a graph, recorded in %.2f s", size, perf_counter() - start)
            except RuntimeError as error:
                # No memory for another graph, for one. A device that is lost fails below.
                _LOG.warning("%s: op by op, a graph cannot be recorded: %s", size, error)
                kept.replay = again
        return kept.replay()


def record_graph() -> Recorder[T]:
    """A recorder of CUDA graphs, all of one worker, in one pool of memory: no two may run at once.

    Other threads may use the device meanwhile; what is recorded must not wait for it.
    """
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def record(function: Callable[[], T]) -> Callable[[], T]:
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = function()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

        def replay() -> T:
            graph.replay()
            return result

        return replay

    return record
