"""The bare matrix products of a step: what is left of it when all else costs nothing.

Hooks note the rows that each weight really met; each expert counts with its own. Weights that the
network multiplies in float32 are cast beforehand, so that the bare products never pay for it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.bench.steps import Step
from deepinfer.model.basic import HyperMix, Linear
from deepinfer.model.moe import Experts, Gate
from deepinfer.model.network import Network


class Product(NamedTuple):
    """rows [T, in] times weight [out, in]."""

    rows: Tensor
    weight: Tensor


def record_products(network: Network, step: Step) -> list[Product]:
    """The products of the weights in one `step` of `network`, in order."""
    found: list[Product] = []
    kernels = network.kernels

    def linear(module: Any, inputs: tuple[Tensor]) -> None:
        rows = inputs[0].clone()
        if module.op is kernels.grouped_linear:
            groups = module.weight.unflatten(0, (rows.shape[1], -1))
            found.extend(Product(rows[:, g].contiguous(), w) for g, w in enumerate(groups))
        elif module.op is kernels.linear_float32:
            found.append(Product(rows.float(), module.weight.float()))
        else:
            found.append(Product(rows, module.weight))

    def gate(module: Any, inputs: tuple[Tensor]) -> None:
        found.append(Product(inputs[0].float(), module.weight.float()))

    def hyper_mix(module: Any, inputs: tuple[Tensor]) -> None:
        found.append(Product(inputs[0].flatten(1).float(), module.fn))

    def experts(module: Any, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
        x, ids, *_ = inputs
        for expert in ids.unique().tolist():
            rows = x[(ids == expert).any(1)]
            hidden = torch.ones(len(rows), module.w2.shape[-1], dtype=rows.dtype)
            found.append(Product(rows, module.w1[expert]))
            found.append(Product(rows, module.w3[expert]))
            found.append(Product(hidden, module.w2[expert]))

    hooks: dict[type, Callable[..., None]] = {
        Linear: linear,
        Gate: gate,
        HyperMix: hyper_mix,
        Experts: experts,
    }
    handles = [
        module.register_forward_pre_hook(hooks[type(module)])
        for module in network.modules()
        if type(module) in hooks
    ]
    try:
        with torch.inference_mode():
            step()
    finally:
        for handle in handles:
            handle.remove()
    return found


def run_products(products: list[Product]) -> None:
    """All of them, one after another."""
    with torch.inference_mode():
        for rows, weight in products:
            F.linear(rows, weight)
