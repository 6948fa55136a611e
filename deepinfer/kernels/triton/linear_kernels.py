"""The kernels of `linear`."""

import triton
import triton.language as tl


@triton.jit
def _power_of_two(code):
    """UE8M0 codes as float32."""
    code = code.to(tl.int32)
    # Code 0 is 2**-127, a subnormal float32; 255 is NaN.
    bits = tl.where(code == 0, 1 << 22, code << 23)
    return tl.where(code == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["num_rows"])
def gemv_fp8(
    x,
    codes,
    scales,
    out,
    num_rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    DOT: tl.constexpr,
):
    """TILE outputs of all rows over STEPS steps of BLOCKS scale blocks: out [splits, T, OUTPUTS].

    The weights are the matrix operand of 64 rows, so that a few rows of x cost little.
    """
    outputs = tl.program_id(0) * TILE + tl.arange(0, TILE)
    known = outputs < OUTPUTS
    rows = tl.arange(0, ROWS)
    there = rows < num_rows
    SCALES: tl.constexpr = (INPUTS + BLOCK - 1) // BLOCK
    EVEN: tl.constexpr = INPUTS % (BLOCK * BLOCKS * STEPS) == 0
    codes += outputs.to(tl.int64)[:, None] * INPUTS
    scales += (outputs // BLOCK) * SCALES
    x += rows[:, None] * INPUTS
    total = tl.zeros([TILE, ROWS], tl.float32)
    first = tl.program_id(1) * (STEPS * BLOCKS)
    for step in range(STEPS):
        for i in tl.static_range(BLOCKS):
            block = first + step * BLOCKS + i
            inputs = block * BLOCK + tl.arange(0, BLOCK)
            weight_mask, row_mask, scale_mask = known[:, None], there[:, None], known
            if not EVEN:
                weight_mask = weight_mask & (inputs < INPUTS)[None, :]
                row_mask = row_mask & (inputs < INPUTS)[None, :]
                scale_mask = outputs < tl.where(block < SCALES, OUTPUTS, 0)
            code = tl.load(codes + inputs[None, :], mask=weight_mask, other=0)
            part = tl.load(x + inputs[None, :], mask=row_mask, other=0.0)
            scale = tl.load(scales + block, mask=scale_mask, other=127)
            weight = code.to(tl.float8e4nv, bitcast=True).to(DOT)
            # Products of bf16 numbers with e4m3 ones are exact in float32; the scale comes after.
            product = tl.dot(weight, tl.trans(part.to(DOT)))
            total += product * _power_of_two(scale)[:, None]
    place = (tl.program_id(1) * num_rows + rows[None, :]) * OUTPUTS + outputs[:, None]
    mask = known[:, None] & there[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def add_splits(partials, out, elements, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """out = partials[0] + partials[1] + ... in that order."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < elements
    total = tl.load(partials + places, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(partials + split * elements + places, mask=mask, other=0.0)
    tl.store(out + places, total.to(out.dtype.element_ty), mask=mask)


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
):
    """A part of a row of silu(gate) * up."""
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
