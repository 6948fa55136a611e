"""The three stages as data, and one step of each.

pretrain: attention to all visible entries, the indexers learning from it. distill: attention to
what the indexers select, released formats, bounded replay on part of the batches. draft: the draft
module alone, on the finished backbone. Knows nothing of time, files or logs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deepinfer.model.moe import Gate
from training import draft
from training.attention import Mode
from training.dense import Softmax
from training.feed import Batch
from training.model import index_loss, run_layers, token_loss
from training.optimizer import Optimizer
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
_TOKENS_PER_ANCHOR = 16


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

    def balance(self, rate: float, trained: set[str]) -> None:
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


@dataclass
class Trainer:
    """Everything that a step needs."""

    stage: Stage
    master: Master
    optimizer: Optimizer
    loads: Loads
    softmax: Softmax
    generator: torch.Generator

    def step(self, batch: Batch, factor: float) -> dict[str, Tensor]:
        """One update from one batch, at `factor` times the rates. What is worth logging, as
        scalars that may still be on their way.
        """
        losses = self._draft_losses(batch) if self.stage.drafts else self._losses(batch)
        sum(losses.values()).backward()  # type: ignore[union-attr]
        self.optimizer.step(factor * self.stage.rate)
        names = set(trained_names(self.master, self.stage))
        self.loads.balance(self.stage.balance_rate * min(1.0, factor), names)
        only = "draft." if self.stage.drafts else ""
        self.master.refresh(quantise=self.stage.quantise, only=only)
        return {name: loss.detach() for name, loss in losses.items()}

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        network, length = self.master.network, batch.token_ids.shape[1]
        window = network.setup.config.sliding_window
        mode = Mode(self.stage.select, self._random(length // window), self.softmax)
        seen = run_layers(network, batch.token_ids, mode, self._replay(batch.token_ids))
        weight = batch.is_target.to(torch.float32).clamp_min(self.stage.prompt_weight)
        weight = weight * (batch.token_ids != network.setup.config.pad_token_id)
        return {
            "loss": token_loss(network, seen.final, batch.token_ids, weight),
            "index_loss": self.stage.index_weight * index_loss(seen.shared),
        }

    def _draft_losses(self, batch: Batch) -> dict[str, Tensor]:
        lesson = self.lesson(batch)
        return {"loss": lesson.loss, "confidence_loss": 0.1 * lesson.confidence_loss}

    def lesson(self, batch: Batch) -> draft.Lesson:
        """The backbone over a batch, and the drafts at some of its tokens."""
        network, (_, length) = self.master.network, batch.token_ids.shape
        with torch.no_grad():
            seen = run_layers(network, batch.token_ids, Mode(True, None, self.softmax))
        block = network.setup.config.dspark_block_size
        number = max(1, length // _TOKENS_PER_ANCHOR)
        anchors = draft.pick_anchors(batch.is_target, number, block)
        return draft.teach(network, seen, batch.token_ids, anchors)

    def _random(self, below: int) -> int:
        """0 to below - 1. On the CPU: nothing waits for the device."""
        return int(torch.randint(below, (), generator=self.generator))

    def _replay(self, token_ids: Tensor) -> Tensor | None:
        """One cut a sequence, anywhere: behind it the decoder half begins anew, as it does behind
        the tokens that bounded replay leaves out.
        """
        if float(torch.rand((), generator=self.generator)) >= self.stage.replay:
            return None
        num, length = token_ids.shape
        cuts = torch.randint(length, (num, 1), generator=self.generator).to(token_ids.device)
        return (torch.arange(length, device=token_ids.device) >= cuts).long()
