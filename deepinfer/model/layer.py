"""One transformer layer: attention and experts, joined by shifted hyper-connections (spec 3, 4)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deepinfer.config.layers import LayerPlan
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.kernels.values import Written
from deepinfer.model.attention import Angles, Attention, Carry
from deepinfer.model.basic import HyperMix, RMSNorm, Setup
from deepinfer.model.batch import Batch, KVStore
from deepinfer.model.moe import MoE


@dataclass(frozen=True)
class Flow:
    """What goes from sublayer to sublayer: streams [T, M, D], float32 pre [T, M] of the sublayer
    before, and what that one has yet to write into the streams."""

    streams: Tensor
    pre: Tensor
    written: Written | None = None

    def settled(self, kernels: KernelSet) -> "Flow":
        """The same with everything written, for who looks at the streams between layers."""
        if self.written is None:
            return self
        return Flow(kernels.write_streams(self.streams, self.written), self.pre)

    def rows(self, kernels: KernelSet, rows: Tensor) -> "Flow":
        """Some of the T rows."""
        flow = self.settled(kernels)
        return Flow(flow.streams[rows], flow.pre[rows])


class Layer(nn.Module):
    """A layer of the backbone or of the draft module."""

    def __init__(self, setup: Setup, plan: LayerPlan, num_experts: int, topk: int) -> None:
        super().__init__()
        self.plan, self.kernels = plan, setup.kernels
        self.hc_attn = HyperMix(setup)
        self.attn_norm = RMSNorm(setup, setup.config.hidden_size)
        self.attn = Attention(setup, plan)
        self.hc_ffn = HyperMix(setup)
        self.ffn_norm = RMSNorm(setup, setup.config.hidden_size)
        self.ffn = MoE(setup, num_experts, topk)

    def forward(
        self, flow: Flow, angles: Angles, batch: Batch, store: KVStore, carry: Carry
    ) -> Flow:
        """The flow of T rows before this layer -> after it."""

        def attention(u: Tensor) -> Tensor:
            return self.attn(u, angles, batch, store, carry)

        return self.around(flow, attention)

    def leave_entries(
        self, flow: Flow, angles: Angles, batch: Batch, store: KVStore, carry: Carry
    ) -> None:
        """The entries and index keys of all rows, for a `forward` of only some of them."""
        u = self.kernels.leave_streams(flow.streams, flow.pre, flow.written, self.attn_norm.gain)
        self.attn.compress(u, angles, batch, store, carry)

    def around(self, flow: Flow, attention: Callable[[Tensor], Tensor]) -> Flow:
        """As `forward`, for whoever computes attention otherwise: [T, D] -> [T, D]."""
        flow = self._sublayer(flow, self.hc_attn, self.attn_norm, attention)
        return self._sublayer(flow, self.hc_ffn, self.ffn_norm, self.ffn)

    def _sublayer(
        self, flow: Flow, mix: HyperMix, norm: RMSNorm, sublayer: Callable[[Tensor], Tensor]
    ) -> Flow:
        entered = mix(flow.streams, flow.pre, flow.written, norm)
        y = sublayer(entered.u)
        return Flow(entered.streams, entered.pre, Written(y, entered.post, entered.comb))


def start_flow(x: Tensor, num_streams: int) -> Flow:
    """Embeddings [T, D] -> equal streams [T, M, D] and the first `pre`: stream 0 alone."""
    streams = x[:, None].expand(-1, num_streams, -1)
    pre = torch.zeros(x.shape[0], num_streams, device=x.device)
    pre[:, 0].fill_(1.0)
    return Flow(streams, pre)
