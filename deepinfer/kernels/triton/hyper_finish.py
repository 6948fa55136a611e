"""The second kernel of `hyper`: sums of parts, coefficients, norms. `hyper` says why.

Its programs may start while the first kernel ends (`chain`): they read weights, and then wait for
all of it.
"""

import triton
import triton.language as tl

from deepinfer.kernels.triton import chain

ROWS = 4  # whose coefficients one program makes


@triton.jit
def _norm_row(
    row, collapsed, weight, u, eps, D: tl.constexpr, SPAN: tl.constexpr, CHAINED: tl.constexpr
):
    """u[row] = rms_norm(collapsed[row]), SPAN columns at a time."""
    offset = row.to(tl.int64) * D
    parts, gains = (), ()
    squares = tl.zeros([SPAN], tl.float32)
    for start in tl.static_range(0, D, SPAN):
        columns = start + tl.arange(0, SPAN)
        gains += (tl.load(weight + columns, mask=columns < D, other=0.0).to(tl.float32),)
    chain.wait(CHAINED)
    for start in tl.static_range(0, D, SPAN):
        columns = start + tl.arange(0, SPAN)
        x = tl.load(collapsed + offset + columns, mask=columns < D, other=0.0).to(tl.float32)
        parts += (x,)
        squares += x * x
    rescale = tl.rsqrt(tl.sum(squares, 0) / D + eps)
    for i in tl.static_range(len(parts)):
        columns = i * SPAN + tl.arange(0, SPAN)
        normed = (parts[i] * rescale * gains[i]).to(u.dtype.element_ty)
        tl.store(u + offset + columns, normed, mask=columns < D)


@triton.jit
def norm_rows(
    collapsed, weight, u, eps, D: tl.constexpr, SPAN: tl.constexpr, CHAINED: tl.constexpr
):
    """rms_norm of a row."""
    _norm_row(tl.program_id(0), collapsed, weight, u, eps, D, SPAN, CHAINED)


@triton.jit
def _sum(partials, step, place, inside, COUNT: tl.constexpr, INNER: tl.constexpr):
    """The sum over COUNT partials at each place: INNER after the other, as `tile` adds them where
    it makes fewer, and then all of these in the order of a tree that depends on their number alone.
    """
    GROUPS: tl.constexpr = (COUNT + INNER - 1) // INNER
    SPAN: tl.constexpr = triton.next_power_of_2(GROUPS)
    group = tl.arange(0, SPAN)[:, None]
    total = tl.zeros([SPAN, place.shape[0]], tl.float32)
    for inner in tl.static_range(INNER):
        number = group * INNER + inner
        is_there = (number < COUNT) & inside[None, :]
        total += tl.load(partials + number * step + place[None, :], mask=is_there, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _halves(x):
    """x [R, N] as two of [R, N / 2]."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def _each(x, R: tl.constexpr, N: tl.constexpr):
    """x [R * N] as N vectors [R]: what is in one thread then needs no other."""
    parts = (tl.reshape(x, (R, N)),)
    for _ in tl.static_range(N.bit_length() - 1):
        halves = ()
        for i in tl.static_range(len(parts)):
            halves += _halves(parts[i])
        parts = halves
    vectors = ()
    for i in tl.static_range(N):
        vectors += (tl.reshape(parts[i], (R,)),)
    return vectors


@triton.jit
def _inverse(x, NATIVE: tl.constexpr):
    """1 / x for positive x far from the ends of float32, to its last bit or so."""
    if NATIVE:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1
        )
    return 1 / x


@triton.jit
def _sigmoid(x):
    # Not `maximum`: NaN must stay NaN.
    return 1 / (1 + tl.exp(-tl.where(x < -80.0, -80.0, x)))


@triton.jit
def _over_lines(values, eps, M: tl.constexpr, NATIVE: tl.constexpr):
    """A matrix [M, M], each number divided by its line's sum + eps."""
    shares = ()
    for a in tl.static_range(M):
        total = values[a * M] + values[a * M + 1]
        if M == 4:
            total += values[a * M + 2] + values[a * M + 3]
        factor = _inverse(total + eps, NATIVE)
        for b in tl.static_range(M):
            shares += (values[a * M + b] * factor,)
    return shares


@triton.jit
def _turned(values, M: tl.constexpr):
    """Its transpose."""
    turned = ()
    for b in tl.static_range(M):
        for a in tl.static_range(M):
            turned += (values[a * M + b],)
    return turned


@triton.jit
def _softmax(values, eps, M: tl.constexpr, NATIVE: tl.constexpr):
    """Of each line of a matrix, + eps."""
    shares = ()
    for a in tl.static_range(M):
        top = values[a * M]
        for b in tl.static_range(1, M):
            # NaN must stay NaN: the sums below see to that.
            top = tl.maximum(top, values[a * M + b])
        for b in tl.static_range(M):
            shares += (tl.exp(values[a * M + b] - top),)
    normed = ()
    shares = _over_lines(shares, 0.0, M, NATIVE)
    for i in tl.static_range(M * M):
        normed += (shares[i] + eps,)
    return normed


@triton.jit
def _coefficients(
    first, partials, scale, base, pre, post, comb, norm_eps, eps, num_rows,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    COUNT: tl.constexpr, INNER: tl.constexpr, ITERS: tl.constexpr,
    R: tl.constexpr, NATIVE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """pre, post and comb of R rows from `first` on. A number of each row is a vector: a thread has
    all of a row's, and the iterations wait for nobody."""
    rows = first + tl.arange(0, R)
    there = rows < num_rows
    factors, offsets = (), ()
    for k in tl.static_range(M * (M + 2)):
        factors += (tl.load(scale + min(k // M, 2)),)
        offsets += (tl.load(base + k),)
    # The compiler would read these, which come from far, only when the sums are there.
    tl.debug_barrier()
    chain.wait(CHAINED)
    place = tl.arange(0, R * N)
    inside = place < (num_rows - first) * N
    total = _sum(partials + first.to(tl.int64) * N, num_rows * N, place, inside, COUNT, INNER)
    mixed = _each(total, R, N)
    rescale = tl.rsqrt(mixed[M * (M + 2)] / (M * D) + norm_eps)
    values = ()
    for k in tl.static_range(M * (M + 2)):
        values += (mixed[k] * rescale * factors[k] + offsets[k],)
    for k in tl.static_range(M):
        tl.store(pre + rows * M + k, _sigmoid(values[k]) + eps, mask=there)
        tl.store(post + rows * M + k, _sigmoid(values[M + k]) * 2, mask=there)
    shares = _turned(_softmax(values[2 * M :], eps, M, NATIVE), M)
    shares = _turned(_over_lines(shares, eps, M, NATIVE), M)
    for _ in range(ITERS - 1):
        shares = _turned(_over_lines(shares, eps, M, NATIVE), M)
        shares = _turned(_over_lines(shares, eps, M, NATIVE), M)
    for k in tl.static_range(M * M):
        tl.store(comb + rows.to(tl.int64) * (M * M) + k, shares[k], mask=there)


@triton.jit(do_not_specialize=["num_rows"])
def finish(
    collapsed, weight, u, partials, scale, base, pre, post, comb, norm_eps, eps, num_rows,
    D: tl.constexpr, SPAN: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    COUNT: tl.constexpr, INNER: tl.constexpr, ITERS: tl.constexpr,
    R: tl.constexpr, NATIVE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A program for the coefficients of R rows, then R for their norms: so that those that wait
    run beside those that move bytes."""
    block, part = tl.program_id(0) // (R + 1), tl.program_id(0) % (R + 1)
    row = block * R + part - 1
    if part == 0:
        _coefficients(
            block * R, partials, scale, base, pre, post, comb, norm_eps, eps, num_rows,
            D, M, N, COUNT, INNER, ITERS, R, NATIVE, CHAINED,
        )  # fmt: skip
    elif row < num_rows:
        _norm_row(row, collapsed, weight, u, norm_eps, D, SPAN, CHAINED)
