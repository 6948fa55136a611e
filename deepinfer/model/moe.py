"""Mixture of experts: router, routed experts, one shared expert (spec 8)."""

import torch
from torch import Tensor, nn

from deepinfer.model.basic import Linear, Setup


class Gate(nn.Module):
    """The router of text tokens. (`bias_vl`, the bias of image tokens, is not used yet.)"""

    def __init__(self, setup: Setup, num_experts: int, topk: int) -> None:
        super().__init__()
        self.kernels, self.topk = setup.kernels, topk
        self.scale = setup.config.routed_scaling_factor
        self.weight = setup.weight(num_experts, setup.config.hidden_size, wide=True)
        self.bias = nn.Parameter(torch.empty(num_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, D] -> expert ids int64 [T, topk], ascending, and weights float32 [T, topk]."""
        logits = self.kernels.linear_float32(x, self.weight)
        return self.kernels.route(logits, self.bias, self.topk, self.scale)


class SharedExpert(nn.Module):
    """The expert that every row visits."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        c, op = setup.config, setup.kernels.linear_quantised
        self.swiglu, self.limit = setup.kernels.swiglu, c.swiglu_limit
        self.w1 = Linear(setup, op, c.hidden_size, c.moe_intermediate_size)
        self.w3 = Linear(setup, op, c.hidden_size, c.moe_intermediate_size)
        self.w2 = Linear(setup, op, c.moe_intermediate_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, D] -> [T, D]."""
        return self.w2(self.swiglu(self.w1(x), self.w3(x), self.limit))


class Experts(nn.Module):
    """All routed experts of a layer, stacked: w1, w3 [E, I, D], w2 [E, D, I]."""

    def __init__(self, setup: Setup, num_experts: int) -> None:
        super().__init__()
        c = setup.config
        self.op, self.limit = setup.kernels.experts, c.swiglu_limit
        self.w1 = setup.weight(num_experts, c.moe_intermediate_size, c.hidden_size)
        self.w3 = setup.weight(num_experts, c.moe_intermediate_size, c.hidden_size)
        self.w2 = setup.weight(num_experts, c.hidden_size, c.moe_intermediate_size)

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """x [T, D], ids and weights [T, topk] -> [T, D]."""
        return self.op(x, ids, weights, self.w1, self.w3, self.w2, self.limit)


class MoE(nn.Module):
    """The feed-forward sublayer."""

    def __init__(self, setup: Setup, num_experts: int, topk: int) -> None:
        super().__init__()
        self.gate = Gate(setup, num_experts, topk)
        self.experts = Experts(setup, num_experts)
        self.shared_experts = SharedExpert(setup)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, D] -> [T, D]: the routed sum is rounded before the shared expert is added."""
        ids, weights = self.gate(x)
        return self.experts(x, ids, weights) + self.shared_experts(x)
