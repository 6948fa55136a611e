"""The small modules that every part is made of. Parameters carry the checkpoint's names.

`Setup` is what every module is built with: sizes, ops and dtypes. A parameter that the release
stores in float32 stays float32; all others are made by `Setup.weight`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deepinfer.config.model import ModelConfig
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.kernels.values import Entered, HyperWeights, Written


@dataclass(frozen=True)
class Setup:
    """What every module is built with.

    config: the model's facts. kernels: the ops. dtype: what is computed in. weight_dtype: how
    weights are kept, to be cast when used; None keeps each as it is computed with, so that none is
    cast. expert_shard: (i, n), which of n equal shares of every layer's experts are held; what
    the others would add is left out.
    """

    config: ModelConfig
    kernels: KernelSet
    dtype: torch.dtype
    weight_dtype: torch.dtype | None
    expert_shard: tuple[int, int] = (0, 1)

    def weight(self, *shape: int, wide: bool = False) -> nn.Parameter:
        """An empty parameter. wide: it is computed with in float32, whatever `dtype` is."""
        dtype = self.weight_dtype or (torch.float32 if wide else self.dtype)
        return nn.Parameter(torch.empty(shape, dtype=dtype))


class FewRows:
    """A weight once more, as the backend wants it for few rows, if it wants that.

    Made of a weight that is there, and never loaded or saved itself.
    """

    def __init__(self, kernels: KernelSet, op: Callable[..., Tensor], num_groups: int = 1) -> None:
        """op: that the weight is for; num_groups: as of `Linear`."""
        self._kernels, self._op, self._num_groups = kernels, op, num_groups
        self._packed: Any = None
        self._most = 0

    def __call__(self, x: Tensor) -> Tensor | None:
        """The product; None for more rows than it is meant for, or without such a weight."""
        if self._packed is None or len(x) > self._most:
            return None
        return self._kernels.linear_few_rows(x, self._packed)

    def pack(self, weight: Tensor) -> None:
        """Make it."""
        if self._kernels.packs(self._op, weight, self._num_groups):
            self._packed = self._kernels.pack_linear(weight, self._num_groups)
        if self._packed is not None:
            self._most = self._kernels.few_rows(self._packed)

    def num_bytes(self, weight: Tensor) -> int:
        """What that takes, about: a byte for each number, and a little."""
        is_packed = self._kernels.packs(self._op, weight, self._num_groups)
        return weight.numel() * 65 // 64 if is_packed else 0


class Linear(nn.Module):
    """y = x Wᵀ by the given op of the KernelSet; weight [out, in].

    num_groups: of `grouped_linear`, whose rows are x [T, G, in].
    """

    def __init__(
        self,
        setup: Setup,
        op: Callable[..., Tensor],
        num_inputs: int,
        num_outputs: int,
        num_groups: int = 1,
    ) -> None:
        super().__init__()
        self.op, self.few = op, FewRows(setup.kernels, op, num_groups)
        wide = op is setup.kernels.linear_float32 and setup.kernels.widens
        self.weight = setup.weight(num_outputs, num_inputs, wide=wide)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        made = self.few(x)
        return self.op(x, self.weight) if made is None else made


class Joint(nn.Module):
    """Linears that read the same rows: one product, where the backend wants few large ones.

    Their weights are then parts of one tensor, and are named and filled as ever.
    """

    def __init__(self, setup: Setup, *linears: Linear) -> None:
        """linears: of one op and one number of inputs, and registered elsewhere."""
        super().__init__()
        self.linears = linears  # a tuple, so that they are not this module's
        self.few = FewRows(setup.kernels, linears[0].op)
        self.whole: Tensor | None = None
        self._sizes = [len(linear.weight) for linear in linears]
        if setup.kernels.joins:
            first = linears[0].weight
            self.whole = first.new_empty(sum(self._sizes), first.shape[1])
            for linear, part in zip(linears, self.whole.split(self._sizes), strict=True):
                linear.weight = nn.Parameter(part)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x [T, in] -> what each linear makes of it, [T, out]; rows may lie apart."""
        if self.whole is None:
            return tuple(linear(x) for linear in self.linears)
        made = self.few(x)
        made = self.linears[0].op(x, self.whole) if made is None else made
        return made.split(self._sizes, -1)


def products(module: nn.Module) -> Iterator[tuple[FewRows, Tensor]]:
    """The weights that rows are multiplied with, each once: those of a joint together."""
    joined: set[int] = set()
    for joint in module.modules():
        if isinstance(joint, Joint) and joint.whole is not None:
            joined.update(map(id, joint.linears))
            yield joint.few, joint.whole
    for linear in module.modules():
        if isinstance(linear, Linear) and id(linear) not in joined:
            yield linear.few, linear.weight


class RMSNorm(nn.Module):
    """RMS norm with a gain (spec 5); weight [size]."""

    def __init__(self, setup: Setup, size: int) -> None:
        super().__init__()
        self.op, self.eps = setup.kernels.rms_norm, setup.config.rms_norm_eps
        self.weight = setup.weight(size, wide=True)

    @property
    def gain(self) -> tuple[Tensor, float]:
        """Weight and eps, for ops that norm in passing."""
        return self.weight, self.eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape and dtype."""
        return self.op(x, self.weight, self.eps)


class Embedding(nn.Module):
    """Token embedding; weight [vocab_size, size]."""

    def __init__(self, setup: Setup, size: int) -> None:
        super().__init__()
        self.dtype = setup.dtype
        self.weight = setup.weight(setup.config.vocab_size, size)

    def forward(self, token_ids: Tensor) -> Tensor:
        """int64 [...] -> [..., size] in the compute dtype."""
        return nn.functional.embedding(token_ids, self.weight).to(self.dtype)


class HyperMix(nn.Module):
    """How one sublayer reads from and writes to the streams (spec 4). Parameters are float32."""

    # fn as the backend wants it: made of the parameter that is there, and never loaded or saved.
    _prepared: Tensor | None = None

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        c = setup.config
        self.kernels = setup.kernels
        self.norm_eps, self.eps, self.num_iters = c.rms_norm_eps, c.hc_eps, c.hc_sinkhorn_iters
        num_coefficients = c.hc_mult * (c.hc_mult + 2)
        self.fn = nn.Parameter(torch.empty(num_coefficients, c.hc_mult * c.hidden_size))
        self.scale = nn.Parameter(torch.empty(3))
        self.base = nn.Parameter(torch.empty(num_coefficients))
        self._num_streams = c.hc_mult

    def prepare(self) -> int:
        """Make of fn what the backend wants. The bytes that this takes besides."""
        made = self.kernels.prepare_mix(self.fn, self._num_streams)
        self._prepared = None if made is self.fn else made
        return 0 if self._prepared is None else self._prepared.nbytes

    def forward(
        self, streams: Tensor, pre: Tensor, written: Written | None, norm: RMSNorm
    ) -> Entered:
        """The sublayer's start: `KernelSet.enter_streams`."""
        fn = self.fn if self._prepared is None else self._prepared
        weights = HyperWeights(fn, self.scale, self.base, self.norm_eps, self.eps, self.num_iters)
        return self.kernels.enter_streams(streams, pre, written, weights, norm.gain)
