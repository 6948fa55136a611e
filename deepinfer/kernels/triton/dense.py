"""Products with bfloat16 weights: cuBLAS, or our own where rows must not feel their batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.kernels.reference import linear as reference_linear
from deepinfer.kernels.triton import linear


def keep(x: Tensor) -> Tensor:
    """No rounding before a product."""
    return x


def linear_quantised(
    product: Callable[[Tensor, Tensor], Tensor],
    quantise: Callable[[Tensor], Tensor],
    x: Tensor,
    weight: Tensor,
) -> Tensor:
    """A product of rounded rows."""
    return product(quantise(x), weight)


def invariant(x: Tensor, weight: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """x [..., in] times weight [out, in]: a row has the same bits in any batch."""
    rows = x.reshape(-1, x.shape[-1])
    return linear.linear_invariant(rows, weight, dtype).view(*x.shape[:-1], weight.shape[0])


def invariant_float32(x: Tensor, weight: Tensor) -> Tensor:
    """The same with sums that are not rounded."""
    return invariant(x, weight, torch.float32)


def linear_float32(x: Tensor, weight: Tensor) -> Tensor:
    """bfloat16 operands, sums in float32 that are not rounded. (Not on a CPU: torch has it not.)"""
    if not x.is_cuda:
        return reference_linear.linear_float32(x, weight)
    flat = x.reshape(-1, x.shape[-1])
    return torch.mm(flat, weight.t(), out_dtype=torch.float32).view(*x.shape[:-1], len(weight))


def grouped_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, G, in] times weight [G * out, in], group by group -> [T, G * out]."""
    groups = weight.unflatten(0, (x.shape[1], -1))
    return torch.einsum("tgi,goi->tgo", x, groups).flatten(1)
