"""Router and experts (spec 8). Ties in the router go to the lower expert."""

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.kernels.reference.linear import _keep, linear
from deepinfer.kernels.reference.pointwise import silu, softplus


def route(logits: Tensor, bias: Tensor, topk: int, scale: float) -> tuple[Tensor, Tensor]:
    """Experts of each row: ids int64 [T, topk], ascending, and weights float32 [T, topk].

    logits float32 [T, E]; bias float32 [E] takes part in the choice only. The weights of a row sum
    to `scale`.
    """
    score = torch.sqrt(softplus(logits))
    order = (score + bias).sort(dim=-1, descending=True, stable=True).indices
    # Ascending ids fix the order in which the experts' outputs are added.
    ids = order[:, :topk].sort(dim=-1).values
    chosen = score.gather(1, ids)
    return ids, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scale


# Rows whose intermediate values are worked on together, in elements: a dozen passes over them stay
# within a core's cache.
_CHUNK_ELEMENTS = 1 << 17


def swiglu(gate: Tensor, up: Tensor, limit: float, weight: Tensor | None = None) -> Tensor:
    """silu(gate) * up with gate clamped above and up on both sides, times `weight`; float32, one
    rounding.
    """
    rows = max(1, _CHUNK_ELEMENTS // gate.shape[-1])
    if len(gate) > rows:
        weights = [None] * -(-len(gate) // rows) if weight is None else weight.split(rows)
        parts = zip(gate.split(rows), up.split(rows), weights, strict=True)
        return torch.cat([swiglu(g, u, limit, w) for g, u, w in parts])
    wide_gate = gate.to(torch.float32).clamp(max=limit)
    wide_up = up.to(torch.float32).clamp(-limit, limit)
    product = silu(wide_gate) * wide_up
    return (product if weight is None else product * weight).to(gate.dtype)


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
    limit: float,
    *,
    quantise: Callable[[Tensor], Tensor] = _keep,
    product: Callable[[Tensor, Tensor], Tensor] = linear,
) -> Tensor:
    """Weighted sum of each row's experts: [T, D] in x's dtype, added in float32 in ascending expert
    order.

    x [T, D]; ids int64 [T, k] ascending, -1 for one that adds nothing; weights float32 [T, k]; w1,
    w3 [E, I, D]; w2 [E, D, I].
    The routing weight is applied before w2. `quantise` rounds the input of each of the three
    products.
    """
    topk = ids.shape[1]
    weights, ids = weights.masked_fill(ids < 0, 0.0), ids.clamp_min(0)
    # Rows sorted by expert, so that each expert is one product over its own rows.
    by_expert = ids.flatten().argsort(stable=True)
    counts = ids.flatten().bincount(minlength=w1.shape[0]).tolist()
    rows = quantise(x)[by_expert // topk]
    hidden = swiglu(
        _by_expert(rows, w1, counts, product),
        _by_expert(rows, w3, counts, product),
        limit,
        weights.flatten()[by_expert, None],
    )
    outputs = _by_expert(quantise(hidden), w2, counts, product)
    per_row = outputs[by_expert.argsort()].unflatten(0, (-1, topk)).to(torch.float32)
    total = per_row[:, 0]
    for choice in range(1, topk):
        total = total + per_row[:, choice]
    return total.to(x.dtype)


def _by_expert(
    rows: Tensor,
    weights: Tensor,
    counts: list[int],
    product: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """rows [n, in], the first counts[0] of them times weights[0], and so on: [n, out]."""
    parts = [
        product(part, weights[expert])
        for expert, part in enumerate(rows.split(counts))
        if len(part)
    ]
    return torch.cat(parts) if parts else rows.new_empty(0, weights.shape[1])
