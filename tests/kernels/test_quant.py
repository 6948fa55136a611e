"""FP8, FP4 and their scales to the bit: every code, every midpoint, the recorded vectors.

Expected values come from the formats' definitions and exact fractions, never from torch's casts.
"""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.kernels.reference import quant
from tests.golden.goldens import load_golden


def e4m3(code: int) -> Fraction:
    """Sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x7F and 0xFF are NaN and not asked for."""
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = (
        Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)
        if exponent
        else Fraction(mantissa, 8) / 64
    )
    return -magnitude if code >> 7 else magnitude


E4M3 = [e4m3(code) for code in range(0x7F)]  # 0 .. 448, rising
E2M1 = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]  # 0 .. 6, rising

# Spec 14.3, by hand: a value halfway between two codes, and where it goes.
FP4_TIES = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}


def nearest(x: Fraction, table: list[Fraction]) -> Fraction:
    """The nearest value of a rising table of magnitudes; a tie goes to the even code."""
    code = min(range(len(table)), key=lambda i: (abs(table[i] - abs(x)), i % 2))
    return table[code] if x >= 0 else -table[code]


def around(values: list[float]) -> Tensor:
    """The values and their float32 neighbours on both sides, with both signs."""
    exact = np.array(values, np.float32)
    points = np.concatenate(
        [np.nextafter(exact, np.float32(-np.inf)), exact, np.nextafter(exact, np.float32(np.inf))]
    )
    return torch.from_numpy(np.concatenate([points, -points]))


def midpoints(table: list[Fraction]) -> list[float]:
    return [float((low + high) / 2) for low, high in pairwise(table)]


# -- e2m1 -----------------------------------------------------------------------------------------


def test_all_fp4_codes() -> None:
    """N09: all 16 codes decode to the table and encode to themselves; -0 keeps its sign."""
    codes = torch.arange(16, dtype=torch.uint8)
    values = quant.fp4_value(codes)
    expected = [float(v) for v in E2M1] + [-float(v) for v in E2M1]
    assert values.tolist() == expected
    assert torch.signbit(values).tolist() == [False] * 8 + [True] * 8
    assert torch.equal(quant.fp4_code(values), codes)


@pytest.mark.parametrize("tie", FP4_TIES)
def test_fp4_ties(tie: float) -> None:
    """N09: every midpoint, both signs, against the table written by hand."""
    both = torch.tensor([tie, -tie])
    expected = torch.tensor([FP4_TIES[tie], -FP4_TIES[tie]])
    assert torch.equal(quant.fp4_value(quant.fp4_code(both)), expected)


def test_fp4_rounding() -> None:
    """N09: just below and above every midpoint and code, and beyond 6."""
    points = around(midpoints(E2M1) + [float(v) for v in E2M1] + [7.0, 100.0, 3e38])
    found = quant.fp4_value(quant.fp4_code(points))
    expected = [float(nearest(Fraction(x), E2M1)) for x in points.tolist()]
    assert found.tolist() == expected


def test_fp4_overflow() -> None:
    """N09: infinities stop at 6, as the largest code."""
    codes = quant.fp4_code(torch.tensor([torch.inf, -torch.inf, 6.0, 1e30]))
    assert codes.tolist() == [7, 15, 7, 7]


def test_nibble_order() -> None:
    """N09: byte k holds element 2k low and 2k + 1 high; scales are per row and 32 columns."""
    row = torch.zeros(1, 64)
    row[0, :4] = torch.tensor([0.5, -6.0, 3.0, 1.0])
    row[0, 32] = 12.0
    packed, scale = quant.encode_fp4(row)
    assert (packed.dtype, packed.shape, scale.shape) == (torch.int8, (1, 32), (1, 2))
    assert packed.view(torch.uint8)[0, :2].tolist() == [0xF1, 0x25]
    assert packed.view(torch.uint8)[0, 16].item() == 0x07
    assert scale.tolist() == [[127, 128]]
    assert torch.equal(quant.decode_fp4(packed, quant.decode_ue8m0(scale)), row)


def test_all_packed_bytes() -> None:
    """N09: every byte, decoded by hand."""
    packed = torch.arange(256, dtype=torch.uint8).view(torch.int8).view(16, 16)
    signed = [float(v) for v in E2M1] + [-float(v) for v in E2M1]
    expected = [x for byte in range(256) for x in (signed[byte & 15], signed[byte >> 4])]
    found = quant.decode_fp4(packed, torch.full((16, 1), 4.0))
    assert found.flatten().tolist() == [4 * x for x in expected]


# -- e4m3 -----------------------------------------------------------------------------------------


def test_all_fp8_codes() -> None:
    """N09: all 256 codes decode to the definition's values; the two NaN codes stay NaN."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).view(8, 32)
    values = quant.decode_fp8_rows(codes, torch.ones(8, 1)).flatten()
    for code, value in enumerate(values.tolist()):
        if code & 0x7F == 0x7F:
            assert value != value
        else:
            assert value == e4m3(code), code


def test_fp8_rounding() -> None:
    """N09: every midpoint of the 254 finite values, just beside it, and beyond 448."""
    points = around(midpoints(E4M3) + [float(v) for v in E4M3] + [464.0, 480.0, 1e30])
    found = quant.round_to_fp8(points)
    expected = [float(nearest(Fraction(x), E4M3)) for x in points.tolist()]
    assert found.tolist() == expected


# -- scales ---------------------------------------------------------------------------------------


def test_all_exponent_codes() -> None:
    """N01: all 256 codes; the lowest is a subnormal float32, the highest is NaN."""
    codes = torch.arange(256, dtype=torch.uint8)
    values = quant.decode_ue8m0(codes)
    assert values[:255].tolist() == [2.0 ** (code - 127) for code in range(255)]
    assert bool(values[255].isnan())
    assert torch.equal(quant.encode_ue8m0(values), codes)


def test_power_of_two_at_least() -> None:
    """Guards against a logarithm that is off by one at an exact power of two."""
    powers = np.array([2.0**e for e in range(-126, 127)], np.float32)
    above = np.nextafter(powers, np.float32(np.inf))
    below = np.nextafter(powers[1:], np.float32(0))
    for points, expected in ((powers, powers), (above, 2 * powers), (below, powers[1:])):
        found = quant.power_of_two_at_least(torch.from_numpy(points))
        assert found.tolist() == expected.tolist()
    assert bool(quant.power_of_two_at_least(torch.tensor(torch.nan)).isnan())


# -- whole groups ---------------------------------------------------------------------------------


def by_fractions(group: list[float], table: list[Fraction], floor: Fraction) -> list[float]:
    """One group with a power-of-two scale, in exact arithmetic (spec 14.1, 14.3)."""
    exact = [Fraction(x) for x in group]
    target = max(floor, *map(abs, exact)) / table[-1]
    scale = Fraction(2) ** -150
    while scale < target:
        scale *= 2
    return [float(nearest(x / scale, table) * scale) for x in exact]


def groups_of(size: int) -> Tensor:
    """Random groups over many magnitudes, with zeros, exact powers of two and tiny values."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, size, generator=generator)
    x *= 2.0 ** torch.randint(-20, 20, (40, 1), generator=generator)
    x[0] = 0.0
    x[1] = 2.0 ** torch.arange(-size // 2, size // 2)
    x[2] = 1e-9
    x[3, 0], x[4, 0] = 448.0 * 4, 6.0 * 4
    return x


def test_fp8_groups() -> None:
    """N09: the window cache's round trip equals exact arithmetic, the 1e-4 floor included."""
    x = groups_of(32)
    floor = Fraction(float(np.float32(1e-4)))
    expected = [by_fractions(group, E4M3, floor) for group in x.tolist()]
    assert quant.round_trip_fp8(x).tolist() == expected
    codes, scale = quant.encode_fp8_rows(x)
    assert quant.decode_fp8_rows(codes, quant.decode_ue8m0(scale)).tolist() == expected


def test_fp4_groups() -> None:
    """N09: the index round trip, and weights on disk, equal exact arithmetic."""
    x = groups_of(32)
    expected = [by_fractions(group, E2M1, Fraction(6) / 2**126) for group in x.tolist()]
    assert quant.round_trip_mxfp4(x).tolist() == expected
    packed, scale = quant.encode_fp4(x)
    assert quant.decode_fp4(packed, quant.decode_ue8m0(scale)).tolist() == expected


def test_nvfp4_groups() -> None:
    """N09: groups of 16 with an e4m3 scale; the scale is rounded, never below 2**-9 (spec 14.4).

    Both quotients are float32, as the formula is; the roundings to codes are exact.
    """
    x = groups_of(16)
    for group, found in zip(x.tolist(), quant.round_trip_nvfp4(x).tolist(), strict=True):
        largest = max(np.float32(6.0 * 2.0**-9), *(np.float32(abs(v)) for v in group))
        scale = nearest(Fraction(float(largest / np.float32(6))), E4M3)
        assert scale >= Fraction(1, 512)
        expected = [
            float(nearest(Fraction(float(np.float32(v) / np.float32(scale))), E2M1) * scale)
            for v in group
        ]
        assert found == expected


@pytest.mark.parametrize("shape", [(32, 64), (33, 32), (5, 40), (1, 1)])
def test_fp8_blocks(shape: tuple[int, int]) -> None:
    """N09: 32x32 blocks, also where they reach past the end of a dimension."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    codes, scale = quant.encode_fp8(x)
    assert scale.shape == (-(-shape[0] // 32), -(-shape[1] // 32))
    found = quant.decode_fp8(codes, quant.decode_ue8m0(scale))
    floor = Fraction(float(np.float32(1e-4)))
    for row in range(0, shape[0], 32):
        for column in range(0, shape[1], 32):
            block = x[row : row + 32, column : column + 32]
            expected = by_fractions(block.flatten().tolist(), E4M3, floor)
            assert found[row : row + 32, column : column + 32].flatten().tolist() == expected


ROUND_TRIPS = {
    "fp8": quant.round_trip_fp8,
    "mxfp4": quant.round_trip_mxfp4,
    "nvfp4": quant.round_trip_nvfp4,
}


@pytest.mark.parametrize("variant", ["a", "b"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_recorded_vectors(variant: str, dtype: str, name: str) -> None:
    """N09: an independent implementation's round trips, to the bit, in float32 and bfloat16."""
    tensors = load_golden(variant).tensors
    given, expected = tensors[f"quant/input.{dtype}"], tensors[f"quant/{name}.{dtype}"]
    found = ROUND_TRIPS[name](given)
    assert found.dtype == expected.dtype == given.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ROUND_TRIPS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_values_stay_visible(name: str, value: float) -> None:
    """N09: a NaN or infinity does not become a small number, and only its group suffers.

    An infinity stops at 6 * 448 where the scale is e4m3, which cannot be larger (spec 14.4).
    """
    x = torch.ones(2, 64)
    clean = ROUND_TRIPS[name](x)
    x[0, 3] = value
    found = ROUND_TRIPS[name](x)
    if name == "nvfp4" and value in (torch.inf, -torch.inf):
        assert found[0, 3] == (2688.0 if value > 0 else -2688.0)
    else:
        assert not bool(found[0, 3].isfinite())
    assert torch.equal(found[0, 32:], clean[0, 32:])
    assert torch.equal(found[1], clean[1])


def test_a_nan_weight_is_not_stored_as_a_number() -> None:
    """N09: encoding NaN gives codes that decode to NaN again."""
    x = torch.ones(32, 32)
    x[0, 0] = torch.nan
    for encode, decode in (
        (quant.encode_fp8, quant.decode_fp8),
        (quant.encode_fp8_rows, quant.decode_fp8_rows),
        (quant.encode_fp4, quant.decode_fp4),
    ):
        codes, scale = encode(x)
        assert bool(decode(codes, quant.decode_ue8m0(scale))[0, 0].isnan())


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_gradients_pass_through(name: str) -> None:
    """Guards against a rounding whose derivative, zero, would stop all training."""
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    ROUND_TRIPS[name](x).backward(torch.arange(192.0).view(3, 64))
    assert x.grad is not None
    assert torch.equal(x.grad, torch.arange(192.0).view(3, 64))
