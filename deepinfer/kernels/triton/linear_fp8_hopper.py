"""Products of up to some dozen rows with FP8 weights on SM90, in Gluon.

The weight is the left factor of the tensor core's wide products, straight from registers: the codes
that a thread reads are those that it multiplies (packed_fp8.py). Rows come through shared memory,
four bytes at a time, since within 32 inputs the tensor core wants them in another order than memory
has: that of the codes. While one product runs the weights of the next are unpacked.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.gluon_names import barrier, copy

_FOUR: gl.constexpr = gl.constexpr((gl.bfloat16,) * 4)

# A word of four codes to two pairs of bf16; $5 is the factor, twice.
_UNPACK_ASM: gl.constexpr = gl.constexpr("""{
.reg .b32 a, b;
and.b32 a, $4, 0x87F087F0; mul.rn.bf16x2 a, a, $5; mov.b32 {$0, $1}, a;
shl.b32 a, $4, 4; and.b32 a, a, 0x80F080F0; shr.b32 b, $4, 4; and.b32 b, b, 0x07000700;
or.b32 a, a, b; mul.rn.bf16x2 a, a, $5; mov.b32 {$2, $3}, a;
}""")


@gluon.constexpr_function
def _word_layout(warps):
    """[pairs of units, 2, blocks, 128]: a unit a warp, 16 bytes of each of its blocks a thread."""
    return gl.BlockedLayout([1, 1, 1, 4], [1, 1, 1, 32], [warps // 2, 2, 1, 1], [3, 2, 1, 0])


@gluon.constexpr_function
def _sum_layout(warps, rows):
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, rows, 16])


@gluon.constexpr_function
def _line(layout, dim):
    """Where one of the four dimensions of a layout lies."""
    for other in (3, 2, 1, 0):
        if other != dim:
            layout = gl.SliceLayout(other, layout)
    return layout


@gluon.jit
def _along(SIZE: gl.constexpr, DIM: gl.constexpr, LAYOUT: gl.constexpr):
    """0 to SIZE - 1 along one of four dimensions."""
    at = gl.arange(0, SIZE, layout=_line(LAYOUT, DIM))
    for other in gl.static_range(4):
        if other != DIM:
            at = gl.expand_dims(at, other)
    return at


@gluon.jit
def _copy_weights(
    words, factors, held, scales, stage, step,
    BLOCKS: gl.constexpr, WARPS: gl.constexpr, REPS: gl.constexpr, SUBS: gl.constexpr,
):  # fmt: skip
    """Start to read a step's codes and factors of the program's outputs."""
    LAYOUT: gl.constexpr = _word_layout(WARPS)
    FEW: gl.constexpr = gl.BlockedLayout([1, 1], [8, 4], [WARPS, 1], [1, 0])
    PAIRS: gl.constexpr = WARPS * REPS // 2
    unit = _along(PAIRS, 0, LAYOUT) * 2 + _along(2, 1, LAYOUT)
    inner = unit * (BLOCKS * 128) + _along(2 * SUBS, 2, LAYOUT) * 128 + _along(128, 3, LAYOUT)
    at = words + step * (2 * SUBS * 128)
    copy(held.index(stage), at + inner, cache_modifier=".cg")
    pair = gl.arange(0, PAIRS, layout=gl.SliceLayout(1, FEW))[:, None]
    inner = pair * BLOCKS + gl.arange(0, 2 * SUBS, layout=gl.SliceLayout(0, FEW))[None, :]
    at = factors + step * (2 * SUBS)
    copy(scales.index(stage), at + inner)


@gluon.jit
def _copy_rows(
    x, x_row, rows, stage, step, num_rows,
    INPUTS: gl.constexpr, COVERED: gl.constexpr, ROWS: gl.constexpr, WARPS: gl.constexpr,
    SUBS: gl.constexpr,
):  # fmt: skip
    """Start to read a step's inputs of all rows, pairs of bf16, into the order of the codes. Zeros
    beyond the last of INPUTS, of which all steps together cover COVERED.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [WARPS, 1], [1, 0])
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    # Beyond the end the last row is read again, so that no row needs a mask.
    row = gl.minimum(row, num_rows - 1)
    place = gl.arange(0, 32 * SUBS, layout=gl.SliceLayout(0, LAYOUT))
    # Pair 4 lane + 2 u + p of a block lies where the tensor core looks for 8 p + 4 u + lane.
    pair = (place & -16) | ((place & 3) << 2) | ((place & 4) >> 1) | ((place & 8) >> 3)
    first = step * (32 * SUBS)
    inner = row[:, None] * x_row + pair[None, :]
    # Or all rows' addresses would wait in registers, two each.
    inner = gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [inner], gl.int32, is_pure=False, pack=1
    )
    at = (x + first) + inner
    if INPUTS == COVERED:
        copy(rows.index(stage), at)
    else:
        inside = (pair < INPUTS // 2 - first)[None, :]
        copy(rows.index(stage), at, mask=inside)


@gluon.jit
def _unpack(words, factors, ROWS: gl.constexpr, WARPS: gl.constexpr):
    """Codes [pairs of units, 2, 2, 128] and factors [pairs of units, 2] of two blocks to weights
    bf16 [16 WARPS, 64], as registers of the product with ROWS rows. Exact.
    """
    LAYOUT: gl.constexpr = gl.DotOperandLayout(0, _sum_layout(WARPS, ROWS), 2)
    factor, _ = gl.broadcast(gl.expand_dims(gl.expand_dims(factors, 1), 3), words)
    a0, a1, b0, b1 = gl.inline_asm_elementwise(
        _UNPACK_ASM, "=h,=h,=h,=h,r,r", [words, factor], _FOUR, is_pure=True, pack=1
    )
    tile = gl.join(gl.join(a0, a1), gl.join(b0, b1))
    # [unit, block, row in 8, lane of 4, word's u, half of the unit, half of a pair, pair]
    tile = gl.reshape(tile, (WARPS, 2, 8, 4, 2, 2, 2, 2))
    tile = gl.permute(tile, (0, 5, 2, 1, 7, 4, 3, 6))
    return gl.convert_layout(gl.reshape(tile, (WARPS * 16, 64)), LAYOUT, assert_trivial=True)


@gluon.jit
def _multiply(
    totals, held, scales, rows,
    ROWS: gl.constexpr, WARPS: gl.constexpr, REPS: gl.constexpr, SUBS: gl.constexpr,
):  # fmt: skip
    """Add a step to the sums. Its last product is left running: of two sums, the second's."""
    LAYOUT: gl.constexpr = _word_layout(WARPS)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    right = rows._reinterpret(gl.bfloat16, [ROWS, 64 * SUBS], WIDE)
    for sub in gl.static_range(SUBS):
        for rep in gl.static_range(REPS):
            # A block and a half of outputs at a time: the next ones' weights have other registers.
            words = held.slice(rep * (WARPS // 2), WARPS // 2).slice(2 * sub, 2, dim=2)
            factors = scales.slice(rep * (WARPS // 2), WARPS // 2).slice(2 * sub, 2, dim=1)
            factors = factors.load(gl.SliceLayout(1, gl.SliceLayout(3, LAYOUT)))
            left = _unpack(words.load(LAYOUT), factors, ROWS, WARPS)
            part = right.slice(64 * sub, 64, dim=1).permute((1, 0))
            if REPS == 1:
                total = warpgroup_mma(left, part, totals[0], is_async=True)
                totals = (warpgroup_mma_wait(1, [total]),)
            elif rep == 0:
                total = warpgroup_mma(left, part, totals[0], is_async=True)
                totals = (total, warpgroup_mma_wait(1, [totals[1]]))
            else:
                total = warpgroup_mma(left, part, totals[1], is_async=True)
                totals = (warpgroup_mma_wait(1, [totals[0]]), total)
    return totals


@gluon.jit
def _write(
    totals, out, program, split, group, tiles, num_rows, num_outputs,
    GROUPS: gl.constexpr, ROWS: gl.constexpr, WARPS: gl.constexpr, REPS: gl.constexpr,
    SPLITS: gl.constexpr,
):  # fmt: skip
    """Parts as they lie in registers, or results by rows."""
    SUM: gl.constexpr = _sum_layout(WARPS, ROWS)
    LONG: gl.constexpr = gl.BlockedLayout([8, 1], [2 * WARPS, 16 // WARPS], [1, WARPS], [0, 1])
    HEIGHT: gl.constexpr = WARPS * 16
    if SPLITS > 1:
        out += split.to(gl.int64) * (gl.num_programs(0) // SPLITS * (REPS * HEIGHT * ROWS))
    for rep in gl.static_range(REPS):
        total = warpgroup_mma_wait(0, [totals[rep]])
        if SPLITS > 1:
            place = (program * REPS + rep) * HEIGHT
            place += gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, SUM))
            row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, SUM))
            gl.store(out + place[:, None] * ROWS + row[None, :], total)
        else:
            result = gl.convert_layout(total.to(gl.bfloat16), LONG)
            output = ((program - group * tiles) * REPS + rep) * HEIGHT
            output += gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, LONG))
            row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, LONG))
            inside = (output < num_outputs)[:, None] & (row < num_rows)[None, :]
            at = row[None, :] * (GROUPS * num_outputs) + (group * num_outputs + output)[:, None]
            gl.store(out + at, result, mask=inside)


@gluon.jit(do_not_specialize=["num_rows"])
def product(
    x, x_row, x_group, words, factors, out, num_rows, num_outputs, tiles,
    INPUTS: gl.constexpr, GROUPS: gl.constexpr, BLOCKS: gl.constexpr, ROWS: gl.constexpr,
    WARPS: gl.constexpr, REPS: gl.constexpr, SUBS: gl.constexpr, STAGES: gl.constexpr,
    SPLITS: gl.constexpr, CHAINED: gl.constexpr,
):  # fmt: skip
    """16 WARPS REPS outputs of one group for up to ROWS rows, and of the steps of 64 SUBS inputs
    one of SPLITS equal shares. Of one share `out` is the result, bf16 [T, G * out]; of more it is
    parts, float32 [SPLITS, units * 16, ROWS].
    """
    # The next weights are unpacked while a product reads those before: a step has two at least.
    gl.static_assert(REPS * SUBS > 1)
    UNITS: gl.constexpr = WARPS * REPS
    STEPS: gl.constexpr = BLOCKS // (2 * SUBS)
    # The last share may have steps beyond the end, of rows that are zero: with a number of steps
    # that the compiler does not know products would wait for each other.
    SHARE: gl.constexpr = (STEPS + SPLITS - 1) // SPLITS
    COVERED: gl.constexpr = SHARE * SPLITS * SUBS * 64
    AHEAD: gl.constexpr = min(STAGES - 2, SHARE)
    ORDER: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    PAIRS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32)
    held = gl.allocate_shared_memory(gl.int32, [STAGES, UNITS // 2, 2, 2 * SUBS, 128], ORDER)
    scales = gl.allocate_shared_memory(gl.int32, [STAGES, UNITS // 2, 2 * SUBS], FLAT)
    rows = gl.allocate_shared_memory(gl.int32, [STAGES, ROWS, 32 * SUBS], PAIRS)

    program, split = gl.program_id(0) // SPLITS, gl.program_id(0) % SPLITS
    start = split * SHARE
    words += program.to(gl.int64) * (UNITS * BLOCKS * 128)
    factors += program.to(gl.int64) * (UNITS // 2 * BLOCKS)
    for i in gl.static_range(AHEAD):  # before x is there
        step = gl.minimum(start + i, STEPS - 1)
        _copy_weights(words, factors, held, scales, i, step, BLOCKS, WARPS, REPS, SUBS)
    group = program // tiles
    x += group.to(gl.int64) * x_group
    chain.start(CHAINED)
    for i in gl.static_range(AHEAD):
        _copy_rows(x, x_row, rows, i, start + i, num_rows, INPUTS, COVERED, ROWS, WARPS, SUBS)
        async_copy.commit_group()

    nothing = gl.zeros((WARPS * 16, ROWS), gl.float32, _sum_layout(WARPS, ROWS))
    totals = (nothing,) if REPS == 1 else (nothing, warpgroup_mma_init(nothing))
    for number in range(SHARE):
        stage, later, step = number % STAGES, (number + AHEAD) % STAGES, start + number + AHEAD
        async_copy.wait_group(AHEAD - 1)
        # Behind it nobody is at the step before the last, whose place is filled again.
        barrier()
        fence_async_shared()
        if number + AHEAD < SHARE:
            near = gl.minimum(step, STEPS - 1)
            _copy_weights(words, factors, held, scales, later, near, BLOCKS, WARPS, REPS, SUBS)
            _copy_rows(
                x, x_row, rows, later, step, num_rows, INPUTS, COVERED, ROWS, WARPS, SUBS
            )  # fmt: skip
        async_copy.commit_group()
        totals = _multiply(
            totals, held.index(stage), scales.index(stage), rows.index(stage),
            ROWS, WARPS, REPS, SUBS,
        )  # fmt: skip

    _write(
        totals, out, program, split, group, tiles, num_rows, num_outputs,
        GROUPS, ROWS, WARPS, REPS, SPLITS,
    )  # fmt: skip
