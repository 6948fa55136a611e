"""The routed experts (spec 8) on packed FP4 weights, in at most six launches.

Pairs of a row and its expert are sorted by expert and cut into tiles of at most `rows` pairs of one
expert. Grids come from the number of pairs alone; surplus programs leave at once.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.config.words import ActQuant
from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.expert_finish import round_trip, to_bfloat16
from deepinfer.kernels.triton.expert_order import sort_pairs
from deepinfer.kernels.triton.expert_product import choose_tiling, grouped_product
from deepinfer.kernels.triton.expert_weights import ExpertWeights
from deepinfer.kernels.triton.sizes import cdiv

_SUM_BLOCK = 1024


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    packed: ExpertWeights,
    limit: float,
    first: int = 0,
    shared: Callable[[], Tensor] | None = None,
    *,
    act_quant: ActQuant = "off",
) -> Tensor:
    """Weighted sum of each row's experts: [T, D] bfloat16, added in float32 in the order of ids.

    x bfloat16 [T, D]; ids int64 or int32 [T, k], ascending, `first` for the first expert in
    `packed` and so on, or any number outside for one that is not there and adds nothing; weights
    float32 [T, k]. What shared gives, bfloat16 [T, D], is added to the rounded sum, and asked for
    last. act_quant="fp8" rounds the inputs of the products to FP8 in groups of 32.
    """
    num_rows, topk = ids.shape
    ids, weights, x = ids.contiguous(), weights.contiguous(), x.contiguous()
    out = torch.empty_like(x)
    if num_rows == 0:
        return out
    num_experts, pairs = packed.gate_up.shape[0], num_rows * topk
    tiling = choose_tiling(pairs, num_experts)
    is_fp8 = act_quant == "fp8"
    if is_fp8:
        x = round_rows(x)
    order, tiles = sort_pairs(ids, num_experts, tiling.rows, first)
    hidden = x.new_empty(pairs, packed.width)
    outputs = x.new_empty(pairs, packed.hidden)
    common = order, tiles, weights, topk, limit
    grouped_product(x, packed.gate_up, packed.gate_up_scales, hidden, common, tiling, is_fp8=is_fp8)
    grouped_product(hidden, packed.down, packed.down_scales, outputs, common, tiling, is_down=True)
    grid = num_rows, cdiv(packed.hidden, _SUM_BLOCK)
    shape = {"TOPK": topk, "BLOCK": _SUM_BLOCK, "NATIVE": not triton.knobs.runtime.interpret}
    added = None if shared is None else shared().contiguous()
    _sum[grid](
        *(outputs, ids, added, out, first, num_experts, packed.hidden),
        **shape,
        **chain.launch(x.device),
    )
    return out


def round_rows(x: Tensor) -> Tensor:
    """bfloat16 [T, C] to FP8 in groups of 32 and back (spec 14.1)."""
    out = torch.empty_like(x)
    groups = x.numel() // 32
    _round_rows[(cdiv(groups, 32),)](x, out, groups)
    return out


@triton.jit(do_not_specialize=["groups"])
def _round_rows(x, out, groups):
    at = tl.program_id(0) * 32 + tl.arange(0, 32)
    place = at.to(tl.int64)[None, :] * 32 + tl.arange(0, 32)[:, None]
    inside = (at < groups)[None, :]
    rounded = round_trip(tl.load(x + place, mask=inside, other=0.0).to(tl.float32), 1)
    tl.store(out + place, rounded.to(tl.bfloat16), mask=inside)


@triton.jit
def _sum(
    outputs,
    ids,
    shared,
    out,
    first,
    num_experts,
    size,
    TOPK: tl.constexpr,
    BLOCK: tl.constexpr,
    NATIVE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    chain.start(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(TOPK):
        pair = row * TOPK + choice
        expert = tl.load(ids + pair) - first
        end = tl.where((expert >= 0) & (expert < num_experts), size, 0)
        total += tl.load(outputs + pair * size + at, mask=at < end, other=0.0).to(tl.float32)
    result = to_bfloat16(total, NATIVE)
    if shared is not None:
        beside = tl.load(shared + row * size + at, mask=at < size, other=0.0)
        result = to_bfloat16(result.to(tl.float32) + beside.to(tl.float32), NATIVE)
    tl.store(out + row * size + at, result, mask=at < size)
