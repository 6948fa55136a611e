"""Ops of the network for training: the reference's formulas, as a GPU likes them.

The reference keeps a row's bits the same in every batch and works in parts that fit a core's cache.
Training needs neither; it needs few passes over memory. Same signatures and same arithmetic up to
the order of sums and, in bfloat16, the rounding of a few products. Knows nothing of layers.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.kernels.reference import engram, norm_rope, quant
from deepinfer.kernels.reference.pointwise import silu
from training.sinkhorn import sinkhorn

Function = Callable[..., Tensor]


def training_kernels(*, compiled: bool = False, quantise_caches: bool = True) -> KernelSet:
    """The ops. compiled: element-wise ones go through torch.compile, which makes one pass of each.

    quantise_caches: whether what the caches hold is rounded to their formats, with the gradient
    passed straight through.
    """

    def fast(function: Function) -> Function:
        return torch.compile(function) if compiled else function

    if compiled:
        # A version for the first shape, one for all others, with and without gradients, by dtype:
        # more than the default allows.
        torch._dynamo.config.recompile_limit = 64

    def cache(function: Function) -> Function:
        return partial(_through, fast(function)) if quantise_caches else _keep

    return replace(
        load_kernels(),
        name="training",
        linear=linear,
        linear_float32=linear_float32,
        linear_quantised=linear,
        grouped_linear=grouped_linear,
        rms_norm=fast(norm_rope.rms_norm),
        rotate=fast(rotate),
        round_trip_window=cache(quant.round_trip_fp8),
        round_trip_entry=cache(quant.round_trip_nvfp4),
        round_trip_index=cache(quant.round_trip_mxfp4),
        hyper_mix=partial(hyper_mix, fast(_coefficients)),
        hyper_collapse=fast(hyper_collapse),
        hyper_expand=fast(hyper_expand),
        route=fast(_route),
        swiglu=fast(swiglu),
        experts=partial(experts, fast(swiglu)),
        engram_gate=fast(engram.engram_gate),
    )


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., in] times weight [out, in], in x's dtype."""
    return F.linear(x, weight.to(x.dtype))


def linear_float32(x: Tensor, weight: Tensor) -> Tensor:
    """As `linear`, then float32. The product is rounded to x's dtype: a pass less over memory."""
    return F.linear(x, weight.to(x.dtype)).to(torch.float32)


def grouped_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, G, in] times weight [G * out, in], group by group -> [T, G * out]."""
    groups = weight.to(x.dtype).unflatten(0, (x.shape[1], -1))
    return torch.einsum("tgi,goi->tgo", x, groups).flatten(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the trailing channels, in real numbers: compilers have no complex ones.

    x [T, ..., C]; cos and sin float32 [T, R].
    """
    pairs = cos.shape[-1]
    shape = (cos.shape[0], *(1,) * (x.dim() - 2), pairs)
    cos, sin = cos.view(shape), sin.view(shape)
    kept, turned = x.split((x.shape[-1] - 2 * pairs, 2 * pairs), dim=-1)
    real, imaginary = turned.to(torch.float32).unflatten(-1, (pairs, 2)).unbind(-1)
    both = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), -1)
    return torch.cat((kept, both.flatten(-2).to(x.dtype)), -1)


def hyper_mix(
    coefficients: Callable[..., tuple[Tensor, Tensor, Tensor]],
    streams: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    *,
    norm_eps: float,
    eps: float,
    num_iters: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """As the reference's: streams [T, M, D] -> pre [T, M], post [T, M], comb [T, M, M], float32."""
    mixed = F.linear(streams.flatten(1), fn.to(streams.dtype))
    pre, post, logits = coefficients(streams, mixed, scale, base, norm_eps, eps)
    return pre, post, sinkhorn(logits, eps, num_iters)


def _coefficients(
    streams: Tensor, mixed: Tensor, scale: Tensor, base: Tensor, norm_eps: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """From the product with `fn` to pre, post and the logits of comb."""
    num = streams.shape[1]
    square = streams.flatten(1).to(torch.float32).square().mean(-1, keepdim=True)
    mixed = mixed.to(torch.float32) * torch.rsqrt(square + norm_eps)
    pre, post, comb = mixed.split((num, num, num**2), -1)
    pre_base, post_base, comb_base = base.split((num, num, num**2))
    pre = torch.sigmoid(pre * scale[0] + pre_base) + eps
    post = 2 * torch.sigmoid(post * scale[1] + post_base)
    return pre, post, (comb * scale[2] + comb_base).unflatten(-1, (num, num))


def hyper_collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """[T, M, D], [T, M] -> [T, D]."""
    parts = [streams[:, a].to(torch.float32) * pre[:, a, None] for a in range(pre.shape[1])]
    return sum(parts[1:], parts[0]).to(streams.dtype)


def hyper_expand(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New stream b = post[b] * y + sum over a of comb[a, b] * stream a: [T, M, D]."""
    written = post[..., None] * y.to(torch.float32)[:, None]
    for a in range(streams.shape[1]):
        written = written + comb[:, a, :, None] * streams[:, a, None].to(torch.float32)
    return written.to(streams.dtype)


def _route(logits: Tensor, bias: Tensor, topk: int, scale: float) -> tuple[Tensor, Tensor]:
    """As the reference's, but ties fall anywhere: expert ids [T, topk] and weights [T, topk]."""
    score = torch.sqrt(F.softplus(logits))
    ids = (score.detach() + bias).topk(topk, -1).indices
    chosen = score.gather(1, ids)
    return ids, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scale


def swiglu(gate: Tensor, up: Tensor, limit: float, weight: Tensor | None = None) -> Tensor:
    """silu(gate) * up, both clamped, times `weight`: float32 inside, one rounding."""
    wide = silu(gate.to(torch.float32).clamp(max=limit))
    product = wide * up.to(torch.float32).clamp(-limit, limit)
    return (product if weight is None else product * weight).to(gate.dtype)


def experts(
    activation: Function,
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
    limit: float,
) -> Tensor:
    """As the reference's, computed for every expert and weighed with 0 where a row did not ask.

    Three large products instead of a sort and many small ones: with a dozen narrow experts the
    wasted arithmetic costs less than moving rows about, and no size depends on the data.
    """
    num_experts, inner, _ = w1.shape
    shares = torch.zeros(len(x), num_experts, device=x.device).scatter(1, ids, weights)
    gate, up = linear(x, w1.flatten(0, 1)), linear(x, w3.flatten(0, 1))
    shape = (num_experts, inner)
    hidden = activation(
        gate.unflatten(-1, shape), up.unflatten(-1, shape), limit, shares[..., None]
    )
    return linear(hidden.flatten(1), w2.permute(1, 0, 2).flatten(1))


def _keep(x: Tensor) -> Tensor:
    return x


def _through(round_trip: Function, x: Tensor) -> Tensor:
    """Rounded forward, the identity backward; outside of what is compiled."""
    return quant._through(x, round_trip(x.detach()))
