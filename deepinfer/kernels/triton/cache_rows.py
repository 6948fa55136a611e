"""Making cache rows: RMS norm, rotation and quantisation in one pass (spec 5, 6, 14.1 to 14.4, 15).

One program makes one row, so a row's bits do not depend on its batch. A row is held as its even and
its odd channels: a rotation's pairs, and the two nibbles of a byte, are then elementwise.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.cache_formats import (
    FP8,
    MXFP4,
    MXFP4_VALUES,
    NVFP4,
    code_of,
    narrow,
    rounded,
    scale_of,
    value_of,
    widen,
)
from deepinfer.kernels.triton.sizes import next_power_of_2
from deepinfer.kernels.values import Target


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x bf16 [..., C], weight [C] -> bf16 [..., C]: float32 inside, one rounding."""
    channels = x.shape[-1]
    flat = x.reshape(-1, channels)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if flat.numel():
        block = next_power_of_2(channels)
        _norm_kernel[(flat.shape[0],)](
            *(flat, weight, out, flat.stride(0), eps),
            C=channels,
            BLOCK=block,
            NATIVE=x.is_cuda,
            **chain.launch(x.device),
            num_warps=norm_warps(channels),
        )
    return out


def norm_warps(channels: int) -> int:
    """Warps of a row that is normed: another number gives other bits."""
    return max(1, min(8, next_power_of_2(channels) // 512))


def encode_warps(channels: int) -> int:
    """Warps of a row that is encoded, for which the same holds."""
    return max(1, min(4, channels // 128))


def window_rows(
    x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, into: Target | None = None
) -> Tensor:
    """bf16 [T, C], the raw projection -> uint8 [T, C + C/32]: normed, rotated, in FP8.

    into: the rows are written there, and its store, uint8 [*, C + C/32], is returned.

    cos, sin float32 [T, R] turn the last 2R channels. C is a power of two, 32 at least; rows of x
    may lie apart. Rounds to bf16 after the norm and after the rotation, as the reference does.
    """
    if into is not None:
        return _encode(x, (cos, sin), into.store, FP8, weight, eps, places=into.rows)
    return _encode(x, (cos, sin), empty_window(x), FP8, weight, eps)


def empty_window(x: Tensor) -> Tensor:
    """What `window_rows` makes of x, not filled."""
    return _bytes(x, x.shape[-1] + x.shape[-1] // 32)


def entry_rows(latent: Tensor, cos: Tensor, sin: Tensor, is_fp4: bool) -> Tensor:
    """Normed latents bf16 [E, C] -> uint8 [E, C/2 + C/16] in NVFP4, or as `window_rows`."""
    channels = latent.shape[-1]
    if not is_fp4:
        return _encode(latent, (cos, sin), _bytes(latent, channels + channels // 32), FP8)
    out = _bytes(latent, channels // 2 + channels // 16)
    return _encode(latent, (cos, sin), out, NVFP4)


def index_rows(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """Raw index keys bf16 [E, C] -> uint8 [E, C/2 + C/32]: normed, rotated, in MXFP4."""
    out = _bytes(x, x.shape[-1] // 2 + x.shape[-1] // 32)
    return _encode(x, (cos, sin), out, MXFP4, weight, eps)


def index_query(query: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """bf16 [T, H, C] -> the same shape: rotated, then rounded as MXFP4 rounds."""
    flat = query.reshape(-1, query.shape[-1])
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    return _encode(flat, (cos, sin), out, MXFP4_VALUES, heads=query.shape[1])


def _bytes(x: Tensor, width: int) -> Tensor:
    return torch.empty(x.shape[0], width, dtype=torch.uint8, device=x.device)


def _encode(
    x: Tensor,
    angles: tuple[Tensor, Tensor],
    out: Tensor,
    form: tl.constexpr,
    weight: Tensor | None = None,
    eps: float = 0.0,
    heads: int = 1,
    places: Tensor | None = None,
) -> Tensor:
    """Fills out, a row for each row of x [rows, C], in order or at `places` int64 [rows]; `heads`
    rows in turn have the same angles."""
    if x.shape[0]:
        if x.stride(1) != 1:
            x = x.contiguous()
        _encode_kernel[(x.shape[0],)](
            *(x, x if weight is None else weight, *angles, out, places, x.stride(0), eps, heads),
            C=x.shape[1],
            R=angles[0].shape[1],
            HAS_NORM=weight is not None,
            FORM=form.value,
            NATIVE=x.is_cuda,
            **chain.launch(x.device),
            num_warps=encode_warps(x.shape[1]),
        )
    return out


@triton.jit
def _norm_kernel(
    x, weight, out, stride, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, NATIVE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    chain.start(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < C
    value = widen(tl.load(x + row * stride + channel, mask=inside, other=0.0))
    # Before the sum, at which warps meet: no load is moved across that.
    gain = tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.div_rn(tl.sum(value * value, 0), C * 1.0) + eps)
    value = value * scale * gain
    tl.store(out + row * C + channel, narrow(rounded(value, NATIVE)), mask=inside)


@triton.jit
def _encode_kernel(
    x, weight, cos, sin, out, places, stride, eps, heads, C: tl.constexpr, R: tl.constexpr,
    HAS_NORM: tl.constexpr, FORM: tl.constexpr, NATIVE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    chain.start(CHAINED)
    HALF: tl.constexpr = C // 2
    GROUPS: tl.constexpr = C // 16 if FORM == NVFP4 else C // 32
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, C)
    value = widen(tl.load(x + row * stride + channel))
    pair = tl.arange(0, HALF) - (HALF - R)
    where = (row // heads) * R + pair
    # All loads come before the sum, at which warps meet: none is moved across that.
    c = tl.load(cos + where, mask=pair >= 0, other=1.0)
    s = tl.load(sin + where, mask=pair >= 0, other=0.0)
    place = row
    if places is not None:
        place = tl.load(places + row)
    if HAS_NORM:
        gain = tl.load(weight + channel).to(tl.float32)
        scale = tl.rsqrt(tl.div_rn(tl.sum(value * value, 0), C * 1.0) + eps)
        value = rounded(value * scale * gain, NATIVE)
    even, odd = tl.split(tl.reshape(value, (HALF, 2)))
    # A select, because the pairs that stay may hold infinities: those times 0 are NaN.
    turned_even = tl.where(pair >= 0, rounded(even * c - odd * s, NATIVE), even)
    turned_odd = tl.where(pair >= 0, rounded(even * s + odd * c, NATIVE), odd)

    even = tl.reshape(turned_even, (GROUPS, HALF // GROUPS))
    odd = tl.reshape(turned_odd, (GROUPS, HALF // GROUPS))
    largest = tl.maximum(
        even.to(tl.int32, bitcast=True) & 0x7FFFFFFF, odd.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    )
    code, scale = scale_of(tl.max(largest, 1), FORM)
    scale = scale[:, None]
    if FORM == MXFP4_VALUES:
        both = tl.join(narrow(value_of(even, scale)), narrow(value_of(odd, scale)))
        tl.store(out + row * C + channel, tl.reshape(both, (C,)))
    else:
        even, odd = code_of(even, scale, FORM), code_of(odd, scale, FORM)
        if FORM == FP8:
            size: tl.constexpr = C
            codes = tl.reshape(tl.join(even, odd), (C,))
        else:
            size: tl.constexpr = HALF
            codes = tl.reshape(even | (odd << 4), (HALF,))
        out += place * (size + GROUPS)
        tl.store(out + tl.arange(0, size), codes.to(tl.uint8))
        tl.store(out + size + tl.arange(0, GROUPS), code.to(tl.uint8))
