"""Gated pooling of the tokens of one entry (spec 7.3), fused with their gather."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton.sizes import cdiv, next_power_of_2

_CHANNELS = 512
_WARPS = 4


def pool_pairs(values: Tensor, scores: Tensor, members: Tensor) -> Tensor:
    """Per channel, the softmax of the members' scores weighs their values: float32 [E, C].

    values, scores float32 [R, C] of any row stride; members int64 [E, r], rows of each entry. A
    member below 0 counts as absent; an entry of none gives zeros.
    """
    num_entries, count = members.shape
    channels = values.shape[1]
    pooled = torch.empty((num_entries, channels), dtype=torch.float32, device=values.device)
    if num_entries:
        block = min(_CHANNELS, next_power_of_2(channels))
        values, scores = (t if t.stride(1) == 1 else t.contiguous() for t in (values, scores))
        _pool[(num_entries, cdiv(channels, block))](
            values,
            values.stride(0),
            scores,
            scores.stride(0),
            members.contiguous(),
            pooled,
            C=channels,
            COUNT=count,
            BLOCK=block,
            num_warps=_WARPS,
        )
    return pooled


@triton.jit
def _pool(
    values,
    values_row,
    scores,
    scores_row,
    members,
    pooled,
    C: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entry = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    for i in tl.static_range(COUNT):
        row = tl.load(members + entry * COUNT + i)
        mask = channels < tl.where(row >= 0, C, 0)
        score = tl.load(scores + row * scores_row + channels, mask=mask, other=float("-inf"))
        top = tl.maximum(top, score)
    # All absent: any number will do that is not infinite.
    top = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(COUNT):
        row = tl.load(members + entry * COUNT + i)
        mask = channels < tl.where(row >= 0, C, 0)
        score = tl.load(scores + row * scores_row + channels, mask=mask, other=float("-inf"))
        power = tl.exp(score - top)
        weight += power
        total += power * tl.load(values + row * values_row + channels, mask=mask, other=0.0)
    result = total / tl.where(weight == 0, 1.0, weight)
    tl.store(pooled + entry * C + channels, result, mask=channels < C)
