"""Formulas of the oracle that need no weight: rotary embedding, selections, Engram hashing.

Pure functions, written from the model specification ("spec"). They know no layer and no checkpoint.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from deepinfer.config.model import ModelConfig


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
