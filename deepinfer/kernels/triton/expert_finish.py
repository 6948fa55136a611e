"""What becomes of an expert's sums while they are in registers: SwiGLU and rounding.

Of one form for both kernels of the product, so that a row has the same bits in either.
"""

import triton
import triton.language as tl


@triton.jit
def to_bfloat16(x, NATIVE: tl.constexpr):
    """The interpreter's own cast cuts bits off."""
    if NATIVE:
        return x.to(tl.bfloat16)
    bits = x.to(tl.uint32, bitcast=True)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return nearest.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def round_trip(x, COUNT: tl.constexpr):
    """float32 [32 COUNT, N] to e4m3 with a power-of-two scale for 32 of the first axis, and back.

    By bits: division and the cast differ between machines and the interpreter in their last bit.
    """
    groups = tl.reshape(x, (COUNT, 32, x.shape[1]))
    return tl.reshape(rounded(groups, tl.max(tl.abs(groups), 1)[:, None, :]), x.shape)


@triton.jit
def rounded(groups, largest):
    """The same of groups along any axis; largest: of the absolute values of each."""
    largest = tl.maximum(largest, 1e-4).to(tl.int32, bitcast=True)
    # 448 is 1.75 * 2**8: a mantissa above 1.75 takes the next power of two.
    scale = ((largest + 0x1FFFFF) & 0x7F800000) - (8 << 23)
    # The step between e4m3 neighbours: an eighth of the power of two, 2**-9 scales at least.
    power = tl.maximum(groups.to(tl.int32, bitcast=True) & 0x7F800000, scale - (6 << 23))
    step = power - (3 << 23)
    steps = groups * ((254 << 23) - step).to(tl.float32, bitcast=True)
    # Adding and taking away 1.5 * 2**23 rounds to the nearest integer, ties to even.
    nearest = (steps + 12582912.0) - 12582912.0
    return nearest * step.to(tl.float32, bitcast=True)


# The sigmoid. In between 1 and exp(80) a division needs no care for the ends of the range.
_SIGMOID: tl.constexpr = tl.constexpr("""{ .reg .f32 a;
mul.f32 a, $1, 0fBFB8AA3B;
ex2.approx.ftz.f32 a, a;
add.f32 a, a, 0f3F800000;
rcp.approx.ftz.f32 $0, a; }""")


@triton.jit
def activated(gate, up, limit, NATIVE: tl.constexpr):
    """SwiGLU of float32, both clamped so that NaN stays NaN."""
    if NATIVE:
        ALL: tl.constexpr = tl.PropagateNan.ALL
        gate = tl.minimum(gate, limit, ALL)
        up = tl.maximum(tl.minimum(up, limit, ALL), -limit, ALL)
        share = tl.inline_asm_elementwise(
            _SIGMOID, "=r,r", [tl.maximum(gate, -80.0, ALL)], dtype=tl.float32, is_pure=True, pack=1
        )
        return gate * share * up
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    return gate / (1.0 + tl.exp(-tl.where(gate < -80.0, -80.0, gate))) * up
