"""Hyper-connections against plain loops, and what Sinkhorn promises (spec 4, 18)."""

import math

import pytest
import torch

from deepinfer.kernels.backends import load_kernels

KERNELS = load_kernels()
M, D, T = 3, 5, 4
EPS, NORM_EPS = 1e-6, 1e-20


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def mixed(streams, fn, scale, base, num_iters):
    """pre, post, comb of one row [M][D], in the order of the formulas."""
    flat = [x for stream in streams for x in stream]
    rms = 1 / math.sqrt(sum(x * x for x in flat) / len(flat) + NORM_EPS)
    m = [rms * sum(w * x for w, x in zip(row, flat, strict=True)) for row in fn]
    pre = [sigmoid(m[k] * scale[0] + base[k]) + EPS for k in range(M)]
    post = [2 * sigmoid(m[M + k] * scale[1] + base[M + k]) for k in range(M)]
    comb = []
    for a in range(M):
        places = [2 * M + M * a + b for b in range(M)]
        exps = [math.exp(m[i] * scale[2] + base[i]) for i in places]
        comb.append([e / sum(exps) + EPS for e in exps])
    for iteration in range(num_iters):
        if iteration:
            comb = [[c / (sum(row) + EPS) for c in row] for row in comb]
        columns = [sum(row[b] for row in comb) + EPS for b in range(M)]
        comb = [[row[b] / columns[b] for b in range(M)] for row in comb]
    return pre, post, comb


def parameters() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    size = M * (M + 2)
    return torch.randn(size, M * D), torch.tensor([0.7, 1.3, 2.0]), torch.randn(size)


@pytest.mark.parametrize("num_iters", [1, 2, 20])
def test_hyper_mix(num_iters):
    """Guards the split into pre, post, comb, their scales, and the count of iterations."""
    torch.manual_seed(0)
    streams, (fn, scale, base) = torch.randn(T, M, D), parameters()
    actual = KERNELS.hyper_mix(
        streams, fn, scale, base, norm_eps=NORM_EPS, eps=EPS, num_iters=num_iters
    )
    for row in range(T):
        expected = mixed(
            streams[row].tolist(), fn.tolist(), scale.tolist(), base.tolist(), num_iters
        )
        for ours, plain in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours[row], torch.tensor(plain), rtol=1e-5, atol=1e-6)


def test_bounds_of_the_mix():
    """Guards spec 18, check 4: pre and post in range, columns of comb sum to 1, rows nearly."""
    torch.manual_seed(1)
    fn, scale, base = parameters()
    # Sharper logits would need more iterations.
    fn, scale, base = fn / (M * D) ** 0.5, scale / 2, base / 2
    pre, post, comb = KERNELS.hyper_mix(
        torch.randn(50, M, D) * 30, fn, scale, base, norm_eps=NORM_EPS, eps=EPS, num_iters=20
    )
    assert ((pre > EPS) & (pre < 1 + EPS)).all()
    assert ((post > 0) & (post < 2)).all()
    torch.testing.assert_close(comb.sum(1), torch.ones(50, M), rtol=0, atol=5e-6)
    torch.testing.assert_close(comb.sum(2), torch.ones(50, M), rtol=0, atol=1e-2)


def test_mix_of_silent_streams():
    """Guards the epsilon: streams of zeros give the bases alone, not NaN."""
    torch.manual_seed(2)
    fn, scale, base = parameters()
    pre, post, comb = KERNELS.hyper_mix(
        torch.zeros(1, M, D), fn, scale, base, norm_eps=NORM_EPS, eps=EPS, num_iters=3
    )
    torch.testing.assert_close(pre[0], torch.sigmoid(base[:M]) + EPS)
    torch.testing.assert_close(post[0], 2 * torch.sigmoid(base[M : 2 * M]))
    assert comb.isfinite().all()


def test_hyper_collapse():
    """Guards which axis is summed."""
    torch.manual_seed(3)
    streams, pre = torch.randn(T, M, D), torch.rand(T, M)
    expected = torch.zeros(T, D)
    for row in range(T):
        for stream in range(M):
            expected[row] += pre[row, stream] * streams[row, stream]
    torch.testing.assert_close(KERNELS.hyper_collapse(streams, pre), expected)


def test_hyper_expand():
    """Guards the orientation of comb: its first index is the stream that is read."""
    torch.manual_seed(4)
    y, streams = torch.randn(T, D), torch.randn(T, M, D)
    post, comb = torch.rand(T, M), torch.rand(T, M, M)
    expected = torch.zeros(T, M, D)
    for row in range(T):
        for to in range(M):
            expected[row, to] = post[row, to] * y[row]
            for come_from in range(M):
                expected[row, to] += comb[row, come_from, to] * streams[row, come_from]
    torch.testing.assert_close(KERNELS.hyper_expand(y, streams, post, comb), expected)


def test_one_rounding():
    """Guards bf16: sums are made in float32 and rounded at their end."""
    torch.manual_seed(5)
    y, streams = torch.randn(T, D).bfloat16(), torch.randn(T, M, D).bfloat16()
    post, comb, pre = torch.rand(T, M), torch.rand(T, M, M), torch.rand(T, M)
    collapsed = KERNELS.hyper_collapse(streams, pre)
    expanded = KERNELS.hyper_expand(y, streams, post, comb)
    assert torch.equal(collapsed, KERNELS.hyper_collapse(streams.float(), pre).bfloat16())
    wide = KERNELS.hyper_expand(y.float(), streams.float(), post, comb)
    assert torch.equal(expanded, wide.bfloat16())
