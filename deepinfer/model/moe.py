"""Mixture of experts: router, routed experts, one shared expert (spec 8)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepinfer.model.basic import Joint, Linear, Setup


class Gate(nn.Module):
    """The router of text tokens. (`bias_vl`, the bias of image tokens, is not used yet.)"""

    def __init__(self, setup: Setup, num_experts: int, topk: int) -> None:
        super().__init__()
        self.kernels, self.topk = setup.kernels, topk
        self.scale = setup.config.routed_scaling_factor
        wide = setup.kernels.widens
        self.weight = setup.weight(num_experts, setup.config.hidden_size, wide=wide)
        self.bias = nn.Parameter(torch.empty(num_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, D] -> expert ids int64 [T, topk], ascending, and weights float32 [T, topk]."""
        return self.kernels.choose_experts(x, self.weight, self.bias, self.topk, self.scale)


class SharedExpert(nn.Module):
    """The expert that every row visits."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        c, op = setup.config, setup.kernels.linear_quantised
        self.swiglu, self.limit = setup.kernels.swiglu, c.swiglu_limit
        self.w1 = Linear(setup, op, c.hidden_size, c.moe_intermediate_size)
        self.w3 = Linear(setup, op, c.hidden_size, c.moe_intermediate_size)
        self.w2 = Linear(setup, op, c.moe_intermediate_size, c.hidden_size)
        self.gate_up = Joint(setup, self.w1, self.w3)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, D] -> [T, D]."""
        return self.w2(self.swiglu(*self.gate_up(x), self.limit))


class Experts(nn.Module):
    """Routed experts of a layer, as the backend keeps them: `KernelSet.empty_experts`."""

    def __init__(
        self, setup: Setup, num_experts: int, first: int = 0, *, is_all: bool = True
    ) -> None:
        """first: the model's number of the first of them. is_all: the layer has no others."""
        super().__init__()
        c = setup.config
        self.num_experts, self.first, self.is_all = num_experts, first, is_all
        self.kernels, self.limit = setup.kernels, c.swiglu_limit
        self.num_inner = c.moe_intermediate_size
        dtype = setup.weight_dtype or setup.dtype
        for name, weight in setup.kernels.empty_experts(
            num_experts, self.num_inner, c.hidden_size, dtype
        ).items():
            parameter = nn.Parameter(weight, requires_grad=weight.is_floating_point())
            self.register_parameter(name, parameter)

    def forward(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        shared: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """x [T, D], ids (the model's numbers) and weights [T, topk] -> [T, D]: the rounded sum of
        those held here, and what `shared` gives, [T, D]."""
        held, sizes = tuple(self.parameters()), (self.num_inner, self.limit)
        first = None if self.is_all else self.first
        return self.kernels.mix_experts(x, ids, weights, held, *sizes, first, shared)


class MoE(nn.Module):
    """The feed-forward sublayer."""

    def __init__(self, setup: Setup, num_experts: int, topk: int) -> None:
        super().__init__()
        self.kernels = setup.kernels
        self.gate = Gate(setup, num_experts, topk)
        share, num_shares = setup.expert_shard
        num_held = num_experts // num_shares
        self.experts = Experts(setup, num_held, share * num_held, is_all=num_shares == 1)
        self.shared_experts = SharedExpert(setup)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, D] -> [T, D]: the routed sum is rounded before the shared expert is added."""
        shared = self.kernels.beside(lambda: self.shared_experts(x))
        ids, weights = self.gate(x)
        return self.experts(x, ids, weights, shared)
