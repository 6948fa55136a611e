"""The second kernel of `hyper`: sums of parts, coefficients, norms. `hyper` says why."""

import triton
import triton.language as tl


@triton.jit
def _norm_row(row, collapsed, weight, u, eps, D: tl.constexpr, WIDTH: tl.constexpr):
    """u[row] = rms_norm(collapsed[row])."""
    columns = tl.arange(0, WIDTH)
    inside = columns < D
    offset = row.to(tl.int64) * D
    x = tl.load(collapsed + offset + columns, mask=inside, other=0.0).to(tl.float32)
    rescale = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(u + offset + columns, (x * rescale * gain).to(u.dtype.element_ty), mask=inside)


@triton.jit
def norm_rows(collapsed, weight, u, eps, D: tl.constexpr, WIDTH: tl.constexpr):
    """rms_norm of a row."""
    _norm_row(tl.program_id(0), collapsed, weight, u, eps, D, WIDTH)


@triton.jit
def _ordered_sum(partials, step, place, mask, COUNT: tl.constexpr, INNER: tl.constexpr):
    """The sum over COUNT partials, INNER after the other first: the order in which `tile` adds."""
    total = tl.load(partials + place, mask=mask, other=0.0)
    for inner in tl.static_range(1, INNER):
        if inner < COUNT:
            total += tl.load(partials + inner * step + place, mask=mask, other=0.0)
    for group in tl.static_range(INNER, COUNT, INNER):
        part = tl.load(partials + group * step + place, mask=mask, other=0.0)
        for inner in tl.static_range(1, INNER):
            if group + inner < COUNT:
                part += tl.load(partials + (group + inner) * step + place, mask=mask, other=0.0)
        total += part
    return total


@triton.jit
def _coefficients(
    program,
    partials,
    scale,
    base,
    pre,
    post,
    comb,
    norm_eps,
    eps,
    num_rows,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
    INNER: tl.constexpr,
    ITERS: tl.constexpr,
):
    """pre, post and comb of ROWS rows.

    All in one shape, [ROWS, N / M, M]: of a row's N / M lines the first is pre, the second post, M
    lines are comb by source, and the next begins with the sum of squares.
    """
    rows = (program * ROWS + tl.arange(0, ROWS))[:, None, None]
    there = rows < num_rows
    rows = rows.to(tl.int64)
    line, b = tl.arange(0, N // M)[None, :, None], tl.arange(0, M)[None, None, :]
    k = line * M + b
    mixed = _ordered_sum(partials, num_rows * N, rows * N + k, there, COUNT, INNER)
    squares = tl.where(k == M * (M + 2), mixed, 0.0)
    squares = tl.sum(tl.sum(squares, 2, keep_dims=True), 1, keep_dims=True)
    rescale = tl.rsqrt(squares / (M * D) + norm_eps)
    factor = tl.where(line == 0, tl.load(scale), tl.load(scale + 1))
    is_comb = (line >= 2) & (line < M + 2)
    factor = tl.where(is_comb, tl.load(scale + 2), factor)
    offset = tl.load(base + k, mask=k < M * (M + 2), other=0.0)
    mixed = tl.where(line < M + 2, mixed, 0.0) * rescale * factor + offset

    # Not `maximum`: NaN must stay NaN.
    share = 1 / (1 + tl.exp(-tl.where(mixed < -80.0, -80.0, mixed)))
    tl.store(pre + rows * M + k, share + eps, mask=there & (line == 0))
    tl.store(post + rows * M + k - M, share * 2, mask=there & (line == 1))

    share = tl.exp(mixed - tl.max(mixed, 2, keep_dims=True))
    share = tl.where(is_comb, share / tl.sum(share, 2, keep_dims=True) + eps, 0.0)
    share = share / (tl.sum(share, 1, keep_dims=True) + eps)
    for _ in range(ITERS - 1):
        share = share / (tl.sum(share, 2, keep_dims=True) + eps)
        share = share / (tl.sum(share, 1, keep_dims=True) + eps)
    tl.store(comb + rows * (M * M) + k - 2 * M, share, mask=there & is_comb)


@triton.jit(do_not_specialize=["num_rows", "mixers"])
def finish(
    collapsed,
    weight,
    u,
    partials,
    scale,
    base,
    pre,
    post,
    comb,
    norm_eps,
    eps,
    num_rows,
    mixers,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
    INNER: tl.constexpr,
    ITERS: tl.constexpr,
):
    """The first `mixers` programs make coefficients, each other one the norm of a row."""
    program = tl.program_id(0)
    if program < mixers:
        # These first: they take longest.
        _coefficients(
            program, partials, scale, base, pre, post, comb, norm_eps, eps, num_rows,
            D, M, N, ROWS, COUNT, INNER, ITERS,
        )  # fmt: skip
    else:
        _norm_row(program - mixers, collapsed, weight, u, norm_eps, D, WIDTH)
