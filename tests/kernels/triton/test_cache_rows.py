"""Fused norm, rotation and quantisation against the reference ops (spec 5, 6, 14)."""

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.reference import norm_rope, quant
from deepinfer.kernels.triton import cache_rows
from deepinfer.kernels.triton.latents import latent_rows
from deepinfer.kernels.values import Rotary, Target
from tests.kernels.triton.packed import decode

pytestmark = pytest.mark.gpu

EPS = 1e-20
FP4_POINTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0)


def angles(generator: torch.Generator, rows: int, pairs: int) -> tuple[Tensor, Tensor]:
    turn = torch.rand(rows, pairs, generator=generator) * 1000
    return turn.cos(), turn.sin()


def still(rows: int, pairs: int) -> tuple[Tensor, Tensor]:
    return torch.ones(rows, pairs), torch.zeros(rows, pairs)


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator).bfloat16()


def neighbours(x: Tensor) -> Tensor:
    """bf16 values and the bf16 next to each on both sides, both signs."""
    bits = x.bfloat16().abs().view(torch.int16)
    near = torch.cat([bits, bits + 1, (bits - 1).clamp_min(0)]).view(torch.bfloat16)
    return torch.cat([near, -near])


def groups(size: int, generator: torch.Generator) -> Tensor:
    """bf16 [groups, size]: rounding borders at many scales, zeros, tiny, huge, NaN, infinite."""
    e4m3 = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    fp8 = torch.cat([e4m3, (e4m3[1:] + e4m3[:-1]) / 2])
    parts = []
    for points, top in ((fp8, 448.0), (torch.tensor(FP4_POINTS), 6.0)):
        for scale in (1.0, 2.0**-9, 1.125, 3.5, 0.8125, 2.0**-20, 2.0**20, 2.0**-100, 2.0**100):
            near = neighbours(points * scale)
            near = torch.cat([near, near.new_zeros(-len(near) % (size - 1))]).view(-1, size - 1)
            largest = torch.full((len(near), 1), top * scale, dtype=torch.bfloat16)
            parts.append(torch.cat([near.clamp(-top * scale, top * scale), largest], 1))
    power = 2.0 ** torch.randint(-120, 120, (60, 1), generator=generator)
    parts.append((torch.randn(60, size, generator=generator) * power).bfloat16())
    odd = torch.zeros(10, size)
    odd[1], odd[2, 1], odd[3], odd[4, 3] = 3.3e38, 1e-40, 1.2e-38, 3.3e38
    odd[5, 2], odd[6, 5], odd[7, 0], odd[8], odd[9] = torch.nan, torch.inf, -torch.inf, -0.0, 1e-4
    odd[5:8, 4] = 1.0
    return torch.cat([*parts, odd.bfloat16()])


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(
        found.float().cpu(), expected.float().cpu(), rtol=0, atol=0, equal_nan=True
    )


def rows_of(size: int, width: int, generator: torch.Generator) -> Tensor:
    flat = groups(size, generator).flatten()
    return torch.cat([flat, flat.new_zeros(-len(flat) % width)]).view(-1, width)


@pytest.mark.parametrize("is_fp4", [True, False])
def test_entry_rows_to_the_bit(is_fp4, device, generator):
    """Guards every rounding border, zeros, tiny, huge and NaN of the entries' two formats."""
    x = rows_of(16 if is_fp4 else 32, 512, generator)
    trip = quant.round_trip_nvfp4 if is_fp4 else quant.round_trip_fp8
    found = cache_rows.entry_rows(x.to(device), *(a.to(device) for a in still(len(x), 32)), is_fp4)
    assert found.dtype == torch.uint8 and found.shape == (len(x), 288 if is_fp4 else 528)
    same(decode(found, 512), trip(x))


def test_index_query_to_the_bit(device, generator):
    """Guards every rounding border, zeros, tiny, huge and NaN of MXFP4."""
    x = rows_of(32, 128, generator)
    x = torch.cat([x, x.new_zeros(-len(x) % 4, 128)]).view(-1, 4, 128)
    found = cache_rows.index_query(x.to(device), *(a.to(device) for a in still(len(x), 32)))
    assert found.dtype == torch.bfloat16
    same(found, quant.round_trip_mxfp4(x))


@pytest.mark.parametrize("name", ["window_rows", "index_rows"])
def test_normed_rows_to_the_bit(name, device, generator):
    """Guards the borders behind a norm: of rows of 1 and -1 it leaves the weight, exactly."""
    width = 512 if name == "window_rows" else 128
    trip = quant.round_trip_fp8 if name == "window_rows" else quant.round_trip_mxfp4
    weights = rows_of(32, width, generator)
    keep = torch.randperm(len(weights) - 2, generator=generator)[:12].tolist()
    for weight in weights[[*keep, len(weights) - 2, len(weights) - 1]]:
        x = torch.randint(0, 2, (3, width), generator=generator).mul(2).sub(1).bfloat16()
        turn = (a.to(device) for a in still(3, 32))
        found = getattr(cache_rows, name)(x.to(device), weight.to(device), EPS, *turn)
        same(decode(found, width), trip(x * weight))


@pytest.mark.parametrize("channels", [32, 64, 128, 512])
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_whole_rows(rows, channels, device, generator):
    """Guards the order of norm, rotation and rounding, and which channels turn."""
    pairs = channels // 8
    x, weight = draw(generator, rows, channels), draw(generator, channels)
    turn = angles(generator, rows, pairs)
    there = [a.to(device) for a in (x, weight, *turn)]
    normed = norm_rope.rotate(norm_rope.rms_norm(x, weight, EPS), *turn)
    plain = norm_rope.rotate(x, *turn)
    found = (
        (cache_rows.window_rows(there[0], there[1], EPS, *there[2:]), quant.round_trip_fp8(normed)),
        (
            cache_rows.index_rows(there[0], there[1], EPS, *there[2:]),
            quant.round_trip_mxfp4(normed),
        ),
        (cache_rows.entry_rows(there[0], *there[2:], True), quant.round_trip_nvfp4(plain)),
        (cache_rows.entry_rows(there[0], *there[2:], False), quant.round_trip_fp8(plain)),
    )
    for packed, true in found:
        actual, expected = decode(packed, channels).cpu(), true.float()
        # A last bit of the norm or the rotation may carry a value over a border, seldom.
        differs = actual != expected
        print(f"differ {differs.float().mean():.2e}")
        assert differs.float().mean() <= 0.01
        largest = expected.unflatten(-1, (-1, 16)).abs().amax(-1, keepdim=True)
        step = (actual - expected).abs().unflatten(-1, (-1, 16))
        assert (step <= largest / 3).all()


@pytest.mark.parametrize("rows", [0, 1, 17])
@pytest.mark.parametrize("channels", [64, 512])
def test_window_rows_into_a_store(rows, channels, device, generator):
    """Guards rows that go straight to their places: the same bytes, and no byte beside them."""
    x, weight = (
        draw(generator, rows, 3 * channels)[:, channels : 2 * channels],
        torch.ones(channels),
    )
    there = [a.to(device) for a in (x, weight, *angles(generator, rows, channels // 8))]
    width = channels + channels // 32
    store = torch.randint(0, 256, (40, width), generator=generator, dtype=torch.uint8).to(device)
    places = torch.randperm(40, generator=generator)[:rows].to(device)
    expected = store.clone()
    expected[places] = cache_rows.window_rows(there[0], there[1], EPS, *there[2:])
    found = cache_rows.window_rows(there[0], there[1], EPS, *there[2:], Target(store, places))
    assert found is store
    assert torch.equal(found, expected)


@pytest.mark.parametrize("rows", [0, 1, 17])
@pytest.mark.parametrize("sizes", [(48, 64), (100, 512), (1280, 512)])
@pytest.mark.parametrize("is_placed", [False, True])
def test_latents_beside_the_window(rows, sizes, is_placed, device, generator):
    """Guards the kernel that makes both: of one product's rows, each as the kernel for it alone."""
    width, channels = sizes
    both = draw(generator, rows, width + channels).to(device)
    latent, kv = both.split(sizes, -1)
    gain, kv_gain = ((draw(generator, size).to(device), EPS) for size in sizes)
    turn = Rotary(*(a.to(device) for a in angles(generator, rows, channels // 8)))
    stores = [torch.zeros(20, channels + channels // 32, dtype=torch.uint8) for _ in range(2)]
    places = torch.randperm(20, generator=generator)[:rows].to(device)
    ours, theirs = (Target(store.to(device), places) if is_placed else None for store in stores)
    normed, window = latent_rows(latent, gain, kv, kv_gain, turn, ours)
    assert torch.equal(normed, cache_rows.rms_norm(latent, *gain))
    assert torch.equal(window, cache_rows.window_rows(kv, *kv_gain, *turn, theirs))
    assert ours is None or window is ours.store


@pytest.mark.parametrize(("rows", "heads", "channels"), [(1, 1, 32), (3, 5, 128), (17, 4, 64)])
def test_index_query(rows, heads, channels, device, generator):
    """Guards the angles of a row's heads: they belong to the row, not to the head."""
    x, turn = draw(generator, rows, heads, channels), angles(generator, rows, channels // 4)
    found = cache_rows.index_query(x.to(device), *(a.to(device) for a in turn)).cpu()
    expected = quant.round_trip_mxfp4(norm_rope.rotate(x, *turn))
    assert (found != expected).float().mean() <= 0.01
    assert found.isfinite().all()


@pytest.mark.parametrize("channels", [1, 33, 512, 1280, 5120])
@pytest.mark.parametrize("lead", [(1,), (3,), (2, 3), (17,)])
def test_rms_norm(lead, channels, device, generator):
    """Guards widths that fill no block, and leading dimensions."""
    x, weight = draw(generator, *lead, channels) * 3, draw(generator, channels)
    found = cache_rows.rms_norm(x.to(device), weight.to(device), EPS).cpu()
    wide = x.double()
    wide = wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()
    assert found.dtype == torch.bfloat16 and found.shape == x.shape
    print(f"relerr {(found - wide).norm() / wide.norm():.2e}")
    torch.testing.assert_close(found.double(), wide, rtol=2**-8 + 2**-14, atol=1e-30)
    reference = norm_rope.rms_norm(x, weight, EPS)
    assert (found != reference).float().mean() <= 0.01


def test_a_row_of_zeros(device):
    """Guards the norm of nothing, which is nothing and not NaN."""
    x, weight = torch.zeros(2, 64).bfloat16(), torch.ones(64).bfloat16()
    turn = [a.to(device) for a in still(2, 8)]
    assert (cache_rows.rms_norm(x.to(device), weight.to(device), EPS) == 0).all()
    assert (
        decode(cache_rows.window_rows(x.to(device), weight.to(device), EPS, *turn), 64) == 0
    ).all()


def test_rows_apart_none_alone(device, generator):
    """Guards rows that lie apart, no rows at all, and a row's bits against its neighbours."""
    wide, weight = draw(generator, 17, 192).to(device), draw(generator, 128).to(device)
    turn = [a.to(device) for a in angles(generator, 17, 8)]
    part = wide[:, 32:160]
    ops = (
        lambda x, cos, sin: cache_rows.window_rows(x, weight, EPS, cos, sin),
        lambda x, cos, sin: cache_rows.index_rows(x, weight, EPS, cos, sin),
        lambda x, cos, sin: cache_rows.entry_rows(x, cos, sin, True),
        lambda x, cos, sin: cache_rows.index_query(x.unflatten(1, (2, 64)), cos, sin),
        lambda x, cos, sin: cache_rows.rms_norm(x, weight, EPS),
    )
    for op in ops:
        everything = op(part, *turn)
        assert torch.equal(everything, op(part.contiguous(), *turn))
        assert len(op(part[:0], *(a[:0] for a in turn))) == 0
        for rows in (slice(3, 4), slice(3, 5)):
            assert torch.equal(everything[rows], op(part[rows], *(a[rows] for a in turn)))
