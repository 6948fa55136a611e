"""The kernel of `gemv`: few rows times a packed FP8 weight.

The warps of a program share the inputs between them and add up at the end, so that a program takes
few outputs and all inputs: no sum is left for a second kernel. Each has products of its own (a
batch of them, to Triton), whose left factor is the weight, straight from the registers that read
it.
"""

import triton
import triton.language as tl

from deepinfer.kernels.triton.expert_product import to_bfloat16

_FOUR = tl.constexpr((tl.bfloat16,) * 4)

# A word of four codes to two pairs of bf16; $5 is the factor, twice.
_ASM = tl.constexpr("""{
.reg .b32 a, b;
and.b32 a, $4, 0x87F087F0; mul.rn.bf16x2 a, a, $5; mov.b32 {$0, $1}, a;
shl.b32 a, $4, 4; and.b32 a, a, 0x80F080F0; shr.b32 b, $4, 4; and.b32 b, b, 0x07000700;
or.b32 a, a, b; mul.rn.bf16x2 a, a, $5; mov.b32 {$2, $3}, a;
}""")


@triton.jit
def _unpack(words, factors, NATIVE: tl.constexpr):
    """Words [UNITS, BLOCKS, WARPS, 128] and factors [UNITS, BLOCKS, WARPS, 1] to weights
    [WARPS, 16 UNITS, 32 BLOCKS], their inputs in the order of `_order`. Exact.
    """
    UNITS: tl.constexpr = words.shape[0]
    BLOCKS: tl.constexpr = words.shape[1]
    WARPS: tl.constexpr = words.shape[2]
    if NATIVE:
        a0, a1, b0, b1 = tl.inline_asm_elementwise(
            _ASM, "=h,=h,=h,=h,r,r", [words, factors], _FOUR, is_pure=True, pack=1
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
    # [unit, block, warp, row in 8, lane of 4, word's u, half of the unit, half of a pair, pair]
    tile = tl.reshape(tile, (UNITS, BLOCKS, WARPS, 8, 4, 2, 2, 2, 2))
    tile = tl.permute(tile, (2, 0, 6, 3, 1, 5, 4, 8, 7))
    return tl.reshape(tile, (WARPS, UNITS * 16, BLOCKS * 32))


@triton.jit
def _order(rows):
    """Rows of x [BLOCKS, WARPS, ROWS, 32] to [WARPS, 32 BLOCKS, ROWS]: input 8 lane + 4 u + v of a
    block becomes number 16 u + 4 lane + v, where the tensor core wants what the lane has read.
    """
    BLOCKS: tl.constexpr = rows.shape[0]
    WARPS: tl.constexpr = rows.shape[1]
    ROWS: tl.constexpr = rows.shape[2]
    rows = tl.reshape(rows, (BLOCKS, WARPS, ROWS, 4, 2, 4))
    rows = tl.permute(rows, (1, 0, 4, 3, 5, 2))
    return tl.reshape(rows, (WARPS, BLOCKS * 32, ROWS))


@triton.jit(do_not_specialize=["num_rows"])
def product(
    x, x_row, x_group, words, factors, out, num_rows, num_outputs, tiles,
    INPUTS: tl.constexpr, GROUPS: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr,
    UNITS: tl.constexpr, BLOCKS: tl.constexpr, WARPS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """16 UNITS outputs of one group for all rows. A warp takes every WARPS-th block of 32 inputs in
    ascending order, whatever UNITS, BLOCKS and ROWS are: the bits depend on none of them.
    """
    DEPTH: tl.constexpr = BLOCKS * WARPS  # blocks of a step
    program = tl.program_id(0)
    group, tile = program // tiles, program % tiles
    block = tl.arange(0, BLOCKS)[:, None] * WARPS + tl.arange(0, WARPS)[None, :]
    unit = (program * UNITS + tl.arange(0, UNITS)).to(tl.int64)[:, None, None]
    place = unit * (STEPS * DEPTH) + block[None]
    word_at = words + place[:, :, :, None] * 128 + tl.arange(0, 128)[None, None, None, :]
    place = (unit // 2) * (STEPS * DEPTH) + block[None]
    factor_at = factors + place[:, :, :, None]
    inputs = block[:, :, None, None] * 32 + tl.arange(0, 32)[None, None, None, :]
    row = tl.arange(0, ROWS)
    there = (row < num_rows)[None, None, :, None]
    x_at = x + row.to(tl.int64)[None, None, :, None] * x_row + group.to(tl.int64) * x_group + inputs
    total = tl.zeros([WARPS, UNITS * 16, ROWS], tl.float32)
    for step in range(STEPS):
        mask = there
        if INPUTS % (DEPTH * 32) != 0:
            mask = mask & (inputs < INPUTS - step * (DEPTH * 32))
        part = _order(tl.load(x_at, mask=mask, other=0.0))
        weight = _unpack(tl.load(word_at), tl.load(factor_at), NATIVE)
        total = tl.dot(weight, part if NATIVE else part.to(tl.float32), total)
        x_at += DEPTH * 32
        word_at += DEPTH * 128
        factor_at += DEPTH
    result = to_bfloat16(tl.sum(total, 0), NATIVE)
    output = tile * (UNITS * 16) + tl.arange(0, UNITS * 16)
    out_at = out + row.to(tl.int64)[None, :] * (GROUPS * num_outputs)
    out_at += group * num_outputs + output[:, None]
    tl.store(out_at, result, mask=(row < num_rows)[None, :] & (output < num_outputs)[:, None])
