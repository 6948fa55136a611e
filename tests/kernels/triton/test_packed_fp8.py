"""Packing FP8 weights, which finds the codes of bfloat16 values (spec 8)."""

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.reference.quant import decode_fp8
from deepinfer.kernels.triton.packed_fp8 import PackedFp8, pack_fp8

pytestmark = pytest.mark.gpu


def coded(generator, num_inputs, num_outputs, low=-13, high=-7):
    """A weight [out, in] in bfloat16 as the release would store it in FP8."""
    shape = num_outputs, num_inputs
    codes = (torch.randn(shape, generator=generator) * 60).to(torch.float8_e4m3fn)
    blocks = num_outputs // 32, num_inputs // 32
    exponents = torch.randint(low, high, blocks, generator=generator)
    return decode_fp8(codes.float(), torch.ldexp(torch.ones(blocks), exponents)).bfloat16()


def unpacked(packed: PackedFp8) -> Tensor:
    """The weight again, bit by bit as the kernel makes it: float32 [G * out, in]."""
    words = packed.words.cpu().unflatten(2, (8, 4, 2, 2))  # row in 8, lane of 4, u, half of 16
    firsts, seconds = 0x87F087F0 - 2**32, 0x80F080F0 - 2**32
    second = ((words << 4) & seconds) | ((words >> 4) & 0x07000700)
    pairs = torch.stack((words & firsts, second), -1)
    # What a pair's two have as bits of bfloat16, the left one in the lower half.
    values = torch.stack((pairs << 16, pairs & -65536), -1).view(torch.float32)
    factors = (packed.factors.cpu() << 16).view(torch.float32).repeat_interleave(2, 0)
    values = values * factors[(..., *[None] * 6)]
    # [unit, half, row, block, lane, u, pair, which of it]
    whole = values.permute(0, 5, 2, 1, 3, 4, 6, 7).flatten(3).flatten(0, 2)
    parts = whole.unflatten(0, (packed.groups, -1))
    return parts[:, : packed.num_outputs, : packed.num_inputs].flatten(0, 1)


@pytest.mark.parametrize("shape", [(1, 64, 96), (2, 288, 32), (4, 32, 96), (1, 544, 160)], ids=str)
def test_there_and_back(generator, device, shape):
    """Guards the order of codes, scales of every block, groups, and padding."""
    groups, num_inputs, num_outputs = shape
    weight = coded(generator, num_inputs, groups * num_outputs).to(device)
    assert torch.equal(unpacked(pack_fp8(weight, groups)), weight.float().cpu())


@pytest.mark.parametrize("exponent", [-126, -117, -20, -7, 0, 7])
def test_all_codes(generator, device, exponent):
    """Guards packing: every code times each scale comes back bit for bit."""
    numbers = torch.arange(256, dtype=torch.uint8)
    numbers = numbers[(numbers & 0x7F) != 0x7F]  # not the NaN
    codes = torch.stack([numbers[torch.randperm(254, generator=generator)] for _ in range(50)])
    codes = codes.flatten()[: 96 * 96].view(96, 96).view(torch.float8_e4m3fn).float()
    weight = (codes * 2.0**exponent).bfloat16()
    assert torch.equal(weight.float(), codes * 2.0**exponent) or exponent == -126
    # What is below the least bfloat16 is not a weight that the engine could hold.
    weight[weight.abs() < 2.0**-126] = 0
    assert torch.equal(unpacked(pack_fp8(weight.to(device))), weight.float())


def test_blocks_of_zeros(device, generator):
    """Guards the scale of a block without a largest value, and a block of one tiny number."""
    weight = coded(generator, 64, 64)
    weight[:32, 32:] = 0
    weight[32:, :32] = 0
    weight[40, 5] = 1.125 * 2.0**-100
    assert torch.equal(unpacked(pack_fp8(weight.to(device))), weight.float())


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
    monkeypatch.setattr("deepinfer.kernels.triton.packed_fp8._SLICE", 96 * 64)
    packed = pack_fp8(weight, 2)
    assert torch.equal(packed.words, expected.words)
    assert torch.equal(packed.factors, expected.factors)


def test_refused(device):
    """Guards the limits: blocks of 32, of every group."""
    for shape, groups in (((48, 64), 1), ((64, 48), 1), ((96, 64), 2)):
        with pytest.raises(ValueError, match="not blocks of 32"):
            pack_fp8(torch.zeros(shape, device=device).bfloat16(), groups)
