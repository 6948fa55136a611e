"""Engram's hash, table rows and gate, and the pooling of entries (spec 9, 7.3)."""

import pytest
import torch

from deepinfer.kernels.reference import compress
from deepinfer.kernels.reference import engram as reference
from deepinfer.kernels.reference.quant import decode_fp8_rows, decode_ue8m0
from deepinfer.kernels.triton.engram import engram_gate, engram_gather, engram_rows
from deepinfer.kernels.triton.pool import pool_pairs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]


@pytest.mark.parametrize("num_rows", [0, 1, 3, 17])
@pytest.mark.parametrize(("size", "heads"), [(2, 1), (3, 2), (4, 8)])
def test_rows(generator, device, num_rows, size, heads):
    """Guards the hash bit by bit: full products, XOR, the order of columns, the offsets."""
    columns = heads * (size - 1)
    window = torch.randint(0, 99092, (num_rows, size), generator=generator)
    multipliers = torch.randint(0, 46539438283891, (size,), generator=generator) * 2 + 1
    primes = torch.arange(columns) * 2 + 16000057
    args = [t.to(device) for t in (window, multipliers, primes, primes.cumsum(0) - primes)]
    assert torch.equal(engram_rows(*args), reference.engram_rows(*args))


def test_rows_wrap(generator, device):
    """Guards products beyond 63 bits: they wrap, and the remainder is not negative."""
    ends = 2**62
    window = torch.randint(-ends, ends, (33, 4), generator=generator).to(device)
    multipliers = torch.randint(-ends, ends, (4,), generator=generator).to(device)
    primes = torch.tensor([16000057, 7, 2**61 - 1, 16000079, 3, 1]).to(device)
    rows = engram_rows(window, multipliers, primes, primes * 0)
    assert torch.equal(rows, reference.engram_rows(window, multipliers, primes, primes * 0))
    assert ((rows >= 0) & (rows < primes)).all()


def table(generator, height, channels=256):
    codes = torch.randint(0, 256, (height, channels), generator=generator, dtype=torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x7E  # NaN
    scales = torch.randint(100, 140, (height, channels // 32), generator=generator)
    return codes, scales.to(torch.uint8)


def decoded(codes, scales, ids):
    wide = codes[ids].view(torch.float8_e4m3fn).to(torch.float32)
    rows = decode_fp8_rows(wide, decode_ue8m0(scales[ids]))
    return torch.where(ids[..., None] < 0, 0.0, rows)


@pytest.mark.parametrize("shape", [(0, 24), (1, 24), (3, 5), (17, 1)])
@pytest.mark.parametrize("channels", [256, 96])
def test_gather(generator, device, shape, channels):
    """Guards decoding, which is exact, and ids of nothing."""
    codes, scales = table(generator, 50, channels)
    ids = torch.randint(-1, 50, shape, generator=generator)
    rows = engram_gather(codes.to(device), scales.to(device), ids.to(device))
    assert rows.dtype == torch.bfloat16 and rows.shape == (*shape, channels)
    assert torch.equal(rows.float().cpu(), decoded(codes, scales, ids))


def test_gather_smallest_scales(generator, device):
    """Guards scale code 0, a subnormal, and 255, NaN."""
    codes, scales = table(generator, 4)
    codes[:] = 0x7E  # 448
    scales[0], scales[1], scales[2] = 0, 1, 255
    rows = engram_gather(*(t.to(device) for t in (codes, scales, torch.arange(4)))).float().cpu()
    assert torch.equal(rows[:2], decoded(codes, scales, torch.arange(2)))
    assert rows[2].isnan().all()


def test_gather_from_host(generator, released):
    """Guards tables in pinned memory, and one beyond 2**31 bytes."""
    if not released:
        pytest.skip("no GPU")
    codes, scales = table(generator, 1000)
    ids = torch.randint(-1, 1000, (1024, 24), generator=generator)
    rows = engram_gather(codes.pin_memory(), scales.pin_memory(), ids.cuda())
    assert torch.equal(rows.float().cpu(), decoded(codes, scales, ids))
    height = 10_000_000
    codes = torch.zeros((height, 256), dtype=torch.uint8, device="cuda")
    scales = torch.full((height, 8), 127, dtype=torch.uint8, device="cuda")
    codes[-1] = 0x38  # 1
    rows = engram_gather(codes, scales, torch.tensor([height - 1, 0]).cuda())
    assert (rows[0] == 1).all() and (rows[1] == 0).all()


def gate_case(generator, device, dtype, rows, streams, size):
    def normal(*shape):
        return torch.randn(shape, generator=generator).to(device)

    # As the projection leaves them: keys and value in one row.
    kv = normal(rows, (streams + 1) * size).to(dtype)
    key, value = kv.split((streams * size, size), -1)
    gains = normal(streams, size), normal(streams, size)
    return (
        (normal(rows, streams, size) * 5).to(dtype),
        key.unflatten(1, (streams, size)),
        value,
        *gains,
    )


def exact_gate(streams, key, value, q_weight, k_weight):
    x, k, v, q, w = (t.double() for t in (streams, key, value, q_weight, k_weight))
    rescale = ((x.square().mean(-1) + 1e-20) * (k.square().mean(-1) + 1e-20)).rsqrt()
    d = (x * q * w * k).sum(-1) * rescale * x.shape[-1] ** -0.5
    gate = torch.sigmoid(torch.copysign(d.abs().clamp_min(1e-6).sqrt(), d))
    return x + gate[..., None] * v[:, None]


@pytest.mark.parametrize("shape", [(0, 4, 32), (1, 4, 64), (3, 2, 100), (17, 4, 33)])
def test_gate(generator, device, released, shape, monkeypatch):
    """Guards the gate against float64: both gains, both norms, the signed root."""
    shapes = [shape, (5, 4, 5120), (301, 4, 5120)] if released else [shape]
    for dtype in (torch.bfloat16,) if device == "cuda" else (torch.float32, torch.bfloat16):
        # The interpreter cuts bf16 off instead of rounding it.
        bound = 1e-5 if dtype == torch.float32 else 2**-8 if device == "cuda" else 2**-7
        for sizes in shapes:
            case = gate_case(generator, device, dtype, *sizes)
            actual, expected = engram_gate(*case, 1e-20), exact_gate(*case)
            assert actual.shape == expected.shape and actual.dtype == dtype
            if not len(expected):
                continue
            theirs = reference.engram_gate(*case, 1e-20)
            torch.testing.assert_close(actual, theirs, rtol=2 * bound, atol=1e-4)
            error = (actual - expected).abs() / expected.abs().clamp_min(0.1)
            print(f"relerr {error.max():.2e}")
            assert error.max() <= bound


def test_gate_batches(generator, device, monkeypatch):
    """Guards batch invariance, however many rows a program gates."""
    case = gate_case(generator, device, torch.bfloat16, 9, 4, 100)
    whole = engram_gate(*case, 1e-20)
    monkeypatch.setattr("deepinfer.kernels.triton.engram._FEW_GATES", 0)
    assert torch.equal(engram_gate(*case, 1e-20), whole)
    for part in (slice(0, 1), slice(8, 9), slice(3, 5)):
        rows = engram_gate(*(t[part] for t in case[:3]), *case[3:], 1e-20)
        assert torch.equal(rows, whole[part])


def test_gate_of_zero_rows(device):
    """Guards the epsilon and the floor of the root: finite, a gate just above one half."""
    zeros = torch.zeros((2, 4, 64), device=device, dtype=torch.bfloat16)
    gains = torch.ones((4, 64), device=device)
    actual = engram_gate(zeros, zeros, zeros[:, 0] + 1, gains, gains, 1e-20)
    torch.testing.assert_close(actual, torch.full_like(actual, 0.5), rtol=2**-7, atol=0)


def test_gate_not_a_number(generator, device):
    """Guards the clamps: a NaN in a key goes through them, into its own row and stream alone."""
    streams, key, value, *gains = gate_case(generator, device, torch.bfloat16, 3, 4, 64)
    key[1, 2, 5] = torch.nan
    gated = engram_gate(streams, key, value, *gains, 1e-20)
    assert gated[1, 2].isnan().all() and gated.isnan().sum() == 64


@pytest.mark.parametrize("num_entries", [0, 1, 3, 17])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_pool(generator, device, num_entries, count):
    """Guards the pooling against float64: scores far apart, members anywhere and in any order."""
    both = (torch.randn((40, 2, 520), generator=generator) * 20).to(device)
    values, scores = both[:, 0], both[:, 1]
    members = torch.randint(0, 40, (num_entries, count), generator=generator).to(device)
    actual = pool_pairs(values, scores, members)
    expected = (scores[members].double().softmax(1) * values[members]).sum(1)
    error = ((actual - expected).abs().max() / 20).item() if num_entries else 0.0
    print(f"relerr {error:.2e}")
    assert actual.shape == (num_entries, 520) and error < 1e-5
    theirs = compress.pool_pairs(values[members], scores[members])
    torch.testing.assert_close(actual, theirs, rtol=1e-4, atol=1e-4)
    if num_entries > 1:
        assert torch.equal(pool_pairs(values, scores, members[1:2]), actual[1:2])


def test_pool_of_absent_members(generator, device):
    """Guards -1: a lone member keeps its value, nobody at all gives zeros."""
    values = torch.randn((4, 64), generator=generator).to(device)
    members = torch.tensor([[2, -1], [-1, -1]]).to(device)
    pooled = pool_pairs(values, values, members)
    assert torch.equal(pooled[0], values[2]) and not pooled[1].any()
