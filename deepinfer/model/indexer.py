"""Lightning indexer: which entries each row attends to (spec 7.4, 7.5)."""

from torch import Tensor, nn

from deepinfer.config.layers import LayerPlan
from deepinfer.kernels.values import CandidateRule, EntryView, Rotary, Selection
from deepinfer.model.basic import Linear, RMSNorm, Setup


class Indexer(nn.Module):
    """Index keys where the layer owns KV; queries, scores and selection where it owns an index."""

    def __init__(self, setup: Setup, plan: LayerPlan) -> None:
        super().__init__()
        c, kernels = setup.config, setup.kernels
        self.config, self.kernels, self.plan = c, kernels, plan
        width = c.index_n_heads * c.index_head_dim
        self.wq_b = Linear(setup, kernels.linear_quantised, c.q_lora_rank, width)
        self.weights_proj = Linear(setup, kernels.linear, c.hidden_size, c.index_n_heads)
        self.head_scale = width**-0.5
        if plan.owns_kv:
            self.wk = Linear(setup, kernels.linear, c.head_dim, c.index_head_dim)
            self.k_norm = RMSNorm(setup, c.index_head_dim)

    def keys(self, latent: Tensor, rotary: Rotary) -> Tensor:
        """Index keys of new entries from their latents [E, C], as their caches keep them."""
        return self.kernels.index_rows(self.wk(latent), *self.k_norm.gain, rotary)

    def forward(
        self,
        u: Tensor,
        q_latent: Tensor,
        rotary: Rotary,
        view: EntryView,
        key_store: Tensor,
        candidates: Tensor | None,
    ) -> Selection:
        """u [T, D], q_latent [T, q_lora_rank], key_store as `keys` makes them; `candidates` of an
        earlier selection restrict, if given.
        """
        c = self.config
        query = self.wq_b(q_latent).unflatten(-1, (c.index_n_heads, c.index_head_dim))
        query = self.kernels.index_query(query, rotary)
        weights = self.weights_proj(u) * self.head_scale
        return self.kernels.select(
            query,
            weights,
            key_store,
            view,
            c.index_topk,
            CandidateRule(c.candidate_block_size, c.candidate_topk_blocks),
            candidates,
            makes_candidates=self.plan.makes_candidates,
        )
