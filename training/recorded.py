"""A training step as one CUDA graph: recorded once for each shape of batch, then replayed.

A step of so small a model is some five thousand short kernels, and the host takes several times
longer to launch them than the GPU to run them. Knows graphs and the copies that feed them. Does not
know what a step does.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.feed import Batch
from training.stages import Inputs, Trainer

# Steps before a shape is recorded: compilers and libraries allocate and choose in the first ones.
_WARM_UP = 3


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: Inputs
    outputs: dict[str, Tensor]


class RecordedStep:
    """A trainer's step on a GPU; on a CPU just the step."""

    def __init__(self, trainer: Trainer, device: str) -> None:
        """From here on a GPU works on a stream of its own: the default one cannot be recorded."""
        self.trainer, self.device = trainer, torch.device(device)
        self._recordings: dict[torch.Size, _Recording] = {}
        self._num_steps: dict[torch.Size, int] = {}
        if self.device.type == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream())

    def __call__(self, batch: Batch, factor: float) -> dict[str, Tensor]:
        """One update, as `Trainer.step`. Its scalars are overwritten by the next one's."""
        drawn = self.trainer.draw(batch, factor)
        if self.device.type == "cpu":
            return self.trainer.step(drawn)
        shape = batch.token_ids.shape
        self._num_steps[shape] = self._num_steps.get(shape, 0) + 1
        if self._num_steps[shape] <= _WARM_UP:
            return self.trainer.step(to_device(drawn, self.device))
        if shape not in self._recordings:
            self._recordings[shape] = self._record(to_device(drawn, self.device))
        recording = self._recordings[shape]
        for kept, new in zip(recording.inputs, drawn, strict=True):
            # From pinned memory: the copy waits its turn on the stream, the host does not wait.
            kept.copy_(new.pin_memory(), non_blocking=True)
        recording.graph.replay()
        return recording.outputs

    def _record(self, inputs: Inputs) -> _Recording:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            outputs = self.trainer.step(inputs)
        return _Recording(graph, inputs, outputs)


def to_device(inputs: Inputs, device: torch.device) -> Inputs:
    """The inputs where the network is."""
    if device.type == "cpu":
        return inputs
    return Inputs(*(part.pin_memory().to(device, non_blocking=True) for part in inputs))
