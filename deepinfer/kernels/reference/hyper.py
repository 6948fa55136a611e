"""Hyper-connections: how a sublayer reads from and writes to the M residual streams (spec 4)."""

import torch
from torch import Tensor

from deepinfer.kernels.reference.linear import linear
from deepinfer.kernels.reference.pointwise import sigmoid

# Rows that are worked on together: all streams of so many fit into a core's cache in float32.
_ROWS = 64


def hyper_mix(
    streams: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    *,
    norm_eps: float,
    eps: float,
    num_iters: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The coefficients of one sublayer, float32: pre [T, M], post [T, M], comb [T, M, M].

    streams [T, M, D]; fn float32 [M * (M + 2), M * D]; scale float32 [3]; base float32 [M * (M +
    2)]. comb[t, a, b] is the share of source stream a in destination stream b; Sinkhorn makes its
    columns sum to one. `pre` serves the NEXT sublayer's collapse, `post` and `comb` this one's
    expand.
    """
    num_streams = streams.shape[1]
    flat = streams.flatten(1).to(torch.float32)
    # One statistic a token over all streams; projecting first lets the scale be applied to M * (M +
    # 2) values instead of M * D.
    rescale = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    mixed = linear(flat, fn) * rescale
    pre, post, comb = mixed.split((num_streams, num_streams, num_streams**2), -1)
    pre_base, post_base, comb_base = base.split((num_streams, num_streams, num_streams**2))
    pre = sigmoid(pre * scale[0] + pre_base) + eps
    post = 2 * sigmoid(post * scale[1] + post_base)
    comb = (comb * scale[2] + comb_base).unflatten(-1, (num_streams, num_streams))
    return pre, post, _sinkhorn(comb, eps, num_iters)


def _sinkhorn(logits: Tensor, eps: float, num_iters: int) -> Tensor:
    """Alternately normalise rows and columns of exp(logits); the softmax is the first row step."""
    # In place where only a fresh sum is written to: these hundred small calls show in a profile.
    floor = logits.new_full((), eps)  # a Python number would be made a tensor in every call
    comb = torch.softmax(logits, -1) + floor
    comb = comb / comb.sum(-2, keepdim=True).add_(floor)
    for _ in range(num_iters - 1):
        comb = comb / comb.sum(-1, keepdim=True).add_(floor)
        comb = comb / comb.sum(-2, keepdim=True).add_(floor)
    return comb


def hyper_collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """Weighted sum of the streams: [T, M, D], [T, M] -> [T, D], float32 inside, one rounding."""
    parts = [
        (p[:, None] @ s.to(torch.float32)).squeeze(1).to(streams.dtype)
        for p, s in zip(pre.split(_ROWS), streams.split(_ROWS), strict=True)
    ]
    return torch.cat(parts)


def hyper_expand(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Write sublayer output y [T, D] back: new stream b = post[b] * y + sum over a of comb[a, b] *
    stream a.
    """
    parts = []
    for out, s, p, c in zip(
        y.split(_ROWS), streams.split(_ROWS), post.split(_ROWS), comb.split(_ROWS), strict=True
    ):
        carried = c.transpose(1, 2) @ s.to(torch.float32)
        written = p[..., None] * out.to(torch.float32)[:, None] + carried
        parts.append(written.to(streams.dtype))
    return torch.cat(parts)
