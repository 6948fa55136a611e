"""THE ORACLE: the whole text model once more, slow and plain, as the judge of the fast one.

One file, written from the model specification ("spec") alone. A forward recomputes every position
of one sequence. All arithmetic is fp32; `dtype=bfloat16` adds the roundings that the spec names and
nothing else. It knows no cache, batch, chunk, replay, device or image: token ids in, every
intermediate out. It shares no code with deepinfer.model or deepinfer.kernels, so that the two can
be compared. Read it from the end: `Oracle` first, then what it is made of.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from deepinfer.config.model import ModelConfig

# -- Formats, decoding, linear maps, roundings (spec 13.2, 14) -------------------------------------

QUANT_GROUP = 32  # channels per scale of every FP8 and MXFP4 format (spec 13.2, 14.1 - 14.3)
NVFP4_GROUP = 16  # channels per scale of a compressed entry (spec 14.4)
E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Weights:
    """Released tensors by name, decoded at first use and kept, with the arithmetic over them.

    Every tensor that it returns is fp32. With dtype=bfloat16 `round` rounds to bf16 values, else it
    does nothing. cache_round_trip and act_quant: see `Oracle`.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        *,
        eps: float,
        dtype: torch.dtype,
        cache_round_trip: bool,
        act_quant: bool,
    ) -> None:
        assert dtype in (torch.float32, torch.bfloat16), dtype
        self.tensors = tensors
        self.eps = eps
        self.dtype = dtype
        self.cache_round_trip = cache_round_trip
        self.act_quant = act_quant
        self._decoded: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor of that released name, or the matrix or gain `name`.weight."""
        if name not in self._decoded:
            stored = self.tensors[name if name in self.tensors else f"{name}.weight"]
            self._decoded[name] = decode(stored, self.tensors.get(f"{name}.scale"))
        return self._decoded[name]

    def rows(self, name: str, rows: Tensor) -> Tensor:
        """Decode rows [...] of an FP8 table with one scale per row and 32 columns: [..., cols].

        The table may be a memory map of 100 GB, so nothing but these rows is touched.
        """
        values = self.tensors[f"{name}.weight"].view(torch.uint8)[rows].view(torch.float8_e4m3fn)
        scales = self.tensors[f"{name}.scale"].view(torch.uint8)[rows].view(torch.float8_e8m0fnu)
        return values.float() * scales.float().repeat_interleave(QUANT_GROUP, dim=-1)

    def round(self, x: Tensor) -> Tensor:
        """Round to the values that the computing dtype has; the result is fp32 again."""
        return x.to(self.dtype).float()

    def linear(self, x: Tensor, name: str) -> Tensor:
        """x [..., K] times the matrix [N, K], summed in fp32, rounded: [..., N] (spec 14.5)."""
        if self.act_quant and f"{name}.scale" in self.tensors:
            x = fp8_round_trip(x)
        return self.round(x @ self[name].T)

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMSNorm over the last axis with its gain (spec 5)."""
        return self.round(x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self[name])

    def stored(self, x: Tensor, round_trip: Callable[[Tensor], Tensor]) -> Tensor:
        """x as a cache returns it after keeping it in the format of `round_trip`."""
        return round_trip(x) if self.cache_round_trip else x


def decode(weight: Tensor, scale: Tensor | None) -> Tensor:
    """Return a released tensor in fp32, exactly (spec 13.2).

    int8 is packed FP4 [rows, cols / 2] with a scale per row and 32 columns; FP8 has a scale per
    32 x 32 block; anything else has scale None. Scales are e8m0 (float8_e8m0fnu or uint8).
    """
    if scale is None:
        return weight.float()
    powers = scale.view(torch.float8_e8m0fnu).float()
    if weight.dtype == torch.int8:
        packed = weight.view(torch.uint8)
        codes = torch.stack([packed & 15, packed >> 4], dim=-1)  # the low nibble is the even column
        table = torch.tensor(E2M1_VALUES)
        values = torch.cat([table, -table])[codes.flatten(-2).long()]
    else:
        values = weight.float()
        powers = powers.repeat_interleave(QUANT_GROUP, dim=0)[: len(values)]
    return values * powers.repeat_interleave(QUANT_GROUP, dim=1)[:, : values.shape[1]]


def fp8_round_trip(x: Tensor) -> Tensor:
    """Round [..., C] fp32 to e4m3 under a power-of-two scale per 32 channels (spec 14.1, 14.2)."""
    groups = x.unflatten(-1, (-1, QUANT_GROUP))
    scale = _power_of_two_at_least(_largest(groups, floor=1e-4) / E4M3_MAX)
    return (_to_e4m3(groups / scale) * scale).flatten(-2)


def mxfp4_round_trip(x: Tensor) -> Tensor:
    """Round [..., C] fp32 to e2m1 under a power-of-two scale per 32 channels (spec 14.3)."""
    groups = x.unflatten(-1, (-1, QUANT_GROUP))
    scale = _power_of_two_at_least(_largest(groups, floor=E2M1_MAX * 2.0**-126) / E2M1_MAX)
    return (_to_e2m1(groups / scale) * scale).flatten(-2)


def nvfp4_round_trip(x: Tensor) -> Tensor:
    """Round [..., C] fp32 to e2m1 under an e4m3 scale per 16 channels (spec 14.4)."""
    groups = x.unflatten(-1, (-1, NVFP4_GROUP))
    scale = _to_e4m3(_largest(groups, floor=E2M1_MAX * 2.0**-9) / E2M1_MAX)
    return (_to_e2m1(groups / scale) * scale).flatten(-2)


def _largest(groups: Tensor, floor: float) -> Tensor:
    return groups.abs().amax(-1, keepdim=True).clamp(min=floor)


def _power_of_two_at_least(x: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(x)  # x = mantissa * 2^exponent, mantissa in [0.5, 1)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return ((exponent + 127) << 23).view(torch.float32)  # exact, unlike exp2, which may miss an ulp


def _to_e4m3(x: Tensor) -> Tensor:
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()


def _to_e2m1(x: Tensor) -> Tensor:
    x = x.clamp(-E2M1_MAX, E2M1_MAX)
    step = torch.where(x.abs() < 2, 0.5, torch.where(x.abs() < 4, 1.0, 2.0))  # e2m1's spacing at x
    return torch.round(x / step) * step  # ties go to the even multiple, which is e2m1's even code


# -- Formulas that need no weight: rotary embedding, selections, Engram hashing --------------------


def rope_frequencies(config: ModelConfig, *, compressed: bool) -> Tensor:
    """Return the angles per position, fp32 [qk_rope_head_dim / 2] (spec 6).

    compressed: those of the layers with a ratio above 0, where YaRN applies.
    """
    dim = config.qk_rope_head_dim
    theta = config.compress_rope_theta if compressed else config.rope_theta
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if not compressed:
        return frequencies
    yarn = config.rope_scaling

    def pair_with(num_turns: float) -> float:  # ... so many turns over the original length
        turn = yarn.original_max_position_embeddings / (2 * math.pi * num_turns)
        return dim * math.log(turn) / (2 * math.log(theta))

    low = max(math.floor(pair_with(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_with(yarn.beta_slow)), dim - 1)
    width = high - low if high != low else 1e-3
    ramp = ((torch.arange(dim // 2) - low) / width).clamp(0, 1)
    return frequencies / yarn.factor * ramp + frequencies * (1 - ramp)


def turns(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Return the rotations of positions [S] as complex numbers [S, pairs]."""
    angles = positions.float()[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate the trailing channels of x, [S, C] or [S, heads, C], in adjacent pairs (spec 6)."""
    rope_dim = 2 * turns.shape[-1]
    turns = turns[:, None] if x.dim() > turns.dim() else turns
    pairs = torch.view_as_complex(x[..., -rope_dim:].unflatten(-1, (-1, 2)).contiguous())
    return torch.cat([x[..., :-rope_dim], torch.view_as_real(pairs * turns).flatten(-2)], dim=-1)


def sinkhorn(logits: Tensor, num_iterations: int, eps: float) -> Tensor:
    """Normalise rows and columns of [..., n, n] in turn, columns last (spec 4)."""
    matrix = logits.softmax(-1) + eps  # the first normalisation of the rows
    matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    for _ in range(num_iterations - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    return matrix


def top_indices(scores: Tensor, k: int) -> Tensor:
    """Return the indices of the k best of [..., N], best first; the lower index wins a tie."""
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]


def select_entries(scores: Tensor, k: int) -> Tensor:
    """Return the best entries of each row of scores [S, W] (spec 7.4): [S, min(k, W)] int64.

    Ascending, then -1. A score of -inf means that the entry may not be taken.
    """
    best = top_indices(scores, k)
    allowed = scores.gather(1, best) > -math.inf
    none = scores.shape[1]  # sorts behind every entry
    ordered = torch.where(allowed, best, none).sort(dim=1).values
    return torch.where(ordered == none, -1, ordered)


def mask_of(selected: Tensor, num_entries: int) -> Tensor:
    """Turn rows of indices padded with -1, [S, k], into a mask bool [S, num_entries]."""
    mask = torch.zeros(len(selected), num_entries + 1, dtype=torch.bool)
    return mask.scatter(1, selected % (num_entries + 1), True)[:, :num_entries]  # -1: extra column


def candidate_mask(scores: Tensor, num_blocks: int, block_size: int) -> Tensor:
    """Return which entries of scores [S, W] (-inf: not visible) lie in the best blocks (spec 7.5).

    A block counts as its best visible entry; the block of the newest visible entry always stays.
    """
    visible = scores > -math.inf
    num_entries = scores.shape[1]
    padding = torch.full((len(scores), -num_entries % block_size), -math.inf)
    padded = torch.cat([scores, padding], dim=1)
    block_ids = torch.arange(padded.shape[1] // block_size)
    blocks = padded.unflatten(1, (len(block_ids), block_size))
    newest = (visible.sum(1, keepdim=True) - 1) // block_size  # -1: the row sees nothing
    block_scores = blocks.amax(2).masked_fill(block_ids == newest, math.inf)
    best = top_indices(block_scores, num_blocks)
    kept = mask_of(best, len(block_ids)).repeat_interleave(block_size, dim=1)[:, :num_entries]
    return kept & visible


def engram_rows(config: ModelConfig, token_map: np.ndarray, token_ids: Sequence[int]) -> Tensor:
    """Return the Engram table rows of every position (spec 9.2, 9.3).

    token_map [V]: compressed ids. Result: int64 [S, engram layers, n-gram sizes * heads].
    """
    length, heads = config.engram_max_ngram_size, config.engram_n_heads
    compressed = token_map[np.asarray(token_ids)]
    padding = np.full(length - 1, token_map[config.engram_pad_token_id])
    history = np.concatenate([padding, compressed])
    back = [history[length - 1 - k :][: len(compressed)] for k in range(length)]  # k tokens ago
    primes = engram_primes(config)
    multipliers = engram_multipliers(config, int(token_map.max()) + 1)
    rows = np.zeros((len(compressed), *primes.shape), dtype=np.int64)
    for table in range(len(primes)):
        rolling = back[0] * multipliers[table, 0]
        for k in range(1, length):
            rolling = rolling ^ (back[k] * multipliers[table, k])
            columns = slice((k - 1) * heads, k * heads)
            rows[:, table, columns] = rolling[:, None] % primes[table, columns]
    return torch.from_numpy(rows + np.cumsum(primes, axis=1) - primes)


def engram_primes(config: ModelConfig) -> np.ndarray:
    """Return the bucket sizes, int64 [engram layers, n-gram sizes * heads]: distinct primes."""
    used: set[int] = set()
    primes = []
    for _table in config.engram_layer_ids:
        for _ngram_size in range(2, config.engram_max_ngram_size + 1):
            prime = config.engram_vocab_size  # every n-gram size searches from the start again
            for _head in range(config.engram_n_heads):
                while prime in used or not _is_prime(prime):
                    prime += 1
                used.add(prime)
                primes.append(prime)
    return np.array(primes, dtype=np.int64).reshape(len(config.engram_layer_ids), -1)


def engram_multipliers(config: ModelConfig, num_compressed_ids: int) -> np.ndarray:
    """Return the odd factors of the rolling hash, int64 [engram layers, engram_max_ngram_size]."""
    bound = (2**63 - 1) // num_compressed_ids // 2  # keeps compressed id * factor inside int64
    draws = [
        np.random.default_rng(10007 * layer).integers(
            0, bound, size=config.engram_max_ngram_size, dtype=np.int64
        )
        for layer in config.engram_layer_ids
    ]
    return np.array(draws, dtype=np.int64).reshape(-1, config.engram_max_ngram_size) * 2 + 1


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


# -- What a forward and a draft leave behind -------------------------------------------------------


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

    latents: Tensor = field(init=False)  # [W, head_dim] before rotation and round trip
    entries: Tensor = field(init=False)  # [W, head_dim] keys and values at once
    index_keys: Tensor = field(init=False)  # [W, index_head_dim]
    selected: Tensor = field(init=False)  # bool [S, W]
    candidates: Tensor | None = None  # bool [S, W]; None: every visible entry is one


# -- Attention: window, entries, indexer; and the draft's attention (spec 7, 11.3) -----------------


class Attention:
    """Attention of every layer and every draft stage, by the prefix of its tensors' names."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights

    def backbone(
        self, layer: int, x: Tensor, sources: Sources, trace: Trace, decoder_start: int = 0
    ) -> Tensor:
        """Attention [S, H] -> [S, H] over the window and, at a ratio above 0, selected entries.

        From the first layer of ratio 1 on, windows begin at position decoder_start (spec 7.9).
        """
        prefix = f"layers.{layer}"
        compressed = self.config.compress_ratios[layer] > 0
        positions = torch.arange(len(x))
        turns = self._turns(positions, compressed=compressed)
        query_latent = self._query_latent(prefix, x)
        keys = self._window_keys(prefix, x, turns)
        age = positions[:, None] - positions
        allowed = (age >= 0) & (age < self.config.sliding_window)
        if 1 in self.config.compress_ratios[: layer + 1]:
            allowed &= positions >= decoder_start
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
        frequencies = rope_frequencies(self.config, compressed=compressed)
        return turns(positions, frequencies)

    def _rotate(self, x: Tensor, turns: Tensor) -> Tensor:
        return self.weights.round(rotate(x, turns))

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
        """Publish which entries each row reads, if this layer is an index source (spec 7.4)."""
        config = self.config
        if layer not in config.index_source_layer_ids:
            return
        scores = self._index_scores(f"layers.{layer}.attn", x, query_latent, sources.index_keys)
        num_visible = (torch.arange(len(x)) + 1) // config.compress_ratios[layer]
        hidden = torch.arange(scores.shape[1]) >= num_visible[:, None]
        scores = trace.index_scores[layer] = scores.masked_fill(hidden, -torch.inf)
        if sources.candidates is not None:
            scores = scores.masked_fill(~sources.candidates, -torch.inf)
        trace.topk[layer] = select_entries(scores, config.index_topk)
        sources.selected = mask_of(trace.topk[layer], scores.shape[1])
        if layer == config.candidate_source_layer_id:
            sources.candidates = trace.candidates[layer] = candidate_mask(
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


# -- The model -------------------------------------------------------------------------------------


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
    def forward(self, token_ids: Sequence[int], decoder_start: int = 0) -> Trace:
        """Run all layers over all positions of one sequence, from position 0 (spec 3).

        decoder_start: of bounded replay, as in `Attention.backbone`.
        """
        config = self.config
        streams, pre = self._embed(token_ids)
        rows = engram_rows(config, self.token_map, token_ids)
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
                return self.attention.backbone(layer, x, sources, trace, decoder_start)

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
        config, size = self.config, self.config.dspark_block_size
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
        comb = sinkhorn(comb, self.config.hc_sinkhorn_iters, eps)
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
        ids = top_indices(scores + self.weights[f"{ffn}.gate.bias"], top_k)
        chosen = scores.gather(1, ids)  # the bias helps to choose and does not weigh
        total = chosen.sum(-1, keepdim=True) + 1e-20
        return ids, chosen / total * self.config.routed_scaling_factor

    def _experts(self, ffn: str, x: Tensor, ids: Tensor, shares: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for expert in ids.unique().tolist():  # ascending: the order of the released sum
            rows, places = torch.nonzero(ids == expert, as_tuple=True)
            share = shares[rows, places, None]
            total[rows] += self._swiglu(f"{ffn}.experts.{expert}", x[rows], share)
        return self.weights.round(total + self._swiglu(f"{ffn}.shared_experts", x, 1.0))

    def _swiglu(self, name: str, x: Tensor, share: Tensor | float) -> Tensor:
        limit = self.config.swiglu_limit
        gate = self.weights.linear(x, f"{name}.w1").clamp(max=limit)
        up = self.weights.linear(x, f"{name}.w3").clamp(-limit, limit)
        return self.weights.linear(self.weights.round(share * silu(gate) * up), f"{name}.w2")

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
        transition = torch.zeros_like(base)
        before = embeddings.new_zeros(len(raw), embeddings.shape[1])
        token_ids: list[int] = []
        for position in range(len(raw)):
            known = [anchor_id, *token_ids] if previous_ids is None else previous_ids
            before[position] = embeddings[known[position]]
            transition[position] = before[position] @ self.weights[f"{last}.markov_head.head"].T
            token_ids.append(int((base[position] + transition[position]).argmax()))
        confidence = self.weights[f"{last}.confidence_head.proj"][0]
        return DraftTrace(
            main_x=main_x,
            stages=stages,
            raw=raw,
            normalized=normalized,
            base_logits=base,
            transition_logits=transition,
            confidence_raw=torch.cat([raw, before], dim=-1) @ confidence,
            confidence_normalized=torch.cat([normalized, before], dim=-1) @ confidence,
            token_ids=token_ids,
        )
