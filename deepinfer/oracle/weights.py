"""Released tensors as the oracle uses them: number formats, decoding, linear maps, roundings.

It knows how a checkpoint stores them (spec 13.2) and in what precision they work (spec 14), and no
layer of the model.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

QUANT_GROUP = 32  # channels per scale of every FP8 and MXFP4 format (spec 13.2, 14.1 - 14.3)
NVFP4_GROUP = 16  # channels per scale of a compressed entry (spec 14.4)
E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Weights:
    """Released tensors by name, decoded at first use and kept, with the arithmetic over them.

    Every tensor that it returns is fp32. With dtype=bfloat16 `round` rounds to bf16 values, else it
    does nothing. cache_round_trip and act_quant: see `Oracle`.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        *,
        eps: float,
        dtype: torch.dtype,
        cache_round_trip: bool,
        act_quant: bool,
    ) -> None:
        assert dtype in (torch.float32, torch.bfloat16), dtype
        self.tensors = tensors
        self.eps = eps
        self.dtype = dtype
        self.cache_round_trip = cache_round_trip
        self.act_quant = act_quant
        self._decoded: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor of that released name, or the matrix or gain `name`.weight."""
        if name not in self._decoded:
            stored = self.tensors[name if name in self.tensors else f"{name}.weight"]
            self._decoded[name] = decode(stored, self.tensors.get(f"{name}.scale"))
        return self._decoded[name]

    def rows(self, name: str, rows: Tensor) -> Tensor:
        """Decode rows [...] of an FP8 table with one scale per row and 32 columns: [..., cols].

        The table may be a memory map of 100 GB, so nothing but these rows is touched.
        """
        values = self.tensors[f"{name}.weight"].view(torch.uint8)[rows].view(torch.float8_e4m3fn)
        scales = self.tensors[f"{name}.scale"].view(torch.uint8)[rows].view(torch.float8_e8m0fnu)
        return values.float() * scales.float().repeat_interleave(QUANT_GROUP, dim=-1)

    def round(self, x: Tensor) -> Tensor:
        """Round to the values that the computing dtype has; the result is fp32 again."""
        return x.to(self.dtype).float()

    def linear(self, x: Tensor, name: str) -> Tensor:
        """x [..., K] times the matrix [N, K], summed in fp32, then rounded: [..., N] (spec 14.5)."""
        if self.act_quant and f"{name}.scale" in self.tensors:
            x = fp8_round_trip(x)
        return self.round(x @ self[name].T)

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMSNorm over the last axis with its gain (spec 5)."""
        return self.round(x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self[name])

    def stored(self, x: Tensor, round_trip: Callable[[Tensor], Tensor]) -> Tensor:
        """x as a cache returns it after keeping it in the format of `round_trip`."""
        return round_trip(x) if self.cache_round_trip else x


def decode(weight: Tensor, scale: Tensor | None) -> Tensor:
    """Return a released tensor in fp32, exactly (spec 13.2).

    int8 is packed FP4 [rows, cols / 2] with a scale per row and 32 columns; FP8 has a scale per
    32 x 32 block; anything else has scale None. Scales are e8m0 (float8_e8m0fnu or uint8).
    """
    if scale is None:
        return weight.float()
    powers = scale.view(torch.float8_e8m0fnu).float()
    if weight.dtype == torch.int8:
        packed = weight.view(torch.uint8)
        codes = torch.stack([packed & 15, packed >> 4], dim=-1)  # the low nibble is the even column
        table = torch.tensor(E2M1_VALUES)
        values = torch.cat([table, -table])[codes.flatten(-2).long()]
    else:
        values = weight.float()
        powers = powers.repeat_interleave(QUANT_GROUP, dim=0)[: len(values)]
    return values * powers.repeat_interleave(QUANT_GROUP, dim=1)[:, : values.shape[1]]


def fp8_round_trip(x: Tensor) -> Tensor:
    """Round [..., C] fp32 to e4m3 under a power-of-two scale per 32 channels (spec 14.1, 14.2)."""
    groups = x.unflatten(-1, (-1, QUANT_GROUP))
    scale = _power_of_two_at_least(_largest(groups, floor=1e-4) / E4M3_MAX)
    return (_to_e4m3(groups / scale) * scale).flatten(-2)


def mxfp4_round_trip(x: Tensor) -> Tensor:
    """Round [..., C] fp32 to e2m1 under a power-of-two scale per 32 channels (spec 14.3)."""
    groups = x.unflatten(-1, (-1, QUANT_GROUP))
    scale = _power_of_two_at_least(_largest(groups, floor=E2M1_MAX * 2.0**-126) / E2M1_MAX)
    return (_to_e2m1(groups / scale) * scale).flatten(-2)


def nvfp4_round_trip(x: Tensor) -> Tensor:
    """Round [..., C] fp32 to e2m1 under an e4m3 scale per 16 channels (spec 14.4)."""
    groups = x.unflatten(-1, (-1, NVFP4_GROUP))
    scale = _to_e4m3(_largest(groups, floor=E2M1_MAX * 2.0**-9) / E2M1_MAX)
    return (_to_e2m1(groups / scale) * scale).flatten(-2)


def _largest(groups: Tensor, floor: float) -> Tensor:
    return groups.abs().amax(-1, keepdim=True).clamp(min=floor)


def _power_of_two_at_least(x: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(x)  # x = mantissa * 2^exponent, mantissa in [0.5, 1)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return ((exponent + 127) << 23).view(torch.float32)  # exact, unlike exp2, which may miss an ulp


def _to_e4m3(x: Tensor) -> Tensor:
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()


def _to_e2m1(x: Tensor) -> Tensor:
    x = x.clamp(-E2M1_MAX, E2M1_MAX)
    step = torch.where(x.abs() < 2, 0.5, torch.where(x.abs() < 4, 1.0, 2.0))  # e2m1's spacing at x
    return torch.round(x / step) * step  # ties go to the even multiple, which is e2m1's even code
