"""The best entries of each row, and the blocks that later selections may choose from (spec 7.5).

Long rows go through a sieve: of each part of a row it marks what may be among the best, which is
little more than is wanted. One program then lists what is marked, in order, and chooses exactly.
The result is exact, ties to the lowest place, so neither the split into parts nor the batch can
show in it.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton.select_kernels import GREATEST, choose, numbers, sieve
from deepinfer.kernels.triton.sizes import cdiv, next_power_of_2
from deepinfer.kernels.values import EntryView

_STEP = 8192  # scores that a program of the sieve has in its registers
_DIRECT = 4096  # rows of so many places need no sieve
_LISTED = 8192  # places that the choosing program has in its registers
_PROGRAMS = 132 * 4  # rows are split while there are fewer programs
_WORDS = 2048  # words of marks that it takes at a time
_BLOCKS = 1024  # candidate blocks of one program


class Limit(NamedTuple):
    """How far a row's places go: `places` of them for each block that has a visible entry.

    num_visible: int64 [T], or None where all places are to be read.
    """

    num_visible: Tensor | None
    block_size: int
    places: int


def select_entries(
    scores: Tensor,
    topk: int,
    num_visible: Tensor | None = None,
    *,
    candidates: Tensor | None = None,
    block_size: int = 1,
    stored_at: EntryView | None = None,
) -> Tensor:
    """The best `topk` entries of each row: int32 [T, topk], ascending, then -1.

    scores bf16 [T, N], -inf where a row may not choose; ties go to the lowest place, and NaN counts
    as infinite. num_visible int64 [T] only saves time: places from there on are -inf and not read.
    candidates int32 [T, kb], as `candidate_blocks` gives them: place i stands for entry
    candidates[i // block_size] * block_size + i % block_size. With stored_at, the entries' rows in
    the store are given instead of their numbers, in the same order.
    """
    assert scores.dtype == torch.bfloat16
    chosen = torch.empty(scores.shape[0], topk, dtype=torch.int32, device=scores.device)
    if scores.shape[0] and topk:
        limit = Limit(num_visible, block_size, block_size)
        _select(chosen, scores.view(torch.int16), limit, candidates, stored_at)
    return chosen


def candidate_blocks(
    scores: Tensor, num_visible: Tensor, block_size: int, topk_blocks: int
) -> Tensor:
    """The best blocks of `block_size` consecutive entries: int32 [T, min(topk_blocks, all)],
    ascending, then -1.

    scores bf16 [T, N], num_visible int64 [T]. A block counts as its best visible entry, NaN as the
    best of all; the block of the newest visible entry is always kept, and blocks without a visible
    entry never. Ties go to the lowest block.
    """
    num_rows, num_entries = scores.shape
    num_blocks = cdiv(num_entries, block_size)
    width = min(topk_blocks, num_blocks)
    chosen = torch.empty(num_rows, width, dtype=torch.int32, device=scores.device)
    if not chosen.numel():
        return chosen
    best = _empty(scores, torch.int16, num_blocks)
    _best_of_blocks[(num_rows, cdiv(num_blocks, _BLOCKS))](
        best,
        scores.view(torch.int16),
        num_visible,
        num_entries,
        num_blocks,
        BLOCKS=_BLOCKS,
        SIZE=block_size,
        WIDTH=next_power_of_2(block_size),
        num_warps=4,
    )
    _select(chosen, best, Limit(num_visible, block_size, 1), None, None)
    return chosen


def _select(
    chosen: Tensor,
    scores: Tensor,
    limit: Limit,
    candidates: Tensor | None,
    stored_at: EntryView | None,
) -> None:
    """Fill chosen int32 [T, topk] by scores, bfloat16's bits as int16 [T, N]."""
    (num_rows, topk), width = chosen.shape, scores.shape[1]
    assert scores.is_contiguous() and (candidates is None or candidates.is_contiguous())
    assert stored_at is None or stored_at.blocks.is_contiguous()
    length, marks, listed = max(16, next_power_of_2(width)), None, None
    if width > _DIRECT:
        room = next_power_of_2(topk + topk // 2)
        part = _part(num_rows, width, room)
        num_parts = cdiv(width, part)
        length = max(16, next_power_of_2(num_parts * room))
        marks = _empty(scores, torch.uint8, cdiv(width, _STEP) * (_STEP // 8))
        listed = _empty(scores, torch.int32, length)
        sieve[(num_rows, num_parts)](
            marks,
            scores,
            limit.num_visible,
            width,
            part,
            topk,
            PER_LIMIT=limit.block_size,
            TIMES=limit.places,
            STEP=_STEP,
            ROOM=room,
            GROUPS=min(_STEP, max(2048, next_power_of_2(4 * topk))),
            num_warps=8,
            maxnreg=80,  # three programs on a processor; only what ties need is spilled
        )
        marks = marks.view(torch.int32)
    choose[(num_rows,)](
        chosen,
        scores,
        limit.num_visible,
        marks,
        listed,
        candidates,
        stored_at.sequence_ids if stored_at else None,
        stored_at.blocks if stored_at else None,
        width,
        topk,
        candidates.shape[1] if candidates is not None else 0,
        stored_at.blocks.shape[1] if stored_at else 0,
        PER_LIMIT=limit.block_size,
        TIMES=limit.places,
        BLOCK_SIZE=limit.block_size,
        PER_BLOCK=stored_at.per_block if stored_at else 1,
        STEP=_STEP,
        WORDS=min(_WORDS, max(16, next_power_of_2(width // 32))),
        LENGTH=length,
        PADDED=next_power_of_2(topk),
        num_warps=16 if length > 4096 else 8 if length > 1024 else 4,
    )


def _empty(scores: Tensor, dtype: torch.dtype, width: int) -> Tensor:
    return torch.empty(scores.shape[0], width, dtype=dtype, device=scores.device)


def _part(num_rows: int, width: int, room: int) -> int:
    """Places of a row that one program sieves: all of them where there are rows enough."""
    most = max(1, min(_LISTED // room, width // (2 * _STEP)))
    num_parts = max(1, min(most, _PROGRAMS // num_rows))
    return cdiv(cdiv(width, num_parts), _STEP) * _STEP


@triton.jit
def _best_of_blocks(
    best,
    scores,
    num_visible,
    num_entries,
    num_blocks,
    BLOCKS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Each block's best visible score: infinity for NaN, the greatest number for the newest."""
    row = tl.program_id(0).to(tl.int64)
    visible = tl.load(num_visible + row).to(tl.int32)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    within = tl.arange(0, WIDTH)[None, :]
    entry = block[:, None] * SIZE + within
    held = (within < SIZE) & (entry < num_entries)
    top = tl.full((BLOCKS,), -float("inf"), tl.float32)
    if tl.program_id(1) * BLOCKS * SIZE < visible:
        score = numbers(scores + row * num_entries, entry, held)
        score = tl.where(score <= float("inf"), tl.minimum(score, GREATEST), float("inf"))
        score = tl.where((entry < visible) & (within < SIZE), score, -float("inf"))
        top = tl.max(score, 1)
    # A block all of whose visible scores are -inf may still be chosen, an invisible one may not.
    top = tl.where(block * SIZE < visible, tl.maximum(top, -GREATEST), top)
    is_newest = (block == (visible - 1) // SIZE) & (visible > 0)
    top = tl.where(is_newest, tl.maximum(top, GREATEST), top)
    bits = (top.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
    tl.store(best + row * num_blocks + block, bits, mask=block < num_blocks)
