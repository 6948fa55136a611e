"""Lightning indexer: which entries each row attends to (spec 7.4, 7.5)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepinfer.config.layers import LayerPlan
from deepinfer.kernels.kernelset import Rotary
from deepinfer.model.basic import Linear, RMSNorm, Setup
from deepinfer.model.batch import Batch


class Selection(NamedTuple):
    """Result of one index source.

    scores: float32 [T, N], -inf where an entry is not visible.
    selected: int64 [T, K], entry numbers within the row's sequence, ascending, then -1.
    candidates: bool [T, N] in the layer that makes them, else None.
    """

    scores: Tensor
    selected: Tensor
    candidates: Tensor | None


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
        """Index keys [E, Ci] of new entries from their latents [E, C]."""
        key = self.kernels.rotate(self.k_norm(self.wk(latent)), *rotary)
        return self.kernels.round_trip_index(key)

    def forward(
        self,
        u: Tensor,
        q_latent: Tensor,
        rotary: Rotary,
        batch: Batch,
        key_store: Tensor,
        candidates: Tensor | None,
    ) -> Selection:
        """u [T, D], q_latent [T, q_lora_rank], key_store [*, Ci]; candidates bool [T, N] restrict,
        if given.
        """
        c, rows = self.config, batch.entries[self.plan.ratio]
        query = self.wq_b(q_latent).unflatten(-1, (c.index_n_heads, c.index_head_dim))
        query = self.kernels.round_trip_index(self.kernels.rotate(query, *rotary))
        weights = self.weights_proj(u) * self.head_scale

        scores = self._scores(query, weights, batch, key_store)
        visible = torch.arange(scores.shape[1], device=u.device) < rows.num_visible[:, None]
        scores = scores.masked_fill(~visible, -torch.inf)

        # A layer that makes candidates still selects among all that is visible itself.
        allowed = visible if candidates is None else candidates
        selected = self.kernels.select_entries(scores, allowed, c.index_topk)
        made = None
        if self.plan.makes_candidates:
            made = self.kernels.candidate_entries(
                scores, rows.num_visible, c.candidate_block_size, c.candidate_topk_blocks
            )
        return Selection(scores, selected, made)

    def _scores(self, query: Tensor, weights: Tensor, batch: Batch, key_store: Tensor) -> Tensor:
        """Scores float32 [T, N] from queries [T, Hi, Ci], weights [T, Hi], key_store [*, Ci]."""
        table = batch.entries[self.plan.ratio].table
        # The last row is for padding, -1: to leave that out, the host would have to wait.
        scores = query.new_empty(query.shape[0] + 1, table.shape[1], dtype=torch.float32)
        for rows in batch.groups:
            safe = rows.clamp_min(0)
            sequences = batch.sequence_ids[safe[:, 0]]
            scores[rows] = self.kernels.index_scores(
                query[safe], weights[safe], key_store, table[sequences]
            )
        return scores[:-1]
