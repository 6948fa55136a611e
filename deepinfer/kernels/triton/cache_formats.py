"""The formats of cache rows, by bits: roundings, codes and scales (spec 14.1 to 14.4).

All of it is done on the bits of float32 and equals reference/quant.py, which documents the formats.
"""

import triton
import triton.language as tl

# Rows of bytes (codes, then scales), or for a query the values those bytes would stand for.
FP8, NVFP4, MXFP4, MXFP4_VALUES = (tl.constexpr(i) for i in range(4))


@triton.jit
def rounded(x, NATIVE: tl.constexpr):
    """float32 rounded to bf16, as float32. In integers where there is no bf16."""
    if NATIVE:
        return x.to(tl.bfloat16).to(tl.float32)
    bits = x.to(tl.int32, bitcast=True)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return tl.where(is_nan, x, bits.to(tl.float32, bitcast=True))


@triton.jit
def narrow(x):
    """The upper half of a float32 that is a bf16."""
    bits = x.to(tl.int32, bitcast=True) >> 16
    return bits.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def widen(x):
    """bf16 as float32."""
    bits = x.to(tl.int16, bitcast=True).to(tl.int32)
    return (bits << 16).to(tl.float32, bitcast=True)


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
def code_of(x, scale, FORM: tl.constexpr):
    """Sign and magnitude of x / scale."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = (bits & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    if FORM == NVFP4:
        magnitude = tl.div_rn(magnitude, scale)
    else:
        # Times 2**-k, which is as exact as dividing by 2**k and much cheaper; 0 for infinity.
        inverse = tl.maximum((254 << 23) - scale.to(tl.int32, bitcast=True), 0)
        inverse = inverse.to(tl.float32, bitcast=True)
        magnitude *= tl.where(scale == scale, inverse, scale)  # noqa: PLR0124  (NaN is not)
    if FORM == FP8:
        return _fp8_code(magnitude) | ((bits >> 24) & 0x80)
    return _fp4_code(magnitude) | ((bits >> 28) & 8)


@triton.jit
def value_of(x, scale):
    """x / scale to the nearest e2m1, times scale; NaN where the scale is NaN."""
    code = code_of(x, scale, MXFP4)
    magnitude = code & 7
    # 1.m times a power of two but for the two least, 0 and 0.5.
    bits = tl.where(magnitude == 1, 126 << 23, ((magnitude << 22) + (126 << 23)))
    bits = tl.where(magnitude == 0, 0, bits) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * scale


@triton.jit
def scale_of(largest, FORM: tl.constexpr):
    """Codes and float32 scales from the groups' largest magnitudes, given as float32 bits: so NaN
    is the largest of all, and comes out as NaN.
    """
    is_nan = largest > 0x7F800000
    if FORM == NVFP4:
        # 6 times the least e4m3, 2**-9, so that no scale is 0.
        largest = tl.maximum(largest, 0x3C400000).to(tl.float32, bitcast=True)
        scale = tl.minimum(tl.div_rn(largest, 6.0), 448.0)
        code = tl.where(is_nan, 0x7F, _fp8_code(scale))
        normal = ((code << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        scale = tl.where(code < 8, code.to(tl.float32) * 2.0**-9, normal)
    else:
        if FORM == FP8:
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
