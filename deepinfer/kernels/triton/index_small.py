"""Index scores of few or narrow heads, as small models have them (spec 7.4, 7.5, 14.3).

A program scores one tile of keys for one row: a scale's channels at a time are unpacked to bfloat16
and multiplied with all heads of the row at once. Rows of a sequence do not share that work, as they
do in index_scores.py: here launches cost more than reading does.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from deepinfer.kernels.triton.index_places import candidates_at, key_row
from deepinfer.kernels.triton.sizes import cdiv, next_power_of_2
from deepinfer.kernels.values import EntryView

_TILE = 64  # keys of a program
_LEAST_HEADS = 16  # of a product, so that heads of any number are its wide side


def index_scores_small(
    query: Tensor,
    weights: Tensor,
    keys: Tensor,
    view: EntryView,
    candidates: Tensor | None = None,
    block_size: int = 1,
) -> Tensor:
    """Score of every entry for every row: bf16 [T, N], -inf where the row does not see the entry.

    query bf16 [T, Hi, Ci], Ci a multiple of 32, any Hi; weights bf16 [T, Hi]; keys uint8
    [*, Ci / 2 + Ci / 32]: e2m1, even channel in the low nibble, then the UE8M0 scales of 32
    channels each. With candidates int32 [T, kb], scores are those of each row's own blocks of
    `block_size` entries, bf16 [T, kb * block_size], as `index_scores_of` has them.

    A score is the sum over heads of weight * relu(query . key), in float32 and in a fixed order: it
    depends on its row and its key alone. Operands are exact, so that beside its last rounding it is
    off by less than 2**-16 of the sum of |weight * query * key|. The scale 2**-127 counts as 0,
    code 255 makes NaN, and what is beyond float32 makes infinity or NaN.
    """
    num_rows, heads, channels = query.shape
    assert query.dtype == weights.dtype == torch.bfloat16 and keys.dtype == torch.uint8
    assert channels % 32 == 0 and keys.shape[1] == channels // 2 + channels // 32
    assert all(tensor.is_contiguous() for tensor in (query, weights, keys, view.blocks))
    assert candidates is None or candidates.is_contiguous()
    width = view.num_entries if candidates is None else candidates.shape[1] * block_size
    scores = torch.empty(num_rows, width, dtype=torch.bfloat16, device=query.device)
    if scores.numel():
        _scores[(num_rows, cdiv(width, _TILE))](
            scores,
            query,
            weights,
            keys,
            *view[:4],
            candidates,
            width,
            view.num_entries,
            num_blocks=view.blocks.shape[1],
            BLOCK_SIZE=1 if candidates is None else block_size,
            HEADS=heads,
            WIDE=max(_LEAST_HEADS, next_power_of_2(heads)),
            CHANNELS=channels,
            TILE=_TILE,
            OPERAND=tl.float32 if knobs.runtime.interpret else tl.bfloat16,
            num_warps=4,
        )
    return scores


@triton.jit
def _scores(
    scores,
    query,
    weights,
    keys,
    blocks,
    PER_BLOCK: tl.constexpr,
    sequence_ids,
    num_visible,
    candidates,
    width,
    num_entries,
    num_blocks,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILE: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """Places [TILE * program 1, ...) of one row: entries, or what its candidates list."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE
    place = at + tl.arange(0, TILE)
    visible = tl.minimum(tl.load(num_visible + row), num_entries).to(tl.int32)
    total = tl.full((TILE,), -float("inf"), tl.float32)
    # What the row does not see is not worth reading. Each listed block holds an entry that it sees.
    if at < tl.cdiv(visible, BLOCK_SIZE) * BLOCK_SIZE:
        blocks += tl.load(sequence_ids + row) * num_blocks
        if candidates is None:
            entry = tl.where(place < visible, place, -1)
            key = key_row(blocks, tl.maximum(entry, 0), PER_BLOCK)
        else:
            candidates += row * (width // BLOCK_SIZE)
            entry, key = candidates_at(
                candidates, blocks, at, width, visible, PER_BLOCK, BLOCK_SIZE, TILE
            )
        # Heads that pad the product are the last one again, with no weight.
        head = tl.arange(0, WIDE)
        of_row = row * HEADS + tl.minimum(head, HEADS - 1)
        match = tl.zeros((TILE, WIDE), tl.float32)
        for group in tl.static_range(CHANNELS // 32):
            match += _match_of_group(query, of_row, keys, key, group, CHANNELS, OPERAND)
        # Not a maximum, which would lose a NaN.
        match = tl.where(match < 0.0, 0.0, match)
        weight = tl.where(head < HEADS, tl.load(weights + of_row).to(tl.float32), 0.0)
        total = tl.where(entry >= 0, tl.sum(match * weight[None, :], 1), total)
    tl.store(scores + row * width + place, total.to(tl.bfloat16), mask=place < width)


@triton.jit
def _match_of_group(
    query, of_row, keys, key, group: tl.constexpr, CHANNELS: tl.constexpr, OPERAND: tl.constexpr
):
    """query . key float32 [keys, heads] of the 32 channels of a key that have one scale.

    Of a byte's two channels the even ones are one step of the tensor core, the odd ones another.
    """
    BYTES: tl.constexpr = CHANNELS // 2 + CHANNELS // 32
    byte = group * 16 + tl.arange(0, 16)[None, :]
    of_query = query + of_row[:, None] * CHANNELS + byte * 2
    keys += key * BYTES
    code = tl.load(keys[:, None] + byte).to(tl.int32)
    even = _value((code & 7) << 22 | (code & 8) << 28).to(OPERAND)
    odd = _value((code & 0x70) << 18 | (code & 0x80) << 24).to(OPERAND)
    match = tl.dot(even, tl.trans(tl.load(of_query).to(OPERAND)), input_precision="ieee")
    of_odd = tl.trans(tl.load(of_query + 1).to(OPERAND))
    match = tl.dot(odd, of_odd, match, input_precision="ieee")
    scale = tl.load(keys + (CHANNELS // 2 + group)).to(tl.int32)
    scale = tl.where(scale == 255, float("nan"), (scale << 23).to(tl.float32, bitcast=True))
    return match * scale[:, None]


@triton.jit
def _value(bits):
    """e2m1 in float32, of its sign at bit 31 and its exponent and fraction at bits 24 to 22."""
    return bits.to(tl.float32, bitcast=True) * 2.0**126
