"""The whole text model once more, slow and plain, as the judge of the fast one.

A forward recomputes every position of one sequence, straight from the model specification ("spec").
All arithmetic is fp32; `dtype=bfloat16` adds the roundings that the spec names and nothing else.
It knows no cache, batch, chunk, replay, device or image: token ids in, every intermediate out.
It shares no code with deepinfer.model or deepinfer.kernels, so that the two can be compared.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from deepinfer.config.model import ModelConfig
from deepinfer.oracle import formulas
from deepinfer.oracle.attention import Attention
from deepinfer.oracle.trace import DraftTrace, LayerTrace, Mix, Sources, Trace
from deepinfer.oracle.weights import Weights


class Oracle:
    """The text model and its draft module over the raw tensors of a checkpoint.

    `tensors` maps released names (no `model.` prefix) to tensors as stored; `token_map` maps token
    ids to Engram's compressed ids (spec 9.1). `cache_round_trip=False` leaves out the FP8, MXFP4
    and NVFP4 round trips of keys and index queries; `act_quant=True` quantises the input of every
    FP8 and FP4 linear (spec 14.1). Decoded weights are kept, so it is meant for small checkpoints.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        token_map: Sequence[int] | np.ndarray,
        *,
        dtype: torch.dtype = torch.float32,
        cache_round_trip: bool = True,
        act_quant: bool = False,
    ) -> None:
        self.config = config
        self.token_map = np.asarray(token_map, dtype=np.int64)
        self.weights = Weights(
            tensors,
            eps=config.rms_norm_eps,
            dtype=dtype,
            cache_round_trip=cache_round_trip,
            act_quant=act_quant,
        )
        self.attention = Attention(config, self.weights)

    @torch.no_grad()
    def forward(self, token_ids: Sequence[int]) -> Trace:
        """Run all layers over all positions of one sequence, from position 0 (spec 3)."""
        config = self.config
        streams, pre = self._embed(token_ids)
        rows = formulas.engram_rows(config, self.token_map, token_ids)
        trace = Trace(streams_in=streams, hash_ids=rows)
        sources = Sources()
        taps = {}
        for layer in range(config.num_hidden_layers):
            if layer in config.engram_layer_ids:
                table = config.engram_layer_ids.index(layer)
                streams = self._engram(layer, streams, rows[:, table])
                trace.engram_out[layer] = streams
            taps[layer] = self.weights.round(streams.mean(dim=1))

            def attention(x: Tensor, layer: int = layer) -> Tensor:
                return self.attention.backbone(layer, x, sources, trace)

            top_k = config.num_experts_per_tok
            done = self._block(f"layers.{layer}", streams, pre, attention, top_k)
            trace.layers.append(done)
            streams, pre = done.streams, done.mix_ffn.pre
        none = streams[:, 0, :0]  # a model without a draft module taps nothing
        features = [taps[layer] for layer in config.dspark_target_layer_ids]
        trace.target_features = torch.cat([none, *features], dim=-1)
        trace.collapsed = self._collapse(streams, pre)
        trace.final_hidden = self.weights.norm(trace.collapsed, "norm")
        trace.logits = trace.final_hidden @ self.weights["head"].T
        return trace

    @torch.no_grad()
    def greedy(self, token_ids: Sequence[int], num_tokens: int) -> list[int]:
        """Continue with the best token each time (the lowest id on a tie), by full recompute."""
        tokens = list(token_ids)
        for _ in range(num_tokens):
            tokens.append(int(self.forward(tokens).logits[-1].argmax()))
        return tokens[len(token_ids) :]

    @torch.no_grad()
    def draft(
        self,
        features: Tensor,
        anchor: int,
        anchor_id: int,
        previous_ids: Sequence[int] | None = None,
    ) -> DraftTrace:
        """Draft the B tokens after token `anchor_id` at position `anchor` (spec 11.2, 11.3).

        features: target features [S, taps * H], of which the window before the anchor is read.
        previous_ids [B]: the token before each drafted one, the anchor's first; None: the draft's
        own choices, argmax, the lowest id on a tie.
        """
        config = self.config
        size = config.dspark_block_size
        main_x = self.weights.linear(features.float(), "mtp.0.main_proj")
        main_x = self.weights.norm(main_x, "mtp.0.main_norm")
        streams, pre = self._embed([anchor_id] + [config.dspark_noise_token_id] * (size - 1))
        stages: list[LayerTrace] = []
        for stage in range(config.num_nextn_predict_layers):

            def attention(x: Tensor, prefix: str = f"mtp.{stage}") -> Tensor:
                return self.attention.draft(prefix, x, main_x, anchor)

            top_k = config.dspark_num_experts_per_tok
            stages.append(self._block(f"mtp.{stage}", streams, pre, attention, top_k))
            streams, pre = stages[-1].streams, stages[-1].mix_ffn.pre
        raw = self._collapse(streams, pre)
        return self._draft_heads(main_x, stages, raw, anchor_id, previous_ids)

    # -- one layer (spec 3, 4) -----------------------------------------------------------------

    def _embed(self, token_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Streams [S, hc, H] at the bottom and the one-hot `pre` [S, hc] that reads them."""
        embedded = self.weights["embed"][torch.tensor(token_ids)]
        streams = embedded[:, None].repeat(1, self.config.hc_mult, 1)
        pre = torch.zeros(streams.shape[:2])
        pre[:, 0] = 1
        return streams, pre

    def _block(
        self,
        prefix: str,
        streams: Tensor,
        pre: Tensor,
        attention: Callable[[Tensor], Tensor],
        top_k: int,
    ) -> LayerTrace:
        """One layer on streams [S, hc, H]; a sublayer reads them by the `pre` before its own."""
        mix_attn = self._mix(f"{prefix}.hc_attn", streams)
        attn_in = self.weights.norm(self._collapse(streams, pre), f"{prefix}.attn_norm")
        attn_out = attention(attn_in)
        streams = self._expand(attn_out, streams, mix_attn)

        mix_ffn = self._mix(f"{prefix}.hc_ffn", streams)
        ffn_in = self.weights.norm(self._collapse(streams, mix_attn.pre), f"{prefix}.ffn_norm")
        ids, weights = self._route(f"{prefix}.ffn", ffn_in, top_k)
        ffn_out = self._experts(f"{prefix}.ffn", ffn_in, ids, weights)
        streams = self._expand(ffn_out, streams, mix_ffn)
        return LayerTrace(
            mix_attn=mix_attn,
            attn_in=attn_in,
            attn_out=attn_out,
            mix_ffn=mix_ffn,
            ffn_in=ffn_in,
            ffn_out=ffn_out,
            router_ids=ids,
            router_weights=weights,
            streams=streams,
        )

    def _mix(self, name: str, streams: Tensor) -> Mix:
        hc, eps = self.config.hc_mult, self.config.hc_eps
        scale, base = self.weights[f"{name}_scale"], self.weights[f"{name}_base"]
        flat = streams.flatten(1)
        rms = (flat.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
        pre, post, comb = ((flat @ self.weights[f"{name}_fn"].T) * rms).split([hc, hc, hc * hc], -1)
        pre = torch.sigmoid(pre * scale[0] + base[:hc]) + eps
        post = 2 * torch.sigmoid(post * scale[1] + base[hc : 2 * hc])
        comb = (comb * scale[2] + base[2 * hc :]).unflatten(-1, (hc, hc))
        comb = formulas.sinkhorn(comb, self.config.hc_sinkhorn_iters, eps)
        return Mix(pre, post, comb)

    def _collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        return self.weights.round((pre[..., None] * streams).sum(1))

    def _expand(self, y: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        carried = torch.einsum("sab,sah->sbh", mix.comb, streams)
        return self.weights.round(mix.post[..., None] * y[:, None] + carried)

    # -- experts (spec 8), Engram (spec 9.4), draft heads (spec 11.3) --------------------------

    def _route(self, ffn: str, x: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        """Expert ids, int64, and their weights, both [S, top_k], best first."""
        scores = softplus(x @ self.weights[f"{ffn}.gate"].T).sqrt()
        ids = formulas.top_indices(scores + self.weights[f"{ffn}.gate.bias"], top_k)
        chosen = scores.gather(1, ids)  # the bias helps to choose and does not weigh
        total = chosen.sum(-1, keepdim=True) + 1e-20
        return ids, chosen / total * self.config.routed_scaling_factor

    def _experts(self, ffn: str, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for expert in ids.unique().tolist():  # ascending: the order of the released sum
            rows, places = torch.nonzero(ids == expert, as_tuple=True)
            expert_weights = weights[rows, places, None]
            total[rows] += self._swiglu(f"{ffn}.experts.{expert}", x[rows], expert_weights)
        return self.weights.round(total + self._swiglu(f"{ffn}.shared_experts", x, 1.0))

    def _swiglu(self, name: str, x: Tensor, weight: Tensor | float) -> Tensor:
        limit = self.config.swiglu_limit
        gate = self.weights.linear(x, f"{name}.w1").clamp(max=limit)
        up = self.weights.linear(x, f"{name}.w3").clamp(-limit, limit)
        return self.weights.linear(self.weights.round(weight * silu(gate) * up), f"{name}.w2")

    def _engram(self, layer: int, streams: Tensor, rows: Tensor) -> Tensor:
        """Add to streams [S, hc, H] the gated memory of table rows [S, heads]."""
        name, size, eps = f"layers.{layer}.engram", self.config.hidden_size, self.weights.eps
        memory = self.weights.rows(f"{name}.embed", rows).flatten(1)
        projected = self.weights.linear(memory, f"{name}.wkv")
        keys, value = projected[:, :-size].view_as(streams), projected[:, -size:]
        gains = self.weights[f"{name}.q_weight"] * self.weights[f"{name}.k_weight"]
        rms = (streams.square().mean(-1) + eps).rsqrt() * (keys.square().mean(-1) + eps).rsqrt()
        dots = (streams * gains * keys).sum(-1) * rms * size**-0.5
        gate = torch.sigmoid(torch.copysign(dots.abs().clamp(min=1e-6).sqrt(), dots))
        return self.weights.round(streams + gate[..., None] * value[:, None])

    def _draft_heads(
        self,
        main_x: Tensor,
        stages: list[LayerTrace],
        raw: Tensor,
        anchor_id: int,
        previous_ids: Sequence[int] | None,
    ) -> DraftTrace:
        last = f"mtp.{len(stages) - 1}"
        normalized = self.weights.norm(raw, f"{last}.norm")
        base = normalized @ self.weights["head"].T
        embeddings = self.weights[f"{last}.markov_head.embed"]
        transition, previous, token_ids = [], [], []
        for position in range(len(raw)):
            known = [anchor_id, *token_ids] if previous_ids is None else previous_ids
            previous.append(embeddings[known[position]])
            transition.append(previous[-1] @ self.weights[f"{last}.markov_head.head"].T)
            token_ids.append(int((base[position] + transition[-1]).argmax()))
        confidence = self.weights[f"{last}.confidence_head.proj"][0]
        before = torch.stack(previous)
        return DraftTrace(
            main_x=main_x,
            stages=stages,
            raw=raw,
            normalized=normalized,
            base_logits=base,
            transition_logits=torch.stack(transition),
            confidence_raw=torch.cat([raw, before], dim=-1) @ confidence,
            confidence_normalized=torch.cat([normalized, before], dim=-1) @ confidence,
            token_ids=token_ids,
        )
