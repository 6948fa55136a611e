"""The kernel of `gemv`: few rows times a packed FP8 weight.

The warps of a program share the inputs between them and add up at the end, so that a program takes
few outputs and all inputs: no sum is left for a second kernel. Each has products of its own (a
batch of them, to Triton), whose left factor is the weight, straight from the registers that read
it: shared memory would add a copy and a barrier to every step.
"""

import triton
import triton.language as tl

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.expert_finish import to_bfloat16

_TWO = tl.constexpr((tl.bfloat16,) * 2)
_FOUR = tl.constexpr((tl.bfloat16,) * 4)

# A word of four codes to two pairs of bf16; $5 is the factor, twice.
UNPACK_ASM = tl.constexpr("""{
.reg .b32 a, b;
and.b32 a, $4, 0x87F087F0; mul.rn.bf16x2 a, a, $5; mov.b32 {$0, $1}, a;
shl.b32 a, $4, 4; and.b32 a, a, 0x80F080F0; shr.b32 b, $4, 4; and.b32 b, b, 0x07000700;
or.b32 a, a, b; mul.rn.bf16x2 a, a, $5; mov.b32 {$2, $3}, a;
}""")

# One thread asks for $2 bytes at $1 in the L2 cache, and waits for nothing.
_FETCH = tl.constexpr("""{
.reg .pred p; .reg .b32 t;
mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; mov.u32 $0, t;
@p cp.async.bulk.prefetch.L2.global [$1], $2;
}""")


@triton.jit
def _unpack(words, factors, NATIVE: tl.constexpr):
    """Words [WARPS, UNITS, 128] and factors [WARPS, UNITS, 1] to weights [WARPS, 16 UNITS, 32],
    their inputs in the order of `_order`. Exact.
    """
    WARPS: tl.constexpr = words.shape[0]
    UNITS: tl.constexpr = words.shape[1]
    if NATIVE:
        a0, a1, b0, b1 = tl.inline_asm_elementwise(
            UNPACK_ASM, "=h,=h,=h,=h,r,r", [words, factors], _FOUR, is_pure=True, pack=1
        )
    else:
        # In float32, whose upper half is a bf16. The interpreter has no products of bf16.
        words = words.to(tl.uint32, bitcast=True)
        factor = (factors << 16).to(tl.float32, bitcast=True)
        b = ((words << 4) & 0x80F080F0) | ((words >> 4) & 0x07000700)
        a0 = ((words & 0x87F0) << 16).to(tl.float32, bitcast=True) * factor
        a1 = (words & 0x87F00000).to(tl.float32, bitcast=True) * factor
        b0 = ((b & 0xFFFF) << 16).to(tl.float32, bitcast=True) * factor
        b1 = (b & 0xFFFF0000).to(tl.float32, bitcast=True) * factor
    tile = tl.join(tl.join(a0, a1), tl.join(b0, b1))
    # [warp, unit, row in 8, lane of 4, word's u, half of the unit, half of a pair, pair]
    tile = tl.reshape(tile, (WARPS, UNITS, 8, 4, 2, 2, 2, 2))
    tile = tl.permute(tile, (0, 1, 5, 2, 7, 3, 4, 6))
    return tl.reshape(tile, (WARPS, UNITS * 16, 32))


@triton.jit
def _order(pairs, NATIVE: tl.constexpr):
    """Rows of x, pairs of bf16 [8, WARPS, EIGHTS, 16], to [WARPS, 32, 8 EIGHTS]: input
    8 lane + 4 u + 2 p + v of a block becomes number 16 p + 4 lane + 2 u + v, so that the tensor
    core takes what the lane has read, register by register.
    """
    WARPS: tl.constexpr = pairs.shape[1]
    EIGHTS: tl.constexpr = pairs.shape[2]
    if NATIVE:
        left, right = tl.inline_asm_elementwise(
            "mov.b32 {$0, $1}, $2;", "=h,=h,r", [pairs], _TWO, is_pure=True, pack=1
        )
    else:
        left = (pairs << 16).to(tl.float32, bitcast=True)
        right = (pairs & -65536).to(tl.float32, bitcast=True)
    rows = tl.reshape(tl.join(left, right), (8, WARPS, EIGHTS, 4, 2, 2, 2))
    rows = tl.permute(rows, (1, 5, 3, 4, 6, 2, 0))
    return tl.reshape(rows, (WARPS, 32, EIGHTS * 8))


@triton.jit
def _read(at, STRIDE: tl.constexpr, COUNT: tl.constexpr, MODIFIER: tl.constexpr):
    """The loads of COUNT steps."""
    found = ()
    for i in tl.static_range(COUNT):
        found += (tl.load(at + i * STRIDE, cache_modifier=MODIFIER),)
    return found


@triton.jit
def _part(x_at, i: tl.constexpr, pair, left, WHOLE: tl.constexpr):
    """Step i of x from x_at, where `left` pairs are left."""
    WARPS: tl.constexpr = pair.shape[1]
    if WHOLE:
        return tl.load(x_at + i * (WARPS * 16))
    return tl.load(x_at + i * (WARPS * 16), mask=pair + i * (WARPS * 16) < left, other=0)


@triton.jit
def _parts(x_at, pair, left, COUNT: tl.constexpr, WHOLE: tl.constexpr):
    found = ()
    for i in tl.static_range(COUNT):
        found += (_part(x_at, i, pair, left, WHOLE),)
    return found


@triton.jit
def _tied(parts, COUNT: tl.constexpr, zero):
    """The same, but the first cannot be used before all have been read.

    Without a loop the assembler would move each load to where it is used, and wait for one after
    the other.
    """
    others = parts[0]
    for i in tl.static_range(1, COUNT):
        others |= parts[i]
    found = (parts[0] | others & zero,)
    for i in tl.static_range(1, COUNT):
        found += (parts[i],)
    return found


@triton.jit
def _write(
    total, out, group, tile, num_rows, num_outputs, GROUPS: tl.constexpr, NATIVE: tl.constexpr
):
    """Adds up what the warps have [WARPS, outputs, rows], and stores it."""
    result = to_bfloat16(tl.sum(total, 0), NATIVE)
    output = tile * total.shape[1] + tl.arange(0, total.shape[1])
    row = tl.arange(0, total.shape[2])
    out_at = out + row.to(tl.int64)[None, :] * (GROUPS * num_outputs)
    out_at += group * num_outputs + output[:, None]
    tl.store(out_at, result, mask=(row < num_rows)[None, :] & (output < num_outputs)[:, None])


@triton.jit(do_not_specialize=["num_rows", "zero"])
def product(
    x, x_row, x_group, words, factors, out, num_rows, num_outputs, tiles, zero,
    INPUTS: tl.constexpr, GROUPS: tl.constexpr, STEPS: tl.constexpr, EIGHTS: tl.constexpr,
    UNITS: tl.constexpr, WARPS: tl.constexpr, AHEAD: tl.constexpr, FETCH: tl.constexpr,
    NATIVE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """16 UNITS outputs of one group for up to 8 EIGHTS rows. A warp takes every WARPS-th block of
    32 inputs in ascending order, whatever UNITS, AHEAD and EIGHTS are: the bits depend on none.

    AHEAD steps, a divisor of STEPS, are read at a time, long before they are used. `zero` is 0,
    which the compiler must not know.
    """
    BLOCKS: tl.constexpr = STEPS * WARPS
    WHOLE: tl.constexpr = INPUTS == BLOCKS * 32
    program = tl.program_id(0)
    words += program.to(tl.int64) * (UNITS * BLOCKS * 128)
    # Two units have one row of factors, and one unit half of one.
    factors += (program.to(tl.int64) * UNITS // 2) * BLOCKS
    unit = tl.arange(0, UNITS).to(tl.int64)[None, :, None]
    warp = tl.arange(0, WARPS).to(tl.int64)[:, None, None]
    word_at = words + (unit * BLOCKS + warp) * 128 + tl.arange(0, 128).to(tl.int64)[None, None, :]
    factor_at = factors + (unit // 2) * BLOCKS + warp

    held = _read(word_at, WARPS * 128, AHEAD, ".cg")
    scales = _read(factor_at, WARPS, AHEAD, "")
    if FETCH and NATIVE and AHEAD < STEPS:
        # Memory is then busy for as long as this program waits, or is slower than memory.
        tl.inline_asm_elementwise(
            _FETCH, "=r,l,r", [words, UNITS * BLOCKS * 512], tl.int32, is_pure=False, pack=1
        )

    # A weight without groups needs no division.
    group = program // tiles if GROUPS > 1 else program * 0
    tile = program - group * tiles
    eight = tl.arange(0, EIGHTS)[None, None, :, None]
    row = eight * 8 + tl.arange(0, 8)[:, None, None, None]
    # Beyond the end the last row is read again, so that no load needs a mask.
    row = tl.minimum(row, num_rows - 1)
    pair = tl.arange(0, WARPS)[None, :, None, None] * 16 + tl.arange(0, 16)[None, None, None, :]
    x_at = x + group.to(tl.int64) * x_group + row.to(tl.int64) * x_row + pair
    chain.start(CHAINED)
    parts = _parts(x_at, pair, INPUTS // 2, AHEAD, WHOLE)
    if AHEAD == STEPS:
        parts = _tied(parts, AHEAD, zero)

    total = tl.zeros([WARPS, UNITS * 16, 8 * EIGHTS], tl.float32)
    for step in range(AHEAD, STEPS + 1, AHEAD):
        word_at += AHEAD * WARPS * 128
        factor_at += AHEAD * WARPS
        x_at += AHEAD * WARPS * 16
        next_held = ()
        next_scales = ()
        next_parts = ()
        for i in tl.static_range(AHEAD):
            word, scale, part = held[i], scales[i], parts[i]
            total = tl.dot(_unpack(word, scale, NATIVE), _order(part, NATIVE), total)
            # A branch, because a masked load clears its registers first.
            if step < STEPS:
                word = tl.load(word_at + i * (WARPS * 128), cache_modifier=".cg")
                scale = tl.load(factor_at + i * WARPS)
                part = _part(x_at, i, pair, INPUTS // 2 - step * (WARPS * 16), WHOLE)
            next_held += (word,)
            next_scales += (scale,)
            next_parts += (part,)
        held, scales, parts = next_held, next_scales, next_parts
    _write(total, out, group, tile, num_rows, num_outputs, GROUPS, NATIVE)
