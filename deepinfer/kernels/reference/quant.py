"""FP8, FP4 and power-of-two scales: encode, decode, and the round trips of the caches (spec 13.2,
14).

Two kinds of function. `encode_*` and `decode_*` deal with the formats of weights on disk.
`round_trip_*` quantise and dequantise activations in one go, as the caches and the activation
quantiser do, and pass gradients straight through. Knows nothing of files or layers.

Every product formed here (an FP8 or FP4 value times a scale) is exact in bfloat16 and so in
float32.
"""

from typing import Any

import torch
from torch import Tensor

FP8_MAX = 448.0
FP8_GROUP = 32
FP8_FLOOR = 1e-4  # the least magnitude a group is scaled by (spec 14.1)
FP4_MAX = 6.0
MXFP4_GROUP = 32
MXFP4_FLOOR = 6.0 * 2.0**-126
NVFP4_GROUP = 16
NVFP4_FLOOR = 6.0 * 2.0**-9  # keeps the e4m3 scale at its least subnormal or above

# Magnitudes of e2m1 by code, and the borders between neighbours. A value on a border goes to the
# neighbour with the even code, which is above the border for 0.75, 1.75 and 3.5.
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BORDERS_TO_LOWER = (0.25, 1.25, 2.5, 5.0)
_BORDERS_TO_UPPER = (0.75, 1.75, 3.5)


def decode_ue8m0(code: Tensor) -> Tensor:
    """uint8 exponent codes -> float32 powers of two, 2**(code - 127). Code 255 is NaN, as in the
    format.
    """
    bits = code.to(torch.int32) << 23
    bits = torch.where(code == 0, 1 << 22, bits)  # 2**-127 is a subnormal float32
    return torch.where(code == 255, torch.nan, bits.view(torch.float32))


def encode_ue8m0(scale: Tensor) -> Tensor:
    """float32 powers of two -> uint8 exponent codes, the inverse of `decode_ue8m0`."""
    return (scale.view(torch.int32) >> 23).to(torch.uint8)


def power_of_two_at_least(x: Tensor) -> Tensor:
    """The smallest power of two >= x for normal float32 x > 0, exact by the float's own bits; NaN
    stays NaN.
    """
    bits = (x.view(torch.int32) + 0x7FFFFF) & 0x7F800000
    return torch.where(x.isnan(), x, bits.view(torch.float32))


def round_to_fp8(x: Tensor) -> Tensor:
    """float32 -> nearest e4m3 value (ties to even, +-448 at the ends), as float32."""
    return x.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(torch.float32)


def fp4_code(x: Tensor) -> Tensor:
    """float32 -> uint8 e2m1 code (sign << 3 | magnitude): nearest, ties to even, at most 6."""
    magnitude = x.abs()
    code = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    for border in _BORDERS_TO_LOWER:
        code += magnitude > border
    for border in _BORDERS_TO_UPPER:
        code += magnitude >= border
    return code | (torch.signbit(x).to(torch.uint8) << 3)


def round_to_fp4(x: Tensor) -> Tensor:
    """float32 -> nearest e2m1 value (ties to even, +-6 at the ends), as float32; NaN stays NaN.

    The values are multiples of 0.5 up to 2, of 1 up to 4, of 2 beyond, and torch.round goes to the
    even multiple, which is the one with the even code.
    """
    magnitude = x.abs()
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return ((x / step).round() * step).clamp(-FP4_MAX, FP4_MAX)


def fp4_value(code: Tensor) -> Tensor:
    """uint8 e2m1 code 0..15 -> float32."""
    # Made where it is used: a table from the host would be waited for on a GPU. Of the codes, 0 and
    # 1 are subnormal, and each pair from 2 on is twice the pair before.
    every = torch.arange(16, device=code.device, dtype=torch.float32)
    magnitude, pair = every % 8, every % 8 // 2
    table = torch.where(pair < 1, magnitude / 2, (1 + magnitude % 2 / 2) * torch.exp2(pair - 1))
    return torch.where(every < 8, table, -table)[code.long()]


# -- weights on disk -------------------------------------------------------------------------------


def decode_fp8(weight: Tensor, scale: Tensor) -> Tensor:
    """FP8 e4m3 [R, C] with one scale per 32x32 block, float32 [ceil(R/32), ceil(C/32)] -> float32
    [R, C].
    """
    rows, columns = weight.shape
    full = scale.repeat_interleave(FP8_GROUP, 0)[:rows].repeat_interleave(FP8_GROUP, 1)[:, :columns]
    return weight.to(torch.float32) * full


def decode_fp8_rows(weight: Tensor, scale: Tensor) -> Tensor:
    """FP8 e4m3 [..., C] with one scale per row and 32 channels, float32 [..., C/32] -> float32
    [..., C].
    """
    return weight.to(torch.float32) * scale.repeat_interleave(FP8_GROUP, -1)


def gather_fp8_rows(codes: Tensor, scales: Tensor, row_ids: Tensor) -> Tensor:
    """Some rows of uint8 e4m3 [height, C] and exponents [height, C / 32]: int64 [...] -> float32
    [..., C], on the device of `row_ids`.
    """
    at = row_ids.to(codes.device)
    values = codes[at].view(torch.float8_e4m3fn)
    return decode_fp8_rows(values, decode_ue8m0(scales[at])).to(row_ids.device)


def decode_fp4(packed: Tensor, scale: Tensor) -> Tensor:
    """Packed e2m1, int8 [..., C/2] (even column in the low nibble), scale [..., C/32] -> float32
    [..., C].
    """
    byte = packed.view(torch.uint8)
    codes = torch.stack((byte & 15, byte >> 4), -1).flatten(-2)
    return fp4_value(codes) * scale.repeat_interleave(MXFP4_GROUP, -1)


def encode_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [R, C] -> e4m3 [R, C] and uint8 scale codes [ceil(R/32), ceil(C/32)]; inverse of
    `decode_fp8`.
    """
    rows, columns = weight.shape
    pad = (-columns % FP8_GROUP, -rows % FP8_GROUP)
    blocks = torch.nn.functional.pad(weight, (0, pad[0], 0, pad[1]))
    blocks = blocks.unflatten(1, (-1, FP8_GROUP)).unflatten(0, (-1, FP8_GROUP))
    largest = blocks.abs().amax((1, 3)).clamp_min(FP8_FLOOR)
    scale = power_of_two_at_least(largest / FP8_MAX)
    full = scale.repeat_interleave(FP8_GROUP, 0)[:rows].repeat_interleave(FP8_GROUP, 1)[:, :columns]
    values = (weight / full).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return values, encode_ue8m0(scale)


def round_trip_fp8_blocks(weight: Tensor) -> Tensor:
    """float32 [R, C] -> the nearest weight that the release could store in FP8, float32."""
    values, codes = encode_fp8(weight)
    return decode_fp8(values, decode_ue8m0(codes))


def encode_fp8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [..., C] -> e4m3 [..., C] and uint8 scale codes [..., C/32]; inverse of
    `decode_fp8_rows`.
    """
    groups = weight.unflatten(-1, (-1, FP8_GROUP))
    scale = power_of_two_at_least(groups.abs().amax(-1).clamp_min(FP8_FLOOR) / FP8_MAX)
    values = (groups / scale[..., None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return values.flatten(-2), encode_ue8m0(scale)


def encode_fp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [..., C] -> packed int8 [..., C/2] and uint8 scale codes [..., C/32]; inverse of
    `decode_fp4`.
    """
    groups = weight.unflatten(-1, (-1, MXFP4_GROUP))
    scale = power_of_two_at_least(groups.abs().amax(-1).clamp_min(MXFP4_FLOOR) / FP4_MAX)
    codes = fp4_code(groups / scale[..., None]).flatten(-2)
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).view(torch.int8)
    return packed, encode_ue8m0(scale)


# -- round trips of activations and caches ---------------------------------------------------------


class _StraightThrough(torch.autograd.Function):
    """A round trip forward; the identity backward, so that training sees through the rounding."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, quantised: Tensor) -> Tensor:
        return quantised

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def _through(x: Tensor, quantised: Tensor) -> Tensor:
    quantised = quantised.to(x.dtype)
    return _StraightThrough.apply(x, quantised) if x.requires_grad else quantised


def round_trip_fp8(x: Tensor) -> Tensor:
    """Groups of 32 channels, e4m3 with a power-of-two scale. Any float dtype [..., C], C % 32 == 0.

    The window cache's format and the activation quantiser of FP8 and FP4 linears (spec 14.1, 14.2).
    """
    groups = x.detach().to(torch.float32).unflatten(-1, (-1, FP8_GROUP))
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(FP8_FLOOR)
    scale = power_of_two_at_least(largest / FP8_MAX)
    return _through(x, (round_to_fp8(groups / scale) * scale).flatten(-2))


def round_trip_mxfp4(x: Tensor) -> Tensor:
    """Groups of 32 channels, e2m1 with a power-of-two scale: index queries and keys (spec 14.3)."""
    groups = x.detach().to(torch.float32).unflatten(-1, (-1, MXFP4_GROUP))
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(MXFP4_FLOOR)
    scale = power_of_two_at_least(largest / FP4_MAX)
    return _through(x, (round_to_fp4(groups / scale) * scale).flatten(-2))


def round_trip_nvfp4(x: Tensor) -> Tensor:
    """Groups of 16 channels, e2m1 with an e4m3 scale: compressed KV entries (spec 14.4)."""
    groups = x.detach().to(torch.float32).unflatten(-1, (-1, NVFP4_GROUP))
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(NVFP4_FLOOR)
    scale = round_to_fp8(largest / FP4_MAX)
    return _through(x, (round_to_fp4(groups / scale) * scale).flatten(-2))
