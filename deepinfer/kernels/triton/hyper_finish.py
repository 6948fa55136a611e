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
def _sum(partials, step, place, COUNT: tl.constexpr, INNER: tl.constexpr, N: tl.constexpr):
    """The sum [N] over COUNT partials: INNER after the other, as `tile` adds them where it makes
    fewer, and then all of these in the order of a tree that depends on their number alone.
    """
    GROUPS: tl.constexpr = (COUNT + INNER - 1) // INNER
    SPAN: tl.constexpr = triton.next_power_of_2(GROUPS)
    group = tl.arange(0, SPAN)[:, None]
    total = tl.zeros([SPAN, N], tl.float32)
    for inner in tl.static_range(INNER):
        number = group * INNER + inner
        total += tl.load(partials + number * step + place[None, :], mask=number < COUNT, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _coefficients(
    row,
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
    COUNT: tl.constexpr,
    INNER: tl.constexpr,
    ITERS: tl.constexpr,
):
    """pre, post and comb of a row.

    All in one shape, [N / M, M]: the first of N / M lines is pre, the second post, M lines are comb
    by source, and the next begins with the sum of squares.
    """
    line, b = tl.arange(0, N // M)[:, None], tl.arange(0, M)[None, :]
    k = line * M + b
    row = row.to(tl.int64)
    mixed = _sum(partials, num_rows * N, row * N + tl.arange(0, N), COUNT, INNER, N)
    squares = tl.sum(tl.where(tl.arange(0, N) == M * (M + 2), mixed, 0.0), 0)
    mixed = tl.reshape(mixed, (N // M, M))
    rescale = tl.rsqrt(squares / (M * D) + norm_eps)
    factor = tl.where(line == 0, tl.load(scale), tl.load(scale + 1))
    is_comb = (line >= 2) & (line < M + 2)
    factor = tl.where(is_comb, tl.load(scale + 2), factor)
    offset = tl.load(base + k, mask=k < M * (M + 2), other=0.0)
    mixed = tl.where(line < M + 2, mixed, 0.0) * rescale * factor + offset

    # Not `maximum`: NaN must stay NaN.
    share = 1 / (1 + tl.exp(-tl.where(mixed < -80.0, -80.0, mixed)))
    tl.store(pre + row * M + k, share + eps, mask=line == 0)
    tl.store(post + row * M + k - M, share * 2, mask=line == 1)

    share = tl.exp(mixed - tl.max(mixed, 1, keep_dims=True))
    share = tl.where(is_comb, share / tl.sum(share, 1, keep_dims=True) + eps, 0.0)
    share = share / (tl.sum(share, 0, keep_dims=True) + eps)
    for _ in range(ITERS - 1):
        share = share / (tl.sum(share, 1, keep_dims=True) + eps)
        share = share / (tl.sum(share, 0, keep_dims=True) + eps)
    tl.store(comb + row * (M * M) + k - 2 * M, share, mask=is_comb)


@triton.jit(do_not_specialize=["num_rows"])
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
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    COUNT: tl.constexpr,
    INNER: tl.constexpr,
    ITERS: tl.constexpr,
):
    """Two programs a row: its coefficients, and its norm."""
    program = tl.program_id(0)
    if program < num_rows:
        # These first: they take longest.
        _coefficients(
            program, partials, scale, base, pre, post, comb, norm_eps, eps, num_rows,
            D, M, N, COUNT, INNER, ITERS,
        )  # fmt: skip
    else:
        _norm_row(program - num_rows, collapsed, weight, u, norm_eps, D, WIDTH)
