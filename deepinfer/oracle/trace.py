"""What a forward and a draft of the oracle leave behind, and what its layers hand on.

Every tensor is fp32 unless said otherwise. S rows (tokens), hc streams, H hidden, W entries.
"""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Mix:
    """One sublayer's hyper-connection, fp32: pre [S, hc], post [S, hc], comb [S, from, to]."""

    pre: Tensor
    post: Tensor
    comb: Tensor


@dataclass(frozen=True)
class LayerTrace:
    """What went into and came out of the two sublayers of one layer, fp32, S rows (spec 3)."""

    mix_attn: Mix
    attn_in: Tensor  # [S, H] after attn_norm
    attn_out: Tensor  # [S, H] before the expansion
    mix_ffn: Mix  # its `pre` collapses the streams for the next layer
    ffn_in: Tensor  # [S, H] after ffn_norm
    ffn_out: Tensor  # [S, H] before the expansion
    router_ids: Tensor  # int64 [S, experts per token], best first
    router_weights: Tensor  # [S, experts per token]
    streams: Tensor  # [S, hc, H] after the layer


@dataclass
class Trace:
    """What one forward of S tokens computed: fp32 unless said otherwise, dicts by layer id."""

    streams_in: Tensor  # [S, hc, H] the embedding, repeated
    hash_ids: Tensor  # int64 [S, engram layers, n-gram sizes * heads] table rows
    layers: list[LayerTrace] = field(default_factory=list)
    engram_out: dict[int, Tensor] = field(default_factory=dict)  # [S, hc, H]
    compressed_kv: dict[int, Tensor] = field(default_factory=dict)  # [W, head_dim] as read
    index_keys: dict[int, Tensor] = field(default_factory=dict)  # [W, index_head_dim]
    index_scores: dict[int, Tensor] = field(default_factory=dict)  # [S, W], -inf: not visible
    candidates: dict[int, Tensor] = field(default_factory=dict)  # bool [S, W]
    topk: dict[int, Tensor] = field(default_factory=dict)  # int64 [S, <= index_topk], -1 padded
    target_features: Tensor = field(init=False)  # [S, taps * H] what the draft reads
    collapsed: Tensor = field(init=False)  # [S, H] before the last norm
    final_hidden: Tensor = field(init=False)  # [S, H]
    logits: Tensor = field(init=False)  # [S, V]


@dataclass(frozen=True)
class DraftTrace:
    """One draft block of B positions, fp32 (spec 11.3)."""

    main_x: Tensor  # [S, H] projected target features
    stages: list[LayerTrace]
    raw: Tensor  # [B, H] collapsed streams
    normalized: Tensor  # [B, H]
    base_logits: Tensor  # [B, V]
    transition_logits: Tensor  # [B, V]; the draft's logits are base + transition
    confidence_raw: Tensor  # [B] the released dot product, before temperature and sigmoid
    confidence_normalized: Tensor  # [B] the same with `normalized` in place of `raw`
    token_ids: list[int]  # [B] the best token of each position


@dataclass
class Sources:
    """What the nearest preceding source layers left for the layers after them (spec 7.8)."""

    latents: Tensor | None = None  # [W, head_dim]
    entries: Tensor | None = None  # [W, head_dim]
    index_keys: Tensor | None = None  # [W, index_head_dim]
    selected: Tensor | None = None  # bool [S, W]
    candidates: Tensor | None = None  # bool [S, W]
