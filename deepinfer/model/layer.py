"""One transformer layer: attention and experts, joined by shifted hyper-connections (spec 3, 4)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepinfer.config.layers import LayerPlan
from deepinfer.model.attention import Angles, Attention, Carry
from deepinfer.model.basic import HyperMix, RMSNorm, Setup
from deepinfer.model.batch import Batch, KVStore
from deepinfer.model.moe import MoE


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
        self,
        streams: Tensor,
        pre: Tensor,
        angles: Angles,
        batch: Batch,
        store: KVStore,
        carry: Carry,
    ) -> tuple[Tensor, Tensor]:
        """streams [T, M, D], pre [T, M] of the sublayer before -> the same after this layer."""

        def attention(u: Tensor) -> Tensor:
            return self.attn(u, angles, batch, store, carry)

        return self.around(streams, pre, attention)

    def leave_entries(
        self,
        streams: Tensor,
        pre: Tensor,
        angles: Angles,
        batch: Batch,
        store: KVStore,
        carry: Carry,
    ) -> None:
        """The entries and index keys of all rows, for a `forward` of only some of them."""
        u = self.attn_norm(self.kernels.hyper_collapse(streams, pre))
        self.attn.compress(u, angles, batch, store, carry)

    def around(
        self, streams: Tensor, pre: Tensor, attention: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, for whoever computes attention otherwise: [T, D] -> [T, D]."""
        streams, pre = self._sublayer(streams, pre, self.hc_attn, self.attn_norm, attention)
        return self._sublayer(streams, pre, self.hc_ffn, self.ffn_norm, self.ffn)

    def _sublayer(
        self,
        streams: Tensor,
        pre: Tensor,
        mix: HyperMix,
        norm: RMSNorm,
        sublayer: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """The input is collapsed with the PRECEDING sublayer's pre; the new one is handed on."""
        next_pre, post, comb = mix(streams)
        y = sublayer(norm(self.kernels.hyper_collapse(streams, pre)))
        return self.kernels.hyper_expand(y, streams, post, comb), next_pre


def start_streams(x: Tensor, num_streams: int) -> tuple[Tensor, Tensor]:
    """Embeddings [T, D] -> equal streams [T, M, D] and the first `pre`: stream 0 alone."""
    streams = x[:, None].expand(-1, num_streams, -1)
    pre = torch.zeros(x.shape[0], num_streams, device=x.device)
    pre[:, 0].fill_(1.0)
    return streams, pre
