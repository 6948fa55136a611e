"""Attention sublayer: window, entries of the source layer, grouped output (spec 7).

The module asks its LayerPlan what to do besides the window. Where KV lies is the store's business.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from deepinfer.config.layers import LayerPlan
from deepinfer.kernels.values import Rotary
from deepinfer.model.basic import Joint, Linear, RMSNorm, Setup
from deepinfer.model.batch import Batch, KVStore
from deepinfer.model.compressor import Compressor, entry_from_latent
from deepinfer.model.indexer import Indexer


@dataclass
class Carry:
    """What source layers hand to the layers after them within one forward, by the source's
    layer_id.

    entries, keys: stores of entries and of index keys. selection: rows of the entry store that each
    row attends to, int [T, K], -1 for none. candidates: as `Selection` has them.
    """

    entries: dict[int | None, Tensor] = field(default_factory=dict)
    keys: dict[int | None, Tensor] = field(default_factory=dict)
    selection: dict[int | None, Tensor] = field(default_factory=dict)
    candidates: dict[int | None, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Angles:
    """Rotary angles of one forward's rows, and of the entries completed in it, by ratio."""

    rows: Rotary
    entries: Rotary | None = None


class Attention(nn.Module):
    """One attention sublayer of any kind."""

    def __init__(self, setup: Setup, plan: LayerPlan) -> None:
        super().__init__()
        c, kernels = setup.config, setup.kernels
        self.setup, self.kernels, self.plan = setup, kernels, plan
        self.num_heads, self.head_dim, self.num_groups = (
            c.num_attention_heads,
            c.head_dim,
            c.o_groups,
        )
        self.scale = c.head_dim**-0.5
        head_width = c.num_attention_heads * c.head_dim
        quantised = kernels.linear_quantised
        self.wq_a = Linear(setup, quantised, c.hidden_size, c.q_lora_rank)
        self.q_norm = RMSNorm(setup, c.q_lora_rank)
        self.wq_b = Linear(setup, quantised, c.q_lora_rank, head_width)
        self.wkv = Linear(setup, quantised, c.hidden_size, c.head_dim)
        self.from_input = Joint(setup, self.wq_a, self.wkv)
        self.kv_norm = RMSNorm(setup, c.head_dim)
        self.attn_sink = nn.Parameter(torch.empty(c.num_attention_heads))
        self.wo_a = Linear(
            setup,
            kernels.grouped_linear,
            head_width // c.o_groups,
            c.o_groups * c.o_lora_rank,
            c.o_groups,
        )
        self.wo_b = Linear(setup, quantised, c.o_groups * c.o_lora_rank, c.hidden_size)
        if plan.owns_kv:
            self.compressor = Compressor(setup, plan)
        if plan.owns_index:
            self.indexer = Indexer(setup, plan)

    def window_kv(self, kv: Tensor, rotary: Rotary) -> Tensor:
        """What `wkv` makes of T rows, [T, C] -> this layer's window KV, as the cache keeps it."""
        return self.kernels.window_rows(kv, *self.kv_norm.gain, rotary)

    def forward(
        self, u: Tensor, angles: Angles, batch: Batch, store: KVStore, carry: Carry
    ) -> Tensor:
        """u [T, D], the normed sublayer input -> [T, D]. Fills `carry` in source layers."""
        latent, kv = self.from_input(u)
        into = store.target(self.plan.layer_id)
        q_latent, window = self.kernels.latent_rows(
            latent, self.q_norm.gain, kv, self.kv_norm.gain, angles.rows, into
        )
        if into is None:
            window = store.window(self.plan.layer_id, window)

        def query() -> Tensor:
            return self.wq_b(q_latent).unflatten(-1, (self.num_heads, self.head_dim))

        queried = self.kernels.beside(query) if self.plan.owns_index else query
        if self.plan.owns_kv and self.plan.layer_id not in carry.entries:
            self.compress(u, angles, batch, store, carry)
        if self.plan.owns_index:
            self._select(u, q_latent, angles, batch, carry)
        mixed = self.kernels.attend_rotated(
            queried(),
            angles.rows,
            self.attn_sink,
            self.scale,
            window,
            batch.decoder_window_index if self.plan.in_decoder else batch.window_index,
            carry.entries.get(self.plan.kv_source),
            carry.selection.get(self.plan.index_source),
        )
        return self.wo_b(self.wo_a(mixed.flatten(1).unflatten(1, (self.num_groups, -1))))

    def compress(
        self, u: Tensor, angles: Angles, batch: Batch, store: KVStore, carry: Carry
    ) -> None:
        """Make the entries and index keys of a source layer, from u [T, D], and carry them."""
        assert angles.entries is not None  # only window layers have none
        latent = self.compressor(u, batch.entries[self.plan.ratio], store)
        entries = entry_from_latent(self.setup, latent, angles.entries)
        keys = self.indexer.keys(latent, angles.entries)
        source = self.plan.layer_id
        carry.entries[source], carry.keys[source] = store.entries(source, entries, keys)

    def _select(
        self, u: Tensor, q_latent: Tensor, angles: Angles, batch: Batch, carry: Carry
    ) -> None:
        plan = self.plan
        selection = self.indexer(
            u,
            q_latent,
            angles.rows,
            batch.view(plan.ratio),
            carry.keys[plan.kv_source],
            carry.candidates.get(plan.candidate_source),
        )
        if selection.candidates is not None:
            carry.candidates[plan.layer_id] = selection.candidates
        carry.selection[plan.layer_id] = selection.rows
