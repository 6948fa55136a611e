"""The two Triton kernels of `sinkhorn.py`. A program works on ROWS matrices of SIZE x SIZE, kept in
registers from the first division to the last.

Their arguments have no types: older compilers of Triton do not know the names that would stand
there.
"""
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913, PLR0917

import triton
import triton.language as tl


@triton.jit
def _places(num_rows, SIZE: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    a = tl.arange(0, SIZE)
    matrix = row[:, None, None] * (SIZE * SIZE) + a[None, :, None] * SIZE + a[None, None, :]
    vector = row[:, None] * SIZE + a[None, :]
    return matrix, vector, row[:, None, None] < num_rows, row[:, None] < num_rows


@triton.jit
def forward_kernel(
    logits,
    comb,
    sums,
    num_rows,
    eps,
    num_iters,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Logits [T, M, M] -> comb [T, M, M] and sums [2 * num_iters - 1, T, M]."""
    matrix, vector, inside, inside_vector = _places(num_rows, SIZE, ROWS)
    x = tl.load(logits + matrix, mask=inside, other=0.0)
    x = tl.exp(x - tl.max(x, axis=2)[:, :, None])
    x = x / tl.sum(x, axis=2)[:, :, None] + eps
    stride = num_rows * SIZE
    columns = tl.sum(x, axis=1)
    tl.store(sums + vector, columns, mask=inside_vector)
    x = x / (columns + eps)[:, None, :]
    for i in range(1, num_iters):
        rows = tl.sum(x, axis=2)
        tl.store(sums + (2 * i - 1) * stride + vector, rows, mask=inside_vector)
        x = x / (rows + eps)[:, :, None]
        columns = tl.sum(x, axis=1)
        tl.store(sums + 2 * i * stride + vector, columns, mask=inside_vector)
        x = x / (columns + eps)[:, None, :]
    tl.store(comb + matrix, x, mask=inside)


@triton.jit
def backward_kernel(
    grad,
    comb,
    sums,
    out,
    num_rows,
    eps,
    num_iters,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Gradient of comb -> gradient of the logits."""
    matrix, vector, inside, inside_vector = _places(num_rows, SIZE, ROWS)
    g = tl.load(grad + matrix, mask=inside, other=0.0)
    y = tl.load(comb + matrix, mask=inside, other=0.0)
    stride = num_rows * SIZE
    for back in range(1, num_iters):
        i = num_iters - back
        divisor = tl.load(sums + 2 * i * stride + vector, mask=inside_vector, other=1.0) + eps
        g = (g - tl.sum(g * y, axis=1)[:, None, :]) / divisor[:, None, :]
        y = y * divisor[:, None, :]
        place = sums + (2 * i - 1) * stride + vector
        divisor = tl.load(place, mask=inside_vector, other=1.0) + eps
        g = (g - tl.sum(g * y, axis=2)[:, :, None]) / divisor[:, :, None]
        y = y * divisor[:, :, None]
    divisor = tl.load(sums + vector, mask=inside_vector, other=1.0) + eps
    g = (g - tl.sum(g * y, axis=1)[:, None, :]) / divisor[:, None, :]
    share = y * divisor[:, None, :] - eps
    g = share * (g - tl.sum(g * share, axis=2)[:, :, None])
    tl.store(out + matrix, g, mask=inside)
