"""The router's choice (spec 8) in one kernel: a warp works on a row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 1
_WARPS = 1


def route(logits: Tensor, bias: Tensor, topk: int, scale: float) -> tuple[Tensor, Tensor]:
    """Experts of each row: ids int64 [T, topk], ascending, and weights float32 [T, topk].

    logits float32 [T, E]; bias float32 [E] takes part in the choice only; ties go to the lower
    expert. The weights of a row sum to `scale`. Raises ValueError for fewer than topk experts.
    """
    num_rows, num_experts = logits.shape
    if num_experts < topk:
        raise ValueError(f"topk {topk} of {num_experts} experts")
    ids = torch.empty((num_rows, topk), dtype=torch.int64, device=logits.device)
    weights = torch.empty((num_rows, topk), dtype=torch.float32, device=logits.device)
    if num_rows:
        _route[(triton.cdiv(num_rows, _ROWS),)](
            logits.contiguous(),
            bias,
            ids,
            weights,
            num_rows,
            scale,
            E=num_experts,
            TOPK=topk,
            ROWS=_ROWS,
            WIDTH=triton.next_power_of_2(num_experts),
            num_warps=_WARPS,
        )
    return ids, weights


@triton.jit
def _softplus(x):
    """ln(1 + e**x) of float32, accurate for very negative x too: the curve of pointwise.py."""
    power = tl.exp(tl.where(x > 20.0, 20.0, x))  # not `minimum`: NaN must stay NaN
    # What 1 + power rounds away is put back by the factor: a quotient that is near 1.
    total = 1.0 + power
    log = tl.where(total == 1.0, power, tl.log(total) * (power / (total - 1.0)))
    return tl.where(x > 20.0, x, log)


@triton.jit(do_not_specialize=["num_rows"])
def _route(
    logits,
    bias,
    ids,
    weights,
    num_rows,
    scale,
    E: tl.constexpr,
    TOPK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    experts = tl.arange(0, WIDTH)
    there, known = (rows < num_rows)[:, None], (experts < E)[None, :]
    rows = rows.to(tl.int64)[:, None]
    x = tl.load(logits + rows * E + experts[None, :], mask=there & known, other=0.0)
    score = tl.sqrt(_softplus(x))
    rank = score + tl.load(bias + experts, mask=experts < E, other=0.0)[None, :]
    # One integer for rank and expert, so that no two are equal: the rank's bits in an order that
    # integers share, both zeros alike, NaN above all as torch sorts it; below, the lower expert.
    rank = tl.where(rank == 0, 0.0, rank)
    bits = rank.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    bits = tl.where(rank == rank, bits, 0x7FFFFFFF)  # noqa: PLR0124  (NaN is not)
    lowest = -(1 << 62)
    key = bits.to(tl.int64) * 65536 + (WIDTH - 1 - experts)[None, :]
    key = tl.where(known, key, lowest)
    chosen = key < lowest
    for _ in tl.static_range(TOPK):
        best = key == tl.max(key, 1)[:, None]
        chosen = chosen | best
        key = tl.where(best, lowest, key)
    # Ascending ids: an expert's place is the number of chosen ones before it.
    place = rows * TOPK + tl.cumsum(chosen.to(tl.int32), 1) - 1
    total = tl.sum(tl.where(chosen, score, 0.0), 1)[:, None]
    expert = tl.zeros([ROWS, 1], tl.int64) + experts[None, :]
    tl.store(ids + place, expert, mask=chosen & there)
    tl.store(weights + place, score / (total + 1e-20) * scale, mask=chosen & there)
