"""Engram's hash in Python integers and its gate row by row (spec 9.2 to 9.4)."""

import math

import pytest
import torch

from deepinfer.kernels.backends import load_kernels

KERNELS = load_kernels()


def rows_of(window, multipliers, primes, heads):
    """Table rows of one position: sizes 2..n, each with `heads` columns."""
    rows, offset, column = [], 0, 0
    for size in range(2, len(window) + 1):
        hashed = 0
        for back in range(size):
            hashed ^= window[back] * multipliers[back]
        for _ in range(heads):
            rows.append(hashed % primes[column] + offset)
            offset += primes[column]
            column += 1
    return rows


@pytest.mark.parametrize("ngram_size", [2, 3, 4])
def test_engram_rows(ngram_size):
    """Guards the hash at the largest ids: products fill 63 bits and must not overflow."""
    torch.manual_seed(0)
    num_ids, heads = 99092, 2
    bound = (2**63 - 1) // num_ids
    window = torch.randint(0, num_ids, (30, ngram_size))
    window[0] = num_ids - 1
    multipliers = [bound - 2 * i | 1 for i in range(1, ngram_size + 1)]
    primes = [101, 103, 107, 109, 113, 127][: heads * (ngram_size - 1)]
    offsets = [sum(primes[:i]) for i in range(len(primes))]
    actual = KERNELS.engram_rows(
        window, torch.tensor(multipliers), torch.tensor(primes), torch.tensor(offsets)
    )
    assert actual.tolist() == [rows_of(w, multipliers, primes, heads) for w in window.tolist()]


def gated(stream, key, value, q_weight, k_weight, eps):
    """One stream of one row."""
    size = len(stream)
    rms = [math.sqrt(sum(x * x for x in v) / size + eps) for v in (stream, key)]
    terms = zip(stream, key, q_weight, k_weight, strict=True)
    d = sum(x * k * q * w for x, k, q, w in terms) / rms[0] / rms[1] / math.sqrt(size)
    root = math.copysign(math.sqrt(max(abs(d), 1e-6)), d)
    gate = 1 / (1 + math.exp(-root))
    return [x + gate * v for x, v in zip(stream, value, strict=True)]


def test_engram_gate():
    """Guards the gate: both gains, both norms per stream, the signed root."""
    torch.manual_seed(1)
    streams, key, value = torch.randn(6, 3, 8) * 5, torch.randn(6, 3, 8), torch.randn(6, 8)
    q_weight, k_weight = torch.randn(3, 8), torch.randn(3, 8)
    actual = KERNELS.engram_gate(streams, key, value, q_weight, k_weight, 1e-20)
    for row in range(6):
        for m in range(3):
            vectors = (streams[row, m], key[row, m], value[row], q_weight[m], k_weight[m])
            expected = gated(*(v.tolist() for v in vectors), 1e-20)
            torch.testing.assert_close(actual[row, m], torch.tensor(expected))


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_gate_near_zero(sign):
    """Guards the floor of the root: agreement 0 gives a gate just above one half, never NaN."""
    streams = torch.tensor([[[1.0, 0.0]]])
    key = torch.tensor([[[sign * 1e-9, 1.0]]])
    value, gain = torch.tensor([[1.0, 1.0]]), torch.ones(1, 2)
    actual = KERNELS.engram_gate(streams, key, value, gain, gain, 1e-20)
    gate = 1 / (1 + math.exp(-1e-3 if sign >= 0 else 1e-3))
    torch.testing.assert_close(actual - streams, torch.full((1, 1, 2), gate))


def test_gate_of_zero_rows():
    """Guards the epsilon: zero streams and zero keys agree in nothing and are finite."""
    actual = KERNELS.engram_gate(
        torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), torch.ones(1, 4), *[torch.ones(2, 4)] * 2, 1e-20
    )
    torch.testing.assert_close(actual, torch.full((1, 2, 4), 1 / (1 + math.exp(-1e-3))))
