"""The backbone: embedding, layers in order, head; and the features that the draft module taps (spec
3).

Knows nothing of files, of devices to choose, or of how KV is stored.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepinfer.config.layers import plan_layers
from deepinfer.config.rope import rope_frequencies
from deepinfer.kernels.values import Rotary, rotary
from deepinfer.model.attention import Angles, Carry
from deepinfer.model.basic import Embedding, Linear, RMSNorm, Setup
from deepinfer.model.batch import Batch, FreshStore, KVStore, Rest, make_batch
from deepinfer.model.draft import Draft
from deepinfer.model.engram import Engram
from deepinfer.model.layer import Flow, Layer, start_flow


class Hidden(NamedTuple):
    """What the layers make of T rows, or of those of them that reach the last layer.

    final: [T, D], collapsed and normed: the head's input.
    features: [T, num_taps * D], mean input streams of the tapped layers: the draft module's input.
    """

    final: Tensor
    features: Tensor


class Network(nn.Module):
    """The whole text model, the draft module included when the checkpoint has one."""

    def __init__(self, setup: Setup, token_map: Sequence[int]) -> None:
        """token_map: Engram's token compression (deepinfer.tokenizer.compress)."""
        super().__init__()
        c = setup.config
        self.setup, self.kernels = setup, setup.kernels
        self.plans = plan_layers(c)
        self.embed = Embedding(setup, c.hidden_size)
        self.layers = nn.ModuleList(
            Layer(setup, plan, c.n_routed_experts, c.num_experts_per_tok) for plan in self.plans
        )
        for plan, layer in zip(self.plans, self.layers, strict=True):
            if plan.engram_id is not None:
                layer.engram = Engram(setup, plan, token_map)
        self.norm = RMSNorm(setup, c.hidden_size)
        self.head = Linear(setup, setup.kernels.linear_float32, c.hidden_size, c.vocab_size)
        self.draft = Draft(setup) if c.num_nextn_predict_layers else None
        for name, ratio in (("window_frequencies", 0), ("entry_frequencies", 1)):
            frequencies = torch.tensor(rope_frequencies(c, ratio))
            self.register_buffer(name, frequencies, persistent=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Whole sequences of equal length, int64 [B, S] -> logits float32 [B, S, vocab].
        Differentiable.
        """
        hidden = self.run(make_batch(self.setup.config, token_ids), FreshStore())
        return self.head(hidden.final).unflatten(0, token_ids.shape)

    def run(self, batch: Batch, store: KVStore, rest: Rest | None = None) -> Hidden:
        """All layers over the batch's rows; `self.head(hidden.final)` gives their logits.

        rest: the only rows that go through the decoder half. The others leave it their entries.
        """
        flow = start_flow(self.embed(batch.token_ids), self.setup.config.hc_mult)
        angles = self._angles(batch)
        carry, taps = Carry(), []
        for plan, layer in zip(self.plans, self.layers, strict=True):
            if plan.in_decoder and rest is not None:
                if plan.owns_kv:
                    layer.leave_entries(flow, angles[plan.ratio], batch, store, carry)
                if not len(rest.rows):
                    return Hidden(flow.streams[:0, 0], flow.streams[:0, 0, :0])
                flow = flow.rows(self.kernels, rest.rows)
                batch, store, rest = rest.batch, rest.store, None
                angles = self._angles(batch)
            if plan.engram_id is not None:
                flow = flow.settled(self.kernels)
                flow = Flow(layer.engram(flow.streams, batch.lookback), flow.pre)
            if plan.tap_id is not None:
                flow = flow.settled(self.kernels)
                taps.append(flow.streams.to(torch.float32).mean(1).to(flow.streams.dtype))
            flow = layer(flow, angles[plan.ratio], batch, store, carry)
        final = self.kernels.leave_streams(flow.streams, flow.pre, flow.written, self.norm.gain)
        features = torch.cat(taps, -1) if taps else final[:, :0]
        return Hidden(final, features)

    def _angles(self, batch: Batch) -> dict[int, Angles]:
        """Angles by ratio: computed once a forward, for its rows and for the entries completed in
        it.
        """
        angles = {0: Angles(rotary(batch.positions, self.window_frequencies))}
        # Rows and entries of all ratios turn at the same frequencies: one table, in few kernels.
        parts = [batch.positions, *(rows.positions for rows in batch.entries.values())]
        whole = rotary(torch.cat(parts), self.entry_frequencies)
        tables = map(Rotary, *(table.split([len(part) for part in parts]) for table in whole))
        of_rows = next(tables)
        for ratio, of_entries in zip(batch.entries, tables, strict=True):
            angles[ratio] = Angles(of_rows, of_entries)
        return angles
