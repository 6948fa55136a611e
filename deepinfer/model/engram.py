"""Engram: hashed n-grams look up memory rows that are gated into the streams (spec 9)."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from deepinfer.config import engram as constants
from deepinfer.config.layers import LayerPlan
from deepinfer.model.basic import Linear, Setup


class EngramTable(Protocol):
    """Rows of one layer's table, wherever it is kept."""

    def rows(self, row_ids: Tensor) -> Tensor:
        """int64 [...] -> decoded rows, float [..., engram_head_dim]."""
        ...


class ResidentTable(nn.Module):
    """A table held in memory as a parameter: for training and for tables that fit."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def rows(self, row_ids: Tensor) -> Tensor:
        """int64 [...] -> [..., engram_head_dim]."""
        return nn.functional.embedding(row_ids, self.weight)


class Engram(nn.Module):
    """One layer's Engram.

    `table` is set by whoever builds the network: it is not a weight that every rank holds.
    """

    table: EngramTable

    def __init__(self, setup: Setup, plan: LayerPlan, token_map: Sequence[int]) -> None:
        """token_map: token id -> compressed id; ids beyond its end count as padding."""
        super().__init__()
        c, kernels = setup.config, setup.kernels
        self.config, self.kernels, self.dtype = c, kernels, setup.dtype
        num_columns = (c.engram_max_ngram_size - 1) * c.engram_n_heads
        num_outputs = (c.hc_mult + 1) * c.hidden_size
        self.wkv = Linear(
            setup, kernels.linear_quantised, num_columns * c.engram_head_dim, num_outputs
        )
        self.q_weight = setup.weight(c.hc_mult, c.hidden_size, wide=True)
        self.k_weight = setup.weight(c.hc_mult, c.hidden_size, wide=True)

        primes = constants.bucket_primes(c)[plan.engram_id or 0]
        pad_id = token_map[c.engram_pad_token_id]
        # One entry more than the vocabulary: look-back -1, "before the start", is the last of them.
        padded = list(token_map) + [pad_id] * (c.vocab_size + 1 - len(token_map))
        for name, values in (
            ("token_map", padded),
            ("multipliers", constants.multipliers(c, plan.layer_id)),
            ("primes", primes),
            ("offsets", constants.bucket_offsets(primes)),
        ):
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def row_ids(self, lookback: Tensor) -> Tensor:
        """Token ids int64 [T, n] (`Batch.lookback`) -> table rows int64 [T, columns]."""
        window = self.token_map[lookback]
        return self.kernels.engram_rows(window, self.multipliers, self.primes, self.offsets)

    def forward(self, streams: Tensor, lookback: Tensor) -> Tensor:
        """streams [T, M, D], lookback int64 [T, n] -> streams [T, M, D]."""
        c = self.config
        memory = self.table.rows(self.row_ids(lookback)).flatten(1).to(self.dtype)
        key, value = self.wkv(memory).split((c.hc_mult * c.hidden_size, c.hidden_size), -1)
        key = key.unflatten(-1, (c.hc_mult, c.hidden_size))
        return self.kernels.engram_gate(
            streams, key, value, self.q_weight, self.k_weight, c.rms_norm_eps
        )
