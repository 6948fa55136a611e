"""Encoding and decoding packed cache rows, by the formats' definitions (spec 14, 15)."""

import torch
from torch import Tensor

from deepinfer.kernels.reference import quant


def decode(rows: Tensor, channels: int) -> Tensor:
    """uint8 [*, bytes] -> float32 [*, C], whichever of the three formats has that width."""
    width = rows.shape[1]
    if width == channels + channels // 32:
        values = rows[:, :channels].contiguous().view(torch.float8_e4m3fn).float()
        return values * quant.decode_ue8m0(rows[:, channels:]).repeat_interleave(32, -1)
    half = channels // 2
    codes = torch.stack((rows[:, :half] & 15, rows[:, :half] >> 4), -1).flatten(-2)
    if width == half + channels // 16:
        scale = rows[:, half:].contiguous().view(torch.float8_e4m3fn).float()
        return quant.fp4_value(codes) * scale.repeat_interleave(16, -1)
    assert width == half + channels // 32
    return quant.fp4_value(codes) * quant.decode_ue8m0(rows[:, half:]).repeat_interleave(32, -1)


def encode(x: Tensor, is_fp4: bool) -> Tensor:
    """float32 [*, C] -> uint8 rows: entries in FP4, or rows of the window."""
    if not is_fp4:
        values, scale = quant.encode_fp8_rows(x)
        return torch.cat([values.view(torch.uint8), scale], -1)
    grouped = x.unflatten(-1, (-1, 16))
    largest = grouped.abs().amax(-1).clamp_min(quant.NVFP4_FLOOR)
    scale = (largest / 6).clamp_max(448).to(torch.float8_e4m3fn)
    codes = quant.fp4_code(grouped / scale.float()[..., None]).flatten(-2)
    return torch.cat([codes[:, ::2] | codes[:, 1::2] << 4, scale.view(torch.uint8)], -1)
