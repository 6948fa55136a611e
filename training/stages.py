"""The three stages as data, and one step of each.

pretrain: attention to all visible entries, the indexers learning from it. distill: attention to
what the indexers select, released formats, bounded replay on part of the batches. draft: the draft
module alone, on the finished backbone. Knows nothing of time, files or logs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepinfer.config.model import ModelConfig
from deepinfer.model.moe import Gate
from training import draft
from training.attention import Mode
from training.dense import Softmax, joint_softmax
from training.feed import Batch
from training.kernels import training_kernels
from training.model import index_loss, make_network, run_layers, token_loss
from training.optimizer import Optimizer, Rates
from training.weights import Master


@dataclass(frozen=True)
class Stage:
    """How a stage trains.

    select, quantise: as of `Mode` and `Master.refresh`. replay: share of batches under bounded
    replay. decay_from: progress from which the rate falls. rate: of `Rates`, how much is used.
    prompt_weight: what a token counts that is not a target. balance_rate: how far a router's bias
    moves in a step. drafts: it trains the draft module, and nothing else.
    """

    select: bool
    quantise: bool
    replay: float
    decay_from: float
    rate: float
    drafts: bool = False
    prompt_weight: float = 0.05
    index_weight: float = 0.2
    balance_rate: float = 2e-3


STAGES = {
    "pretrain": Stage(select=False, quantise=False, replay=0.0, decay_from=1.0, rate=1.0),
    "distill": Stage(select=True, quantise=True, replay=0.3, decay_from=0.2, rate=0.7),
    "draft": Stage(select=True, quantise=True, replay=0.0, decay_from=0.4, rate=1.0, drafts=True),
}

# Anchors of draft blocks: one to so many tokens of a batch.
_TOKENS_PER_ANCHOR = 8


class Loads:
    """Counts which experts the routers choose, by hooks on the gates."""

    def __init__(self, master: Master) -> None:
        self.master = master
        self.counts: dict[str, Tensor] = {}
        for name, module in master.network.named_modules():
            if isinstance(module, Gate):
                module.register_forward_hook(self._counter(name + ".bias"))

    def _counter(self, name: str):  # noqa: ANN202
        def count(gate: nn.Module, _inputs: object, output: tuple[Tensor, Tensor]) -> None:
            ids = output[0].detach().flatten()
            experts = torch.arange(len(self.master.values[name]), device=ids.device)
            found = (ids[:, None] == experts).sum(0)
            self.counts[name] = self.counts.get(name, 0) + found

        return count

    def balance(self, rate: Tensor | float, trained: set[str]) -> None:
        """Move each router's bias a step towards experts that were chosen less than the mean, then
        forget the counts.
        """
        for name, counts in self.counts.items():
            if name in trained:
                wide = counts.to(torch.float32)
                self.master.values[name] += rate * torch.sign(wide.mean() - wide)
        self.counts = {}

    def worst(self) -> float:
        """The largest share of an expert, as a multiple of an equal share."""
        shares = [float(c.max() * len(c) / c.sum()) for c in self.counts.values()]
        return max(shares, default=0.0)


def trained_names(master: Master, stage: Stage) -> list[str]:
    """The parameters that a stage trains: those of the draft module, or all others."""
    return [name for name in master.values if name.startswith("draft.") == stage.drafts]


class Inputs(NamedTuple):
    """All in which one step differs from another of the same shape: what is drawn by chance is
    drawn before, so that a step recorded once can be replayed.

    token_ids int64 and is_target bool [B, S], as of `Batch`. lesson_blocks int64 [B], see `Mode`.
    parts int64 [B, S], see `start_shared`. anchors int64 [B, A], see `pick_anchors`. factor float32
    [], of the rates.
    """

    token_ids: Tensor
    is_target: Tensor
    lesson_blocks: Tensor
    parts: Tensor
    anchors: Tensor
    factor: Tensor


@dataclass
class Trainer:
    """Everything that a step needs."""

    stage: Stage
    master: Master
    optimizer: Optimizer
    loads: Loads
    softmax: Softmax
    generator: torch.Generator

    def draw(self, batch: Batch, factor: float) -> Inputs:
        """The inputs of a step over `batch` at `factor` times the rates, on the CPU: nothing waits
        for the device.
        """
        config = self.master.network.setup.config
        num, length = batch.token_ids.shape
        return Inputs(
            *batch,
            lesson_blocks=self._lesson_blocks(batch.is_target, config.sliding_window),
            parts=self._parts(num, length),
            anchors=draft.pick_anchors(
                batch.is_target,
                max(1, length // _TOKENS_PER_ANCHOR),
                config.dspark_block_size,
                self.generator,
            ),
            factor=torch.tensor(factor),
        )

    def step(self, inputs: Inputs) -> dict[str, Tensor]:
        """One update. What is worth logging, as scalars that may still be on their way.

        Never waits for the device, and copies nothing to it.
        """
        losses = self._draft_losses(inputs) if self.stage.drafts else self._losses(inputs)
        names = trained_names(self.master, self.stage)
        parameters = [self.master.parameters[name] for name in names]
        # Not backward(): it ties parameters to the stream that it first ran on.
        gradients = torch.autograd.grad(sum(losses.values()), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step(inputs.factor * self.stage.rate)
        self.loads.balance(self.stage.balance_rate * inputs.factor, set(names))
        only = "draft." if self.stage.drafts else ""
        self.master.refresh(quantise=self.stage.quantise, only=only)
        return {name: loss.detach() for name, loss in losses.items()}

    def _losses(self, inputs: Inputs) -> dict[str, Tensor]:
        network, token_ids = self.master.network, inputs.token_ids
        mode = Mode(self.stage.select, inputs.lesson_blocks, self.softmax)
        seen = run_layers(network, token_ids, mode, inputs.parts if self.stage.replay else None)
        weight = inputs.is_target.to(torch.float32).clamp_min(self.stage.prompt_weight)
        weight = weight * (token_ids != network.setup.config.pad_token_id)
        return {
            "loss": token_loss(network, seen.final, token_ids, weight),
            "index_loss": self.stage.index_weight * index_loss(seen.shared),
        }

    def _draft_losses(self, inputs: Inputs) -> dict[str, Tensor]:
        lesson = self.lesson(inputs)
        return {"loss": lesson.loss, "confidence_loss": 0.1 * lesson.confidence_loss}

    def lesson(self, inputs: Inputs) -> draft.Lesson:
        """The backbone over a batch, and the drafts at some of its tokens."""
        network, token_ids = self.master.network, inputs.token_ids
        with torch.no_grad():
            seen = run_layers(network, token_ids, Mode(True, None, self.softmax))
        return draft.teach(network, seen, token_ids, inputs.anchors)

    def _lesson_blocks(self, is_target: Tensor, window: int) -> Tensor:
        """A block of each sequence, the more likely the more targets it has: there it matters what
        is found.
        """
        weight = is_target.unflatten(1, (-1, window)).sum(-1) + 0.1 * window
        return torch.multinomial(weight, 1, generator=self.generator)[:, 0]

    def _random(self, below: int, *shape: int) -> Tensor:
        """int64, 0 to below - 1."""
        return torch.randint(below, shape, generator=self.generator)

    def _parts(self, num: int, length: int) -> Tensor:
        """One cut a sequence, anywhere: behind it the decoder half begins anew, as it does behind
        the tokens that bounded replay leaves out. Without a cut all is one part.
        """
        if float(torch.rand((), generator=self.generator)) >= self.stage.replay:
            return torch.zeros(num, length, dtype=torch.int64)
        return (torch.arange(length) >= self._random(length, num, 1)).long()


def make_trainer(
    stage: Stage, master: Master, rates: Rates | None = None, *, compiled: bool, seed: int = 0
) -> Trainer:
    """A trainer of the stage from the weights as they are: the network is made from them, and
    gradients are kept of what the stage trains. rates: None is the usual ones.
    """
    trained = trained_names(master, stage)
    for name, parameter in master.parameters.items():
        parameter.requires_grad_(name in trained)
    master.refresh(quantise=stage.quantise)
    return Trainer(
        stage=stage,
        master=master,
        optimizer=Optimizer(master, rates or Rates(), trained),
        loads=Loads(master),
        softmax=torch.compile(joint_softmax, dynamic=False) if compiled else joint_softmax,
        generator=torch.Generator().manual_seed(seed),
    )


def make_master(
    config: ModelConfig, token_map: list[int], device: str, *, compiled: bool
) -> Master:
    """A network to train, with fresh master weights: bfloat16 on a GPU, float32 elsewhere."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    kernels = training_kernels(compiled=compiled)
    return Master(make_network(config, token_map, kernels, dtype=dtype, device=device))
