"""RMS norm (spec 5) and rotary embedding (spec 6)."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., C], weight [C] -> [..., C]: float32 inside, one rounding to x's dtype."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.to(torch.float32)).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the trailing channels of x [T, ..., C] by each row's angles; the others pass
    unchanged.

    cos, sin float32 [T, R]: the last 2R channels are R interleaved pairs (c, c + 1). The result has
    x's dtype, rounded once.
    """
    pairs = cos.shape[-1]
    shape = (cos.shape[0], *(1,) * (x.dim() - 2), pairs)
    cos, sin = cos.view(shape), sin.view(shape)
    kept, turned = x.split((x.shape[-1] - 2 * pairs, 2 * pairs), dim=-1)
    # A pair is a complex number, and turning it is a product with e**(i * angle).
    number = torch.view_as_complex(turned.to(torch.float32).unflatten(-1, (pairs, 2)).contiguous())
    turned = torch.view_as_real(number * torch.complex(cos, sin)).flatten(-2)
    return torch.cat((kept, turned.to(x.dtype)), -1)
