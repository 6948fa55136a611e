"""Matrix products of rows with weights. A weight kept in another dtype than the rows is cast for
the call.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def _keep(x: Tensor) -> Tensor:
    return x


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., in] times weight [out, in] -> [..., out] in x's dtype, accumulated in float32."""
    return F.linear(x, weight.to(x.dtype))


def linear_float32(x: Tensor, weight: Tensor) -> Tensor:
    """As `linear`, with a float32 result that is never rounded to x's dtype (head, router, pair
    compressor).
    """
    return F.linear(x.to(torch.float32), weight.to(torch.float32))


def linear_quantised(
    x: Tensor, weight: Tensor, *, quantise: Callable[[Tensor], Tensor] = _keep
) -> Tensor:
    """As `linear`, for weights that the release stores in FP8; `quantise` rounds rows first."""
    return linear(quantise(x), weight)


def grouped_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, G, in] times weight [G * out, in], group by group -> [T, G * out] (spec 7.7)."""
    groups = x.shape[1]
    product = torch.einsum("tgi,goi->tgo", x, weight.to(x.dtype).unflatten(0, (groups, -1)))
    return product.flatten(1)
