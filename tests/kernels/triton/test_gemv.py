"""Few rows times FP8 weights, whose packing finds the codes of bfloat16 values (spec 8)."""

from collections.abc import Iterator

import pytest
import torch

from deepinfer.kernels.reference.quant import decode_fp8
from deepinfer.kernels.triton.gemv import Tiling, choose_tiling, gemv_fp8, pack_fp8

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Memory that torch hands out is NaN: what a kernel leaves unwritten shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def coded(generator, num_inputs, num_outputs, low=-13, high=-7):
    """A weight [out, in] in bfloat16 as the release would store it in FP8."""
    shape = num_outputs, num_inputs
    codes = (torch.randn(shape, generator=generator) * 60).to(torch.float8_e4m3fn)
    blocks = num_outputs // 32, num_inputs // 32
    exponents = torch.randint(low, high, blocks, generator=generator)
    return decode_fp8(codes.float(), torch.ldexp(torch.ones(blocks), exponents)).bfloat16()


def exact(x, weight):
    """The product in float64, group by group."""
    x = x if x.dim() == 3 else x[:, None]
    parts = weight.double().unflatten(0, (x.shape[1], -1))
    return torch.einsum("tgi,goi->tgo", x.double(), parts).flatten(1)


def check(generator, device, shape, counts):
    """Some numbers of rows against float64; the rows of a batch again alone and in parts of it."""
    groups, num_inputs, num_outputs = shape
    weight = coded(generator, num_inputs, groups * num_outputs).to(device)
    packed = pack_fp8(weight, groups)
    x = torch.randn((16, groups, num_inputs), generator=generator).bfloat16().to(device)
    if groups == 1:
        x = x[:, 0]
    whole = gemv_fp8(x, packed)
    for num_rows in counts:
        actual = gemv_fp8(x[:num_rows], packed)
        assert actual.shape == (num_rows, groups * num_outputs) and actual.dtype == x.dtype
        assert torch.equal(actual, whole[:num_rows])
        expected = exact(x[:num_rows], weight)
        scale = expected.square().mean(-1, keepdim=True).sqrt()
        error = ((actual.double() - expected).abs() / (expected.abs() + 0.1 * scale)).max().item()
        print(f"relerr {error:.2e}")
        # Half a step of bf16, and a float32 sum's error where much cancels out.
        assert error <= 1.01 * 2**-8
    for part in (slice(15, 16), slice(3, 5), slice(4, 16)):
        assert torch.equal(gemv_fp8(x[part], packed), whole[part])


TOYS = [(1, 64, 96), (1, 256, 64), (2, 288, 32), (8, 32, 96), (1, 544, 160), (1, 1024, 32)]
RELEASED = [
    (1, 1280, 32768),
    (1, 8192, 5120),
    (8, 4096, 1024),
    (1, 5120, 4608),
    (1, 2304, 5120),
    (1, 5120, 1792),
    (1, 1280, 4096),
]


@pytest.mark.parametrize("shape", TOYS, ids=str)
def test_product(generator, device, shape):
    """Guards the order of the codes, scales of every block, groups, padding, batch invariance."""
    check(generator, device, shape, (1, 3, 16))


@pytest.mark.parametrize("shape", RELEASED, ids=str)
def test_as_released(generator, device, released, shape):
    """Guards the same in the shapes and tilings that run."""
    if not released:
        pytest.skip("too slow here")
    check(generator, device, shape, (1, 8, 9, 16))


@pytest.mark.parametrize("units, ahead", [(1, 1), (1, 4), (2, 2), (4, 1), (4, 2)])
@pytest.mark.parametrize("warps", [4, 8, 16])
def test_tilings(generator, device, monkeypatch, units, ahead, warps):
    """Guards the assumption behind the choice: tiles of every shape give the same bits, and loops
    of several trips what one of all steps gives.
    """
    weight = coded(generator, 2048, 128).to(device)
    x = torch.randn((8, 2048), generator=generator).bfloat16().to(device)
    packed = pack_fp8(weight)

    def ask(tiling):
        monkeypatch.setattr("deepinfer.kernels.triton.gemv.choose_tiling", lambda *_: tiling)
        return gemv_fp8(x, packed)

    expected = ask(Tiling(1, 1, warps, 64 // warps))
    scale = exact(x, weight).square().mean().sqrt()
    assert (expected.double() - exact(x, weight)).abs().max() <= 2**-7 * 4 * scale
    for eights in (1, 2):
        assert torch.equal(ask(Tiling(units, eights, warps, ahead)), expected)


def test_choice(device):
    """Guards the choice of tilings: tall ones for a tall weight, steps that divide, more warps for
    a small weight, and warps that do not depend on the rows.
    """
    packed = pack_fp8(torch.zeros((4096, 64), device=device).bfloat16())

    def choices(units, blocks):
        shaped = packed._replace(words=packed.words.new_empty((units, blocks, 0)))
        return [choose_tiling(shaped, n) for n in range(1, 17)]

    assert {t.units for t in choices(2048, 40)} == {4}
    assert {t.units for t in choices(112, 160)} == {1}
    assert [t.eights for t in choices(320, 256)] == [1] * 8 + [2] * 8
    for units in (16, 112, 256, 320, 512, 2048):
        for blocks in (8, 40, 72, 128, 160, 256):
            found = choices(units, blocks)
            warps = {t.warps for t in found}
            few = 16 if units <= 132 and blocks % 16 == 0 else 8
            assert warps == {4 if units >= 1000 else few}
            assert all(blocks % (t.warps * t.ahead) == 0 and units % t.units == 0 for t in found)


@pytest.mark.parametrize("exponent", [-126, -117, -20, -7, 0, 7])
def test_all_codes(generator, device, exponent):
    """Guards packing and unpacking: every code times each scale comes back bit for bit."""
    numbers = torch.arange(256, dtype=torch.uint8)
    numbers = numbers[(numbers & 0x7F) != 0x7F]  # not the NaN
    codes = torch.stack([numbers[torch.randperm(254, generator=generator)] for _ in range(50)])
    codes = codes.flatten()[: 96 * 96].view(96, 96).view(torch.float8_e4m3fn).float()
    weight = (codes * 2.0**exponent).bfloat16()
    assert torch.equal(weight.float(), codes * 2.0**exponent) or exponent == -126
    # What is below the least bfloat16 is not a weight that the engine could hold.
    weight[weight.abs() < 2.0**-126] = 0
    packed = pack_fp8(weight.to(device))
    # Times powers of two, as the least weights are below what a product in float32 keeps.
    rows = (torch.eye(96) * 2.0**-exponent if exponent < -100 else torch.eye(96)).bfloat16()
    found = torch.cat([gemv_fp8(part, packed) for part in rows.to(device).split(16)])
    scale = 2.0**-exponent if exponent < -100 else 1.0
    assert torch.equal(found.T.float(), weight.float().to(device) * scale)


def test_blocks_of_zeros(device, generator):
    """Guards the scale of a block without a largest value, and a block of one tiny number."""
    weight = coded(generator, 64, 64)
    weight[:32, 32:] = 0
    weight[32:, :32] = 0
    weight[40, 5] = 1.125 * 2.0**-100
    x = torch.randn((2, 64), generator=generator).bfloat16()
    x[1, 5], x[1, :5], x[1, 6:] = 1.0, 0.0, 0.0
    found = gemv_fp8(x.to(device), pack_fp8(weight.to(device)))
    assert found.isfinite().all() and found[1, 40] == weight[40, 5]


@pytest.mark.parametrize("fault", ["mantissa", "range", "large", "infinite", "nan"])
def test_not_fp8(device, generator, fault):
    """Guards against weights that FP8 cannot express: they are refused, not rounded."""
    weight = coded(generator, 96, 64)
    pack_fp8(weight.to(device))
    weight[40, 70] = {
        "mantissa": 1.0625,
        "range": 2.0**-40,
        "large": 2.0**17,
        "infinite": torch.inf,
        "nan": torch.nan,
    }[fault]
    if fault == "large":
        weight[32:, 64:] = 2.0**17  # alone in its block it would be one code
    with pytest.raises(ValueError, match="e4m3 cannot express"):
        pack_fp8(weight.to(device))


def test_slices(device, generator, monkeypatch):
    """Guards packing a slice at a time: where it is cut makes no difference."""
    weight = coded(generator, 96, 2 * 224).to(device)
    expected = pack_fp8(weight, 2)
    monkeypatch.setattr("deepinfer.kernels.triton.gemv._SLICE", 96 * 64)
    packed = pack_fp8(weight, 2)
    assert torch.equal(packed.words, expected.words)
    assert torch.equal(packed.factors, expected.factors)


def test_refused(device):
    """Guards the limits: rows, sizes, groups; and no rows at all."""
    weight = torch.zeros((128, 64), device=device).bfloat16()
    packed = pack_fp8(weight, 2)
    assert gemv_fp8(torch.empty((0, 2, 64), device=device).bfloat16(), packed).shape == (0, 128)
    for shape in ((17, 2, 64), (1, 64), (1, 2, 32)):
        with pytest.raises(ValueError, match="rows"):
            gemv_fp8(torch.empty(shape, device=device).bfloat16(), packed)
    for shape, groups in (((48, 64), 1), ((64, 48), 1), ((96, 64), 2)):
        with pytest.raises(ValueError, match="not blocks of 32"):
            pack_fp8(torch.zeros(shape, device=device).bfloat16(), groups)


def test_parts_of_wider_rows(device, generator):
    """Guards rows and groups that do not lie together, and a NaN: it stays in its row."""
    weight = coded(generator, 64, 2 * 32).to(device)
    packed = pack_fp8(weight, 2)
    wide = torch.randn((3, 3, 96), generator=generator).bfloat16().to(device)
    part = wide[:, 1:, 16:80]
    sound = gemv_fp8(part.contiguous(), packed)
    assert torch.equal(gemv_fp8(part, packed), sound)
    across = part.contiguous().permute(0, 2, 1).contiguous().permute(0, 2, 1)
    assert torch.equal(gemv_fp8(across, packed), sound)
    # Rows that start in the middle of a pair.
    assert torch.equal(gemv_fp8(wide.roll(-1, 2)[:, 1:, 15:79], packed), sound)
    part[1, :, 7] = torch.nan
    broken = gemv_fp8(part, packed)
    assert broken[1].isnan().all() and torch.equal(broken[[0, 2]], sound[[0, 2]])
