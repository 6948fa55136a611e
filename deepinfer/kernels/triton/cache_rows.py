"""Making cache rows: RMS norm, rotation and quantisation in one pass (spec 5, 6, 14.1 to 14.4, 15).

One program makes one row, so a row's bits do not depend on its batch. A row is held as its even and
its odd channels: a rotation's pairs, and the two nibbles of a byte, are then elementwise. Roundings
are done on the bits of float32 and equal reference/quant.py's, which documents the formats.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton import chain
from deepinfer.kernels.values import Target

# Rows of bytes (codes, then scales), or for a query the values those bytes would stand for.
_FP8, _NVFP4, _MXFP4, _MXFP4_VALUES = (tl.constexpr(i) for i in range(4))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x bf16 [..., C], weight [C] -> bf16 [..., C]: float32 inside, one rounding."""
    channels = x.shape[-1]
    flat = x.reshape(-1, channels)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if flat.numel():
        block = triton.next_power_of_2(channels)
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
    return max(1, min(8, triton.next_power_of_2(channels) // 512))


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
        return _encode(x, (cos, sin), into.store, _FP8, weight, eps, places=into.rows)
    return _encode(x, (cos, sin), empty_window(x), _FP8, weight, eps)


def empty_window(x: Tensor) -> Tensor:
    """What `window_rows` makes of x, not filled."""
    return _bytes(x, x.shape[-1] + x.shape[-1] // 32)


def entry_rows(latent: Tensor, cos: Tensor, sin: Tensor, is_fp4: bool) -> Tensor:
    """Normed latents bf16 [E, C] -> uint8 [E, C/2 + C/16] in NVFP4, or as `window_rows`."""
    channels = latent.shape[-1]
    if not is_fp4:
        return _encode(latent, (cos, sin), _bytes(latent, channels + channels // 32), _FP8)
    out = _bytes(latent, channels // 2 + channels // 16)
    return _encode(latent, (cos, sin), out, _NVFP4)


def index_rows(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """Raw index keys bf16 [E, C] -> uint8 [E, C/2 + C/32]: normed, rotated, in MXFP4."""
    out = _bytes(x, x.shape[-1] // 2 + x.shape[-1] // 32)
    return _encode(x, (cos, sin), out, _MXFP4, weight, eps)


def index_query(query: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """bf16 [T, H, C] -> the same shape: rotated, then rounded as MXFP4 rounds."""
    flat = query.reshape(-1, query.shape[-1])
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    return _encode(flat, (cos, sin), out, _MXFP4_VALUES, heads=query.shape[1])


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
def _rounded(x, NATIVE: tl.constexpr):
    """float32 rounded to bf16, as float32. In integers where there is no bf16."""
    if NATIVE:
        return x.to(tl.bfloat16).to(tl.float32)
    bits = x.to(tl.int32, bitcast=True)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return tl.where(is_nan, x, bits.to(tl.float32, bitcast=True))


@triton.jit
def _bf16(x):
    """The upper half of a float32 that is a bf16."""
    bits = x.to(tl.int32, bitcast=True) >> 16
    return bits.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _wide(x):
    """bf16 as float32."""
    bits = x.to(tl.int16, bitcast=True).to(tl.int32)
    return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def _norm_kernel(
    x, weight, out, stride, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, NATIVE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    chain.start(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < C
    value = _wide(tl.load(x + row * stride + channel, mask=inside, other=0.0))
    # Before the sum, at which warps meet: no load is moved across that.
    gain = tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.div_rn(tl.sum(value * value, 0), C * 1.0) + eps)
    value = value * scale * gain
    tl.store(out + row * C + channel, _bf16(_rounded(value, NATIVE)), mask=inside)


@triton.jit
def _fp8_code(x):
    """Magnitude of at most 448 -> e4m3 code, nearest, ties to even."""
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2**-6 codes count steps of 2**-9, which is the last bit of a float32 in [2**14, 2**15).
    steps = (x + 16384.0).to(tl.int32, bitcast=True) & 0xFF
    return tl.where(x < 2.0**-6, steps, normal)


@triton.jit
def _fp4_code(x):
    """Magnitude -> e2m1 code 0 to 7, nearest, ties to even, 7 (6.0) from 5 on."""
    code = (x > 0.25).to(tl.int32) + (x >= 0.75).to(tl.int32) + (x > 1.25).to(tl.int32)
    code += (x >= 1.75).to(tl.int32) + (x > 2.5).to(tl.int32) + (x >= 3.5).to(tl.int32)
    return code + (x > 5.0).to(tl.int32)


@triton.jit
def _code(x, scale, FORM: tl.constexpr):
    """Sign and magnitude of x / scale."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = (bits & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    if FORM == _NVFP4:
        magnitude = tl.div_rn(magnitude, scale)
    else:
        # Times 2**-k, which is as exact as dividing by 2**k and much cheaper; 0 for infinity.
        inverse = tl.maximum((254 << 23) - scale.to(tl.int32, bitcast=True), 0)
        inverse = inverse.to(tl.float32, bitcast=True)
        magnitude *= tl.where(scale == scale, inverse, scale)  # noqa: PLR0124  (NaN is not)
    if FORM == _FP8:
        return _fp8_code(magnitude) | ((bits >> 24) & 0x80)
    return _fp4_code(magnitude) | ((bits >> 28) & 8)


@triton.jit
def _value(x, scale):
    """x / scale to the nearest e2m1, times scale; NaN where the scale is NaN."""
    code = _code(x, scale, _MXFP4)
    magnitude = code & 7
    # 1.m times a power of two but for the two least, 0 and 0.5.
    bits = tl.where(magnitude == 1, 126 << 23, ((magnitude << 22) + (126 << 23)))
    bits = tl.where(magnitude == 0, 0, bits) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * scale


@triton.jit
def _scale(largest, FORM: tl.constexpr):
    """Codes and float32 scales from the groups' largest magnitudes, given as float32 bits: so NaN
    is the largest of all, and comes out as NaN.
    """
    is_nan = largest > 0x7F800000
    if FORM == _NVFP4:
        # 6 times the least e4m3, 2**-9, so that no scale is 0.
        largest = tl.maximum(largest, 0x3C400000).to(tl.float32, bitcast=True)
        scale = tl.minimum(tl.div_rn(largest, 6.0), 448.0)
        code = tl.where(is_nan, 0x7F, _fp8_code(scale))
        normal = ((code << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        scale = tl.where(code < 8, code.to(tl.float32) * 2.0**-9, normal)
    else:
        if FORM == _FP8:
            floor: tl.constexpr = 0x38D1B717  # 1e-4
            top: tl.constexpr = 448.0
        else:
            floor: tl.constexpr = 0x01C00000  # 6 * 2**-126
            top: tl.constexpr = 6.0
        largest = tl.maximum(largest, floor).to(tl.float32, bitcast=True)
        bits = tl.div_rn(largest, top).to(tl.int32, bitcast=True)
        # Up to the next power of two. An infinite scale, too, is code 255: all NaN, as inf * 0 is.
        code = tl.where(is_nan, 255, (bits + 0x7FFFFF) >> 23)
        scale = (code << 23).to(tl.float32, bitcast=True)
    return code, tl.where(is_nan, float("nan"), scale)


@triton.jit
def _encode_kernel(
    x, weight, cos, sin, out, places, stride, eps, heads, C: tl.constexpr, R: tl.constexpr,
    HAS_NORM: tl.constexpr, FORM: tl.constexpr, NATIVE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    chain.start(CHAINED)
    HALF: tl.constexpr = C // 2
    GROUPS: tl.constexpr = C // 16 if FORM == _NVFP4 else C // 32
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, C)
    value = _wide(tl.load(x + row * stride + channel))
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
        value = _rounded(value * scale * gain, NATIVE)
    even, odd = tl.split(tl.reshape(value, (HALF, 2)))
    # A select, because the pairs that stay may hold infinities: those times 0 are NaN.
    turned_even = tl.where(pair >= 0, _rounded(even * c - odd * s, NATIVE), even)
    turned_odd = tl.where(pair >= 0, _rounded(even * s + odd * c, NATIVE), odd)

    even = tl.reshape(turned_even, (GROUPS, HALF // GROUPS))
    odd = tl.reshape(turned_odd, (GROUPS, HALF // GROUPS))
    largest = tl.maximum(
        even.to(tl.int32, bitcast=True) & 0x7FFFFFFF, odd.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    )
    code, scale = _scale(tl.max(largest, 1), FORM)
    scale = scale[:, None]
    if FORM == _MXFP4_VALUES:
        both = tl.join(_bf16(_value(even, scale)), _bf16(_value(odd, scale)))
        tl.store(out + row * C + channel, tl.reshape(both, (C,)))
    else:
        even, odd = _code(even, scale, FORM), _code(odd, scale, FORM)
        if FORM == _FP8:
            size: tl.constexpr = C
            codes = tl.reshape(tl.join(even, odd), (C,))
        else:
            size: tl.constexpr = HALF
            codes = tl.reshape(even | (odd << 4), (HALF,))
        out += place * (size + GROUPS)
        tl.store(out + tl.arange(0, size), codes.to(tl.uint8))
        tl.store(out + size + tl.arange(0, GROUPS), code.to(tl.uint8))
