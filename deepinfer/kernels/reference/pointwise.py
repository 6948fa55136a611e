"""Curves whose bits do not depend on where an element lies.

torch's own sigmoid, silu and softplus compute the last few elements of a tensor by another routine
than the rest, so that a row's result would change with the batch around it. exp, log1p and the four
operations do not have that fault.
"""

import torch
from torch import Tensor

# exp stays finite beyond it, and so does the gradient.
_LEAST = -80.0
# Above it ln(1 + e**x) is x to the last bit of float32; torch's softplus uses the same border.
_LINEAR_ABOVE = 20.0


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e**-x), float32."""
    return torch.reciprocal(1 + torch.exp(-x.clamp_min(_LEAST)))


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), float32."""
    return x * sigmoid(x)


def softplus(x: Tensor) -> Tensor:
    """ln(1 + e**x), float32."""
    return torch.where(x > _LINEAR_ABOVE, x, torch.log1p(torch.exp(x.clamp_max(_LINEAR_ABOVE))))
