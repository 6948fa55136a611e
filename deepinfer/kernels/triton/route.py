"""The router's choice (spec 8) in one kernel: a warp works on a row. Its product for few rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.linear import dot_dtype
from deepinfer.kernels.triton.sizes import cdiv, next_power_of_2

FEW_ROWS = 16

_ROWS = 1
_WARPS = 1
# The tile of a part of the product: the released weight makes a program for nearly every
# multiprocessor. Each asks for all that it reads at once, with a buffer for each of its steps.
_OUTPUTS, _INPUTS, _STEPS = 16, 1024, 4
_PRODUCT_WARPS = 4  # share the inputs: another number gives other bits
_FETCH = tl.constexpr("prefetch.global.L2 [$1]; mov.u32 $0, 0;")


def logit_parts(x: Tensor, weight: Tensor) -> Tensor:
    """Few rows times the router's weight, in parts: float32 [n, T, E], whose sum is the logits.

    x bf16 [T, D], T at most `FEW_ROWS`; weight bf16 [E, D]. A part is over the same inputs in every
    batch, added in the same order.
    """
    num_rows, num_inputs = x.shape
    num_experts, num_parts = len(weight), cdiv(num_inputs, _INPUTS)
    parts = torch.empty((num_parts, num_rows, num_experts), dtype=torch.float32, device=x.device)
    if num_rows:
        x = x if x.stride(1) == 1 else x.contiguous()
        product_part[(cdiv(num_experts, _OUTPUTS), num_parts)](
            x,
            x.stride(0),
            weight.contiguous(),
            parts,
            num_rows,
            num_experts,
            num_inputs,
            STEPS=_STEPS,
            OUTPUTS=_OUTPUTS,
            DEPTH=_INPUTS // (_STEPS * _PRODUCT_WARPS),
            WARPS=_PRODUCT_WARPS,
            ROWS=8 if num_rows <= 8 else FEW_ROWS,
            IS_EVEN=num_inputs % _INPUTS == 0,
            DOT=dot_dtype(x),
            **chain.launch(x.device),
            num_warps=_PRODUCT_WARPS,
            num_stages=_STEPS + 1,
        )
    return parts


def route(logits: Tensor, bias: Tensor, topk: int, scale: float) -> tuple[Tensor, Tensor]:
    """Experts of each row: ids int64 [T, topk], ascending, and weights float32 [T, topk].

    logits float32 [T, E], or parts [n, T, E] that are added up in order; bias float32 [E] takes
    part in the choice only; ties go to the lower expert. The weights of a row sum to `scale`.
    Raises ValueError for fewer than topk experts.
    """
    *parts, num_rows, num_experts = logits.shape
    if num_experts < topk:
        raise ValueError(f"topk {topk} of {num_experts} experts")
    ids = torch.empty((num_rows, topk), dtype=torch.int64, device=logits.device)
    weights = torch.empty((num_rows, topk), dtype=torch.float32, device=logits.device)
    if num_rows:
        _route[(cdiv(num_rows, _ROWS),)](
            logits.contiguous(),
            bias,
            ids,
            weights,
            num_rows,
            scale,
            E=num_experts,
            PARTS=parts[0] if parts else 1,
            TOPK=topk,
            ROWS=_ROWS,
            WIDTH=next_power_of_2(num_experts),
            **chain.launch(logits.device),
            num_warps=_WARPS,
        )
    return ids, weights


@triton.jit(do_not_specialize=["num_rows"])
def product_part(
    x, x_row, weight, parts, num_rows, num_outputs, num_inputs,
    STEPS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, WARPS: tl.constexpr,
    ROWS: tl.constexpr, IS_EVEN: tl.constexpr, DOT: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """OUTPUTS outputs for all rows, over WARPS times DEPTH inputs. A warp has a product of its own
    (one of a batch, to Triton), so that few outputs leave none without work.
    """
    part = tl.program_id(1)
    if CHAINED and IS_EVEN:
        # Lines of the weight that are on their way to the L2 cache while x is not there yet.
        SIZE: tl.constexpr = STEPS * WARPS * DEPTH
        near = tl.minimum(tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), num_outputs - 1)
        line = part * SIZE + tl.arange(0, SIZE // 64) * 64
        at = weight + near[:, None] * num_inputs + line[None, :]
        tl.inline_asm_elementwise(_FETCH, "=r,l", [at], tl.int32, is_pure=False, pack=1)
    chain.start(CHAINED)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    inputs = tl.arange(0, WARPS)[:, None, None] * DEPTH + tl.arange(0, DEPTH)[None, None, :]
    inputs += part * (STEPS * WARPS * DEPTH)
    weight_at = weight + output[None, :, None] * num_inputs + inputs
    x_at = x + row.to(tl.int64)[None, :, None] * x_row + inputs
    is_output, is_row = (output < num_outputs)[None, :, None], (row < num_rows)[None, :, None]
    sums = tl.zeros([WARPS, OUTPUTS, ROWS], tl.float32)
    for step in range(STEPS):
        start = step * (WARPS * DEPTH)
        inside = is_output if IS_EVEN else is_output & (inputs < num_inputs - start)
        left = tl.load(weight_at + start, mask=inside, other=0.0)
        inside = is_row if IS_EVEN else is_row & (inputs < num_inputs - start)
        right = tl.load(x_at + start, mask=inside, other=0.0)
        sums = tl.dot(left.to(DOT), tl.permute(right.to(DOT), (0, 2, 1)), sums)
    total = tl.sum(sums, 0)
    place = parts + (part * num_rows + row)[None, :] * num_outputs + output[:, None]
    tl.store(place, total, mask=(row < num_rows)[None, :] & (output < num_outputs)[:, None])


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
    PARTS: tl.constexpr,
    TOPK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHAINED: tl.constexpr,
):
    chain.start(CHAINED)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    experts = tl.arange(0, WIDTH)
    there, known = (rows < num_rows)[:, None], (experts < E)[None, :]
    rows = rows.to(tl.int64)[:, None]
    place = logits + rows * E + experts[None, :]
    x = tl.load(place, mask=there & known, other=0.0)
    for part in tl.static_range(1, PARTS):
        x += tl.load(place + part * num_rows * E, mask=there & known, other=0.0)
    score = tl.sqrt(_softplus(x))
    rank = score + tl.load(bias + experts, mask=experts < E, other=0.0)[None, :]
    # The rank's bits in an order that integers share, since a warp finds the largest integer in one
    # instruction: both zeros alike, NaN above all as torch sorts it.
    rank = tl.where(rank == 0, 0.0, rank)
    bits = rank.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    bits = tl.where(rank == rank, bits, 0x7FFFFFFF)  # noqa: PLR0124  (NaN is not)
    lowest: tl.constexpr = -(1 << 31)  # no rank is: it would be a NaN's
    bits = tl.where(known, bits, lowest)
    for _ in tl.static_range(TOPK):
        best = tl.where(bits == tl.max(bits, 1)[:, None], experts[None, :], WIDTH)
        bits = tl.where(experts[None, :] == tl.min(best, 1)[:, None], lowest, bits)
    chosen = known & (bits == lowest)
    # Ascending ids: an expert's place is the number of chosen ones before it.
    place = rows * TOPK + tl.cumsum(chosen.to(tl.int32), 1) - 1
    total = tl.sum(tl.where(chosen, score, 0.0), 1)[:, None]
    expert = tl.zeros([ROWS, 1], tl.int64) + experts[None, :]
    tl.store(ids + place, expert, mask=chosen & there)
    tl.store(weights + place, score / (total + 1e-20) * scale, mask=chosen & there)
