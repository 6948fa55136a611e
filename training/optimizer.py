"""Muon for the matrices of layers, AdamW for everything else, on the master weights.

Muon (Jordan 2024): the momentum's singular values are all brought near 1 before it is applied, so
every direction of a matrix learns at the same pace. Knows parameters by name and shape alone.
"""

import re
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from training.weights import Master

# Matrices that are looked up or whose rows mean something by themselves stay with AdamW.
_MATRIX = re.compile(
    r".*(attn\.(wq_a|wq_b|wkv|wo_a|wo_b)|compressor\.(wkv|wgate)|indexer\.(wq_b|wk)"
    r"|shared_experts\.w[123]|engram\.wkv|main_proj)\.weight|.*\.experts\.w[123]"
)
# AdamW's rate relative to the base rate, first match.
_RATES: tuple[tuple[str, float], ...] = (
    (r".*engram\.table\.weight", 2.0),
    (r"embed\.weight|.*markov_head\.embed\.weight", 2.0),
    (r".*", 1.0),
)
# Coefficients of the iteration x -> a x + b (x xT) x + c (x xT)^2 x: steep at 0, near 1 around 1.
_A, _B, _C = 3.4445, -4.7750, 2.0315


@dataclass(frozen=True)
class Rates:
    """matrix: Muon's rate; its updates have a root mean square of 0.2 times it. other: AdamW's."""

    matrix: float = 5e-3
    other: float = 2e-3
    decay: float = 0.05
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.97)


class Optimizer:
    """Updates the values of a Master from its network's gradients."""

    def __init__(self, master: Master, rates: Rates, trained: list[str]) -> None:
        """trained: names of the parameters to update."""
        self.master, self.rates = master, rates
        self.other = [name for name in trained if not _MATRIX.fullmatch(name)]
        self.rate_of = [
            next(rate for pattern, rate in _RATES if re.fullmatch(pattern, name))
            for name in self.other
        ]
        groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name in trained:
            if _MATRIX.fullmatch(name):
                groups[tuple(master.values[name].shape)].append(name)
        self.groups = dict(groups)
        self.momenta = {
            shape: torch.stack([torch.zeros_like(master.values[n]) for n in names])
            for shape, names in groups.items()
        }
        self.means = [torch.zeros_like(master.values[n]) for n in self.other]
        self.squares = [torch.zeros_like(master.values[n]) for n in self.other]
        device = next(iter(master.values.values())).device
        self.num_steps = torch.zeros((), device=device)  # where a recorded step can count it on

    @torch.no_grad()
    def step(self, factor: Tensor | float) -> None:
        """One update at `factor` times the rates; takes the gradients and clears them.

        factor: a scalar on the device, where a recorded step is to read another one each time.
        """
        self.num_steps += 1
        for shape, names in self.groups.items():
            self._muon(shape, names, self.rates.matrix * factor)
        self._adam(self.rates.other * factor)

    def _gradients(self, names: list[str]) -> list[Tensor]:
        found = []
        for name in names:
            parameter = self.master.parameters[name]
            gradient = parameter.grad
            found.append(torch.zeros_like(parameter) if gradient is None else gradient)
            parameter.grad = None
        return found

    def _muon(self, shape: tuple[int, ...], names: list[str], rate: Tensor | float) -> None:
        gradients = torch.stack(self._gradients(names)).to(torch.float32)
        momentum = self.momenta[shape]
        momentum.lerp_(gradients, 1 - self.rates.momentum)
        ahead = gradients.lerp_(momentum, self.rates.momentum)
        update = orthogonalised(ahead.flatten(0, -3)).view(momentum.shape)
        update *= rate * (-0.2 * max(shape[-2:]) ** 0.5)
        values = [self.master.values[name] for name in names]
        torch._foreach_mul_(values, 1 - rate * self.rates.decay)
        torch._foreach_add_(values, list(update.unbind()))

    def _adam(self, rate: Tensor | float) -> None:
        gradients = [g.to(torch.float32) for g in self._gradients(self.other)]
        first, second = self.rates.betas
        torch._foreach_lerp_(self.means, gradients, 1 - first)
        torch._foreach_mul_(self.squares, second)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - second)
        bias = 1 - first**self.num_steps, 1 - second**self.num_steps
        scale = torch._foreach_div(self.squares, bias[1])
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, 1e-10)
        updates = torch._foreach_div(self.means, scale)
        torch._foreach_mul_(updates, [-own for own in self.rate_of])
        torch._foreach_mul_(updates, rate / bias[0])
        torch._foreach_add_([self.master.values[name] for name in self.other], updates)


def orthogonalised(matrices: Tensor) -> Tensor:
    """[n, r, c] -> the same with singular values near 1, float32. Newton-Schulz in bfloat16."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.transpose(1, 2) if tall else matrices).to(torch.bfloat16)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.transpose(1, 2)
        x = _A * x + (_B * square + _C * (square @ square)) @ x
    return (x.transpose(1, 2) if tall else x).to(torch.float32)


def decay_factor(progress: float, step: int, decay_from: float, warm_up: int) -> float:
    """Share of the full rate: a linear rise over the first steps, a linear fall to 2 % at the end.

    progress: 0 to 1 of the stage. Moments start from nothing after every resume, so the rise
    counts from there.
    """
    rise = min(1.0, (step + 1) / max(1, warm_up))
    if progress <= decay_from or decay_from >= 1.0:
        return rise
    return rise * max(0.02, (1 - progress) / (1 - decay_from))
