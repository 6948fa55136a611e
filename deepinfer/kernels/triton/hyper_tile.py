"""The first kernel of `hyper` where `hyper_hopper` is not for it: all that needs the streams
themselves. `hyper` says why."""

import triton
import triton.language as tl


@triton.jit
def _upper_half(x):
    """float32 cut off to bfloat16: as that, and as the float32 of the same value."""
    bits = x.to(tl.int32, bitcast=True)
    half = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return half, (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _pieces(x):
    """float32 as three bfloat16 numbers that add up to it: products with them are float32's own.

    Cut off by bits, since the instruction that rounds one number to bfloat16 is a slow one.
    """
    high, cut = _upper_half(x)
    rest = x - cut
    middle, cut = _upper_half(rest)
    low, _ = _upper_half(rest - cut)
    return high, middle, low


@triton.jit
def _rounded(x, DOT: tl.constexpr):
    """float32 to bfloat16. Two at a time: the instruction for one is slow.

    Also a wall to the compiler, which would otherwise compute all that leads to x twice, once more
    in the layout that the matrix product wants, and run out of registers.
    """
    if DOT == tl.bfloat16:  # noqa: SIM300  (no constant to Triton)
        result = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, is_pure=False, pack=2
        )
    else:
        result = x
    return result


@triton.jit
def _of_rows(source, rows, there, COUNT: tl.constexpr):
    """The COUNT numbers of each row, as so many vectors."""
    values = ()
    for i in tl.static_range(COUNT):
        values += (tl.load(source + rows * COUNT + i, mask=there, other=0.0),)
    return values


@triton.jit
def _load_streams(streams, stream_step, place, inside, M: tl.constexpr):
    """A chunk of every stream."""
    tiles = ()
    for a in tl.static_range(M):
        tiles += (tl.load(streams + a * stream_step + place, mask=inside, other=0.0),)
    return tiles


@triton.jit
def _carried(old, carries, b: tl.constexpr, M: tl.constexpr, value):
    """value + what the old streams give to the new stream b."""
    for a in tl.static_range(M):
        value += carries[a * M + b][:, None] * old[a].to(tl.float32)
    return value


@triton.jit
def _products(x, weight, coarse, fine, DOT: tl.constexpr):
    """x [ROWS, COLUMNS] times float32 weight [N, COLUMNS], added to a sum of large terms and one of
    small ones.
    """
    high, middle, low = _pieces(weight)
    fine = tl.dot(x, tl.trans(low.to(DOT)), fine)
    fine = tl.dot(x, tl.trans(middle.to(DOT)), fine)
    return tl.dot(x, tl.trans(high.to(DOT)), coarse), fine


@triton.jit(do_not_specialize=["num_rows"])
def tile(  # noqa: C901  (the flags are constants: what is off is not compiled)
    streams,
    stream_row,
    stream_step,
    pre,
    y,
    post,
    comb,
    written,
    collapsed,
    fn,
    partials,
    num_rows,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FOLD: tl.constexpr,
    WRITE: tl.constexpr,
    KEEP: tl.constexpr,
    COLLAPSE: tl.constexpr,
    MIX: tl.constexpr,
    DOT: tl.constexpr,
):
    """A tile of rows, FOLD chunks of columns of all streams.

    WRITE: expand; KEEP: store what that gives; COLLAPSE: store the weighted sum of the streams;
    MIX: store partial products with fn [M * (M + 2), M * D], and behind them the sum of squares.
    """
    first = tl.program_id(1).to(tl.int64) * ROWS
    rows = tl.arange(0, ROWS)
    there = rows < num_rows - first
    if COLLAPSE:
        shares = _of_rows(pre, first + rows, there, M)
    if WRITE:
        gains = _of_rows(post, first + rows, there, M)
        carries = _of_rows(comb, first + rows, there, M * M)
    # Places within a tile are the same in every chunk and stream: they are kept in few registers,
    # and all that differs is a number of the whole program.
    columns, outputs = tl.arange(0, COLUMNS), tl.arange(0, N)
    streams += first * stream_row
    old_place = rows[:, None] * stream_row + columns[None, :]
    new_place = rows[:, None] * (M * D) + columns[None, :]
    flat_place = rows[:, None] * D + columns[None, :]
    fn_place = outputs[:, None] * (M * D) + columns[None, :]
    total, squares = tl.zeros([ROWS, N], tl.float32), tl.zeros([ROWS], tl.float32)
    for chunk in range(FOLD):
        start = (tl.program_id(0) * FOLD + chunk) * COLUMNS
        within = start + columns < D
        inside = there[:, None] & within[None, :]
        old = _load_streams(streams + start, stream_step, old_place, inside, M)
        if WRITE:
            output = tl.load(y + (first * D + start) + flat_place, mask=inside, other=0.0)
        collapse = tl.zeros([ROWS, COLUMNS], tl.float32)
        square = tl.zeros([ROWS, COLUMNS], tl.float32)
        # Sums of the chunk alone: tensor cores cut off what they add, so their chains are short.
        coarse, fine = tl.zeros([ROWS, N], tl.float32), tl.zeros([ROWS, N], tl.float32)
        for b in tl.static_range(M):
            new = old[b]
            if WRITE:
                value = _carried(old, carries, b, M, gains[b][:, None] * output.to(tl.float32))
                new = _rounded(value, DOT).to(new.dtype)
                if KEEP:
                    goal = written + (first * (M * D) + b * D + start)
                    tl.store(goal + new_place, new, mask=inside)
            wide = new.to(tl.float32)
            if COLLAPSE:
                collapse += shares[b][:, None] * wide
            if MIX:
                square += wide * wide
                known = (outputs < M * (M + 2))[:, None] & within[None, :]
                weight = tl.load(fn + (b * D + start) + fn_place, mask=known, other=0.0)
                coarse, fine = _products(new.to(DOT), weight, coarse, fine, DOT)
        if COLLAPSE:
            collapse = collapse.to(collapsed.dtype.element_ty)
            tl.store(collapsed + (first * D + start) + flat_place, collapse, mask=inside)
        total += coarse + fine
        squares += tl.sum(square, 1)
    if MIX:
        total = tl.where(outputs[None, :] == M * (M + 2), squares[:, None], total)
        goal = partials + (tl.program_id(0).to(tl.int64) * num_rows + first) * N
        tl.store(goal + rows[:, None] * N + outputs[None, :], total, mask=there[:, None])
