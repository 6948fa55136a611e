"""The kernels of `linear`."""

import triton
import triton.language as tl

from deepinfer.kernels.triton import chain


@triton.jit(do_not_specialize=["num_rows"])
def product(
    x,
    x_row,
    x_group,
    weight,
    out,
    num_rows,
    num_outputs,
    out_row,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    INS: tl.constexpr,
    BAND: tl.constexpr,
    DOT: tl.constexpr,
):
    """A tile of rows times outputs of one group, over all inputs in ascending order."""
    row_tiles, out_tiles = tl.cdiv(num_rows, ROWS), tl.cdiv(num_outputs, OUTS)
    # BAND row tiles take turns at the same weights, which then come from the cache.
    program = tl.program_id(0)
    band = program // (BAND * out_tiles)
    height = tl.minimum(row_tiles - band * BAND, BAND)
    inner = program % (BAND * out_tiles)
    row_tile = band * BAND + inner % height
    out_tile = inner // height
    group = tl.program_id(1)

    rows = row_tile * ROWS + tl.arange(0, ROWS)
    outs = out_tile * OUTS + tl.arange(0, OUTS)
    inputs = tl.arange(0, INS)
    # Beyond the end the last row is read again, so that no load needs a mask.
    near_rows = tl.minimum(rows, num_rows - 1).to(tl.int64)
    near_outs = tl.minimum(outs, num_outputs - 1)
    x_place = x + near_rows[:, None] * x_row + group * x_group + inputs[None, :]
    weight_row = group.to(tl.int64) * num_outputs + near_outs
    weight_place = weight + weight_row[:, None] * INPUTS + inputs[None, :]
    total = tl.zeros([ROWS, OUTS], tl.float32)
    for start in range(0, INPUTS, INS):
        if INPUTS % INS == 0:
            a = tl.load(x_place + start)
            b = tl.load(weight_place + start)
        else:
            inside = (start + inputs < INPUTS)[None, :]
            a = tl.load(x_place + start, mask=inside, other=0.0)
            b = tl.load(weight_place + start, mask=inside, other=0.0)
        total = tl.dot(a.to(DOT), tl.trans(b.to(DOT)), total)
    place = rows.to(tl.int64)[:, None] * out_row + group * num_outputs + outs[None, :]
    mask = (rows < num_rows)[:, None] & (outs < num_outputs)[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def swiglu(
    gate,
    gate_row,
    up,
    up_row,
    weight,
    out,
    limit,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHED: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """A part of a row of silu(gate) * up."""
    chain.start(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    a = tl.load(gate + row * gate_row + columns, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(up + row * up_row + columns, mask=mask, other=0.0).to(tl.float32)
    # Written so that NaN stays NaN: a faulty row must not look sound.
    a = tl.where(a > limit, limit, a)
    b = tl.where(b > limit, limit, tl.where(b < -limit, -limit, b))
    result = a / (1 + tl.exp(-tl.where(a < -80.0, -80.0, a))) * b
    if WEIGHED:
        result *= tl.load(weight + row)
    tl.store(out + row * SIZE + columns, result.to(out.dtype.element_ty), mask=mask)
