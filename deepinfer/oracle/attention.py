"""The oracle's attention: window, compressed entries, indexer, and the draft's attention (spec 7).

Keys of all S rows are made anew in every call and masked, never gathered. It knows no streams: rows
after attn_norm come in, rows before the expansion go out.
"""

import torch
from torch import Tensor

from deepinfer.config.model import ModelConfig
from deepinfer.oracle import formulas
from deepinfer.oracle.trace import Sources, Trace
from deepinfer.oracle.weights import Weights, fp8_round_trip, mxfp4_round_trip, nvfp4_round_trip


class Attention:
    """Attention of every layer and every draft stage, by the prefix of its tensors' names."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights

    def backbone(self, layer: int, x: Tensor, sources: Sources, trace: Trace) -> Tensor:
        """Attention [S, H] -> [S, H] over the window and, at a ratio above 0, selected entries."""
        prefix = f"layers.{layer}"
        compressed = self.config.compress_ratios[layer] > 0
        positions = torch.arange(len(x))
        turns = self._turns(positions, compressed=compressed)
        query_latent = self._query_latent(prefix, x)
        keys = self._window_keys(prefix, x, turns)
        age = positions[:, None] - positions
        allowed = (age >= 0) & (age < self.config.sliding_window)
        if compressed:
            self._update_entries(layer, x, sources, trace)
            self._update_selected(layer, x, query_latent, sources, trace)
            keys = torch.cat([keys, sources.entries])
            allowed = torch.cat([allowed, sources.selected], dim=1)
        return self._attend(prefix, query_latent, keys, allowed, turns)

    def draft(self, prefix: str, x: Tensor, main_x: Tensor, anchor: int) -> Tensor:
        """Attention [B, H] -> [B, H] of a draft block that starts at position `anchor` (spec 11.3).

        Every position reads the whole block and the window before it, main_x [S, H].
        """
        start = max(0, anchor - self.config.sliding_window)
        turns = self._turns(torch.arange(anchor, anchor + len(x)))
        main_turns = self._turns(torch.arange(start, anchor))
        main_keys = self._window_keys(prefix, main_x[start:anchor], main_turns)
        keys = torch.cat([main_keys, self._window_keys(prefix, x, turns)])
        allowed = torch.ones(len(x), len(keys), dtype=torch.bool)
        return self._attend(prefix, self._query_latent(prefix, x), keys, allowed, turns)

    def _turns(self, positions: Tensor, *, compressed: bool = False) -> Tensor:
        frequencies = formulas.rope_frequencies(self.config, compressed=compressed)
        return formulas.turns(positions, frequencies)

    def _rotate(self, x: Tensor, turns: Tensor) -> Tensor:
        return self.weights.round(formulas.rotate(x, turns))

    def _query_latent(self, prefix: str, x: Tensor) -> Tensor:
        latent = self.weights.linear(x, f"{prefix}.attn.wq_a")
        return self.weights.norm(latent, f"{prefix}.attn.q_norm")

    def _window_keys(self, prefix: str, x: Tensor, turns: Tensor) -> Tensor:
        keys = self.weights.linear(x, f"{prefix}.attn.wkv")
        keys = self.weights.norm(keys, f"{prefix}.attn.kv_norm")
        return self.weights.stored(self._rotate(keys, turns), fp8_round_trip)

    def _attend(
        self, prefix: str, query_latent: Tensor, keys: Tensor, allowed: Tensor, turns: Tensor
    ) -> Tensor:
        """S queries over K keys [K, head_dim], which are the values too: [S, H] (spec 7.6, 7.7).

        allowed: bool [S, K]. A token that is in two keys counts twice.
        """
        config, weights = self.config, self.weights
        queries = weights.linear(query_latent, f"{prefix}.attn.wq_b")
        queries = queries.unflatten(-1, (config.num_attention_heads, config.head_dim))
        queries = self._rotate(queries, turns)
        scores = torch.einsum("shd,kd->shk", queries, keys) * config.head_dim**-0.5
        scores = scores.masked_fill(~allowed[:, None], -torch.inf)
        sink = weights[f"{prefix}.attn.attn_sink"].expand(len(scores), -1)[..., None]
        shares = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]  # the sink has no value
        out = weights.round(torch.einsum("shk,kd->shd", shares, keys))
        out = self._rotate(out, turns.conj())  # the values came rotated to their own positions

        groups = out.flatten(1).unflatten(-1, (config.o_groups, -1))
        wo_a = weights[f"{prefix}.attn.wo_a"].unflatten(0, (config.o_groups, -1))
        hidden = weights.round(torch.einsum("sgc,grc->sgr", groups, wo_a)).flatten(1)
        return weights.linear(hidden, f"{prefix}.attn.wo_b")

    def _update_entries(self, layer: int, x: Tensor, sources: Sources, trace: Trace) -> None:
        """Publish the compressed KV and index keys that this layer is the source of (spec 7.3)."""
        config, weights, attn = self.config, self.weights, f"layers.{layer}.attn"
        ratio = config.compress_ratios[layer]
        turns = self._turns(torch.arange(len(x) // ratio) * ratio, compressed=True)
        if layer in config.kv_source_layer_ids:
            sources.latents = self._compress(attn, x, ratio)
            how = nvfp4_round_trip if config.use_fp4_sparse_kv else fp8_round_trip
            sources.entries = weights.stored(self._rotate(sources.latents, turns), how)
            sources.candidates = None  # they were entries of the source before
            trace.compressed_kv[layer] = sources.entries
        if layer in config.index_k_source_layer_ids:
            keys = weights.linear(sources.latents, f"{attn}.indexer.wk")
            keys = weights.norm(keys, f"{attn}.indexer.k_norm")
            sources.index_keys = weights.stored(self._rotate(keys, turns), mxfp4_round_trip)
            trace.index_keys[layer] = sources.index_keys

    def _compress(self, attn: str, x: Tensor, ratio: int) -> Tensor:
        """Pool every full group of `ratio` tokens into a latent: [S // ratio, head_dim]."""
        x = x[: len(x) // ratio * ratio]
        pooled = x @ self.weights[f"{attn}.compressor.wkv"].T
        if ratio > 1:
            gates = x @ self.weights[f"{attn}.compressor.wgate"].T
            shares = gates.unflatten(0, (-1, ratio)).softmax(1)
            pooled = (shares * pooled.unflatten(0, (-1, ratio))).sum(1)
        return self.weights.norm(self.weights.round(pooled), f"{attn}.compressor.norm")

    def _update_selected(
        self, layer: int, x: Tensor, query_latent: Tensor, sources: Sources, trace: Trace
    ) -> None:
        """Publish which entries each row reads, if this layer is an index source (spec 7.4, 7.5)."""
        config = self.config
        if layer not in config.index_source_layer_ids:
            return
        scores = self._index_scores(f"layers.{layer}.attn", x, query_latent, sources.index_keys)
        num_visible = (torch.arange(len(x)) + 1) // config.compress_ratios[layer]
        hidden = torch.arange(scores.shape[1]) >= num_visible[:, None]
        scores = trace.index_scores[layer] = scores.masked_fill(hidden, -torch.inf)
        if sources.candidates is not None:
            scores = scores.masked_fill(~sources.candidates, -torch.inf)
        trace.topk[layer] = formulas.select_entries(scores, config.index_topk)
        sources.selected = formulas.mask_of(trace.topk[layer], scores.shape[1])
        if layer == config.candidate_source_layer_id:
            sources.candidates = trace.candidates[layer] = formulas.candidate_mask(
                scores, config.candidate_topk_blocks, config.candidate_block_size
            )

    def _index_scores(self, attn: str, x: Tensor, query_latent: Tensor, keys: Tensor) -> Tensor:
        """Score every entry of keys [W, index_head_dim] for every row, visible or not: [S, W]."""
        weights, heads, size = self.weights, self.config.index_n_heads, self.config.index_head_dim
        turns = self._turns(torch.arange(len(x)), compressed=True)
        queries = weights.linear(query_latent, f"{attn}.indexer.wq_b")
        queries = self._rotate(queries.unflatten(-1, (heads, size)), turns)
        queries = weights.stored(queries, mxfp4_round_trip)
        shares = weights.linear(x, f"{attn}.indexer.weights_proj")
        shares = weights.round(shares * (heads * size) ** -0.5)
        dots = weights.round(torch.einsum("shd,wd->shw", queries, keys))
        return weights.round(weights.round(shares[..., None] * dots.relu()).sum(1))
