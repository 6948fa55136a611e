"""Engram: n-gram hash and gate (spec 9.2 to 9.4)."""

import torch
from torch import Tensor

from deepinfer.kernels.reference.pointwise import sigmoid


def engram_rows(window: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """Table rows of each position's n-grams: int64 [T, columns].

    window int64 [T, n]: compressed ids of the token itself and the n - 1 before it; multipliers
    int64 [n]; primes and offsets int64 [columns], ordered by n-gram size 2..n, then head.
    """
    products = window * multipliers
    folded = products[:, 0]
    hashes = []
    for back in range(1, window.shape[1]):
        folded = folded ^ products[:, back]
        hashes.append(folded)
    heads = primes.shape[0] // len(hashes)
    spread = torch.stack(hashes, 1).repeat_interleave(heads, 1)
    return spread % primes + offsets


def engram_gate(
    streams: Tensor, key: Tensor, value: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float
) -> Tensor:
    """Add the gated value to every stream: [T, M, D] in the streams' dtype, float32 inside.

    streams, key [T, M, D]; value [T, D]; q_weight, k_weight [M, D]. The gate of a stream grows with
    the agreement of stream and key, both scaled to unit mean square.
    """
    wide, wide_key = streams.to(torch.float32), key.to(torch.float32)
    both = q_weight.to(torch.float32) * k_weight.to(torch.float32)
    rescale = torch.rsqrt(wide.square().mean(-1) + eps) * torch.rsqrt(
        wide_key.square().mean(-1) + eps
    )
    agreement = (wide * both * wide_key).sum(-1) * rescale * streams.shape[-1] ** -0.5
    # A signed square root, kept away from 0 where its slope is infinite.
    gate = sigmoid(torch.copysign(agreement.abs().clamp_min(1e-6).sqrt(), agreement))
    return (wide + gate[..., None] * value.to(torch.float32)[:, None]).to(streams.dtype)
