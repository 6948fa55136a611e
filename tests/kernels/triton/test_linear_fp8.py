"""A few rows, or some dozen, times FP8 weights (spec 8)."""

import pytest
import torch

from deepinfer.kernels.triton import linear_fp8 as module
from deepinfer.kernels.triton.linear_fp8 import (
    ROWS,
    Tiling,
    add_parts,
    choose_tiling,
    linear_fp8,
    most_rows,
)
from deepinfer.kernels.triton.packed_fp8 import PackedFp8, pack_fp8
from tests.kernels.triton.test_packed_fp8 import coded

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]


def made(generator, device, shape):
    """Rows, a weight and the weight packed, of groups, inputs and outputs."""
    groups, num_inputs, num_outputs = shape
    weight = coded(generator, num_inputs, groups * num_outputs).to(device)
    x = torch.randn((ROWS, groups, num_inputs), generator=generator).bfloat16().to(device)
    return x[:, 0] if groups == 1 else x, weight, pack_fp8(weight, groups)


def check(actual, x, weight):
    """Against float64, group by group."""
    x = x if x.dim() == 3 else x[:, None]
    parts = weight.double().unflatten(0, (x.shape[1], -1))
    expected = torch.einsum("tgi,goi->tgo", x.double(), parts).flatten(1)
    assert actual.shape == expected.shape and actual.dtype == torch.bfloat16
    scale = expected.square().mean(-1, keepdim=True).sqrt()
    error = ((actual.double() - expected).abs() / (expected.abs() + 0.1 * scale)).max().item()
    print(f"relerr {error:.2e}")
    # Half a step of bf16, and a float32 sum's error where much cancels out.
    assert error <= 1.01 * 2**-8


TOYS = [(1, 64, 96), (1, 256, 64), (2, 288, 32), (4, 32, 96), (1, 544, 160), (1, 1024, 320)]
RELEASED = [
    (1, 1280, 32768),
    (1, 8192, 5120),
    (8, 4096, 1024),
    (1, 5120, 4608),
    (1, 2304, 5120),
    (1, 5120, 1792),
    (1, 1280, 4096),
]


@pytest.mark.parametrize("num_rows", [1, 4, 17, 32, 33, 64, 65, 127, 128])
@pytest.mark.parametrize("shape", TOYS, ids=str)
def test_product(generator, device, needs_gpu, shape, num_rows):
    """Guards the order of codes and rows, scales of every block, groups, padding of rows, outputs
    and inputs.
    """
    x, weight, packed = made(generator, device, shape)
    check(linear_fp8(x[:num_rows], packed), x[:num_rows], weight)


@pytest.mark.parametrize("shape", RELEASED, ids=str)
def test_as_released(generator, device, needs_gpu, shape):
    """Guards the same in the shapes and tilings that run; that a product's bits do not change from
    one time to the next, nor in a batch of few.
    """
    x, weight, packed = made(generator, device, shape)
    few = linear_fp8(x[:32], packed)
    for num_rows in (1, 8, 17, 32, 64, 100, 128):
        actual = linear_fp8(x[:num_rows], packed)
        check(actual, x[:num_rows], weight)
        assert num_rows > 32 or torch.equal(actual, few[:num_rows])
        for _ in range(5):
            assert torch.equal(linear_fp8(x[:num_rows], packed), actual)


SHAPES = [(8, 2, 1), (8, 2, 2), (8, 1, 2), (4, 2, 1), (4, 2, 2), (4, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows, stages, splits", [(32, 3, 1), (64, 4, 3), (128, 3, 7)])
def test_tilings(generator, device, needs_gpu, monkeypatch, shape, rows, stages, splits):
    """Guards every form of the kernel: shares that do not divide the inputs, or have none, stages
    that come round several times.
    """
    tiling = Tiling(rows, *shape, stages, splits)
    monkeypatch.setattr(module, "choose_tiling", lambda *_: tiling)
    x, weight, packed = made(generator, device, (2, 2080, 256))
    check(linear_fp8(x[: rows - 3], packed), x[: rows - 3], weight)


def test_order(generator):
    """Guards the order in which a product adds up, as torch does it: what the kernel makes of words
    of codes are weights, input by input where it puts the rows' pairs.
    """
    weight = coded(generator, 256, 128)
    packed = pack_fp8(weight)
    words = packed.words.unflatten(1, (4, 2))[:, 1]  # eight units, the second 64 inputs
    factors = packed.factors.unflatten(1, (4, 2))[:, 1].repeat_interleave(2, 0)[..., None]
    factor = (factors << 16).view(torch.float32)
    firsts, seconds = 0x87F087F0 - 2**32, 0x80F080F0 - 2**32
    pairs = words & firsts, ((words << 4) & seconds) | ((words >> 4) & 0x07000700)
    halves = [
        (half.view(torch.float32) * factor)
        for pair in pairs
        for half in (pair << 16, pair & -65536)
    ]
    tile = torch.stack(halves, -1).unflatten(-1, (2, 2)).transpose(-1, -2)
    # As in the kernel.
    tile = tile.reshape(8, 2, 8, 4, 2, 2, 2, 2).permute(0, 5, 2, 1, 7, 4, 3, 6).reshape(128, 64)
    place = torch.arange(32)
    pair = (place & -16) | ((place & 3) << 2) | ((place & 4) >> 1) | ((place & 8) >> 3)
    inputs = 64 + (2 * pair[:, None] + torch.arange(2)).flatten()
    assert torch.equal(tile, weight[:, inputs].float())


@pytest.mark.parametrize("splits", [2, 5])
def test_add_parts(generator, device, splits):
    """Guards the sum of shares: its order, groups, padded outputs, and rows that are not there."""
    parts = torch.randn((splits, 3 * 64, 32), generator=generator).to(device)
    out = torch.full((19, 3 * 32), torch.nan, dtype=torch.bfloat16, device=device)
    add_parts(parts, out, 3)
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part
    expected = expected.unflatten(0, (3, 64))[:, :32].flatten(0, 1)[:, :19].T
    assert torch.equal(out, expected.bfloat16())


def test_choice():
    """Guards the choice of tilings: whole tiles, all programs at once, shared memory that a
    multiprocessor has.
    """
    for groups, num_inputs, num_outputs in RELEASED + TOYS:
        units, blocks = -(-num_outputs // 64) * 4, -(-num_inputs // 256) * 8
        words = torch.empty((groups * units, blocks, 0))
        packed = PackedFp8(words, words, groups, num_outputs, num_inputs)
        for num_rows in (1, 17, 32, 33, 64, 65, 128):
            tiling = choose_tiling(packed, num_rows)
            assert tiling.rows >= num_rows and units % (tiling.warps * tiling.reps) == 0
            assert tiling.reps * tiling.subs > 1 and tiling.stages >= 3
            width = 16 * tiling.warps * tiling.reps + 2 * tiling.rows
            assert 64 * tiling.subs * tiling.stages * width < 220_000
            programs = groups * units // (tiling.warps * tiling.reps) * tiling.splits
            if num_inputs > 1000 and num_outputs > 1000:
                assert 80 <= programs <= 264


def test_refused(device, needs_gpu, generator):
    """Guards the limits: rows, sizes, groups; and no rows at all."""
    packed = pack_fp8(coded(generator, 64, 128).to(device), 2)
    assert 32 <= most_rows(packed) <= ROWS
    assert linear_fp8(torch.empty((0, 2, 64), device=device).bfloat16(), packed).shape == (0, 128)
    for shape in ((129, 2, 64), (20, 64), (20, 2, 32)):
        with pytest.raises(ValueError, match="rows"):
            linear_fp8(torch.empty(shape, device=device).bfloat16(), packed)


def test_parts_of_wider_rows(device, needs_gpu, generator):
    """Guards rows and groups that do not lie together, and a NaN: it stays in its row."""
    packed = pack_fp8(coded(generator, 64, 2 * 32).to(device), 2)
    wide = torch.randn((20, 3, 96), generator=generator).bfloat16().to(device)
    part = wide[:, 1:, 16:80]
    sound = linear_fp8(part.contiguous(), packed)
    assert torch.equal(linear_fp8(part, packed), sound)
    # Rows that start in the middle of a pair.
    assert torch.equal(linear_fp8(wide.roll(-1, 2)[:, 1:, 15:79], packed), sound)
    part[1, :, 7] = torch.nan
    broken = linear_fp8(part, packed)
    others = [0, *range(2, 20)]
    assert broken[1].isnan().all() and torch.equal(broken[others], sound[others])


@pytest.mark.parametrize("exponent", [-20, 7])
def test_all_codes(generator, device, needs_gpu, exponent):
    """Guards unpacking: every code times a scale comes back bit for bit."""
    numbers = torch.arange(256, dtype=torch.uint8)
    numbers = numbers[(numbers & 0x7F) != 0x7F]  # not the NaN
    codes = torch.stack([numbers[torch.randperm(254, generator=generator)] for _ in range(50)])
    codes = codes.flatten()[: 96 * 96].view(96, 96).view(torch.float8_e4m3fn).float()
    weight = (codes * 2.0**exponent).bfloat16().to(device)
    found = linear_fp8(torch.eye(96, device=device).bfloat16(), pack_fp8(weight))
    assert torch.equal(found.T, weight)
