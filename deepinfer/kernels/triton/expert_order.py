"""Pairs of a row and its expert, sorted by expert and cut into tiles, without asking the device.

Grids and buffers are sized by the number of pairs alone; what they hold is known to the device
only. One launch for up to 128 pairs, two beyond.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.sizes import cdiv, next_power_of_2

# Pairs that one program sorts, each against each: as few as there are, since their square costs.
_CHUNKS = 32, 64, 128
_ONE_WARP = 64  # most pairs, and bins, that a warp does alone, since it waits for no other then


def sort_pairs(ids: Tensor, num_experts: int, rows: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """ids [T, k] -> pairs in order of expert, int32 [T * k], and the tiles, which count experts
    from `first`.

    Tiles int32 [1 + 3 n]: how many there are, then of each its expert, its first place in the order
    and the place after its last. n is the most that any routing can make of this many pairs.
    """
    pairs = ids.numel()
    how = chain.launch(ids.device)
    chunk = next((size for size in _CHUNKS if pairs <= size), _CHUNKS[-1])
    chunks = cdiv(pairs, chunk)
    bins = next_power_of_2(num_experts + 1)
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    visited = min(pairs, num_experts)
    most = (pairs + visited * (rows - 1)) // rows
    tiles = torch.empty(1 + 3 * most, dtype=torch.int32, device=ids.device)
    counts = order  # not read if there is one chunk
    if chunks > 1:
        counts = torch.empty(chunks, bins, dtype=torch.int32, device=ids.device)
        _count[(chunks,)](ids, counts, pairs, first, num_experts, BINS=bins, CHUNK=chunk, **how)
    shape = {"BINS": bins, "CHUNK": chunk, "ROWS": rows, "IS_ONE": chunks == 1}
    common = ids, counts, order, tiles, pairs, first, num_experts, chunks
    num_warps = 1 if max(chunk, bins) <= _ONE_WARP else 4
    _place[(chunks,)](*common, **shape, **how, num_warps=num_warps)
    return order, tiles


@triton.jit
def _experts_of(ids, at, pairs, first_expert, num_experts):
    """Experts of these pairs, the first here as 0; those that are not here share one number after
    all others.
    """
    expert = tl.load(ids + at, mask=at < pairs, other=-1).to(tl.int32) - first_expert
    return tl.where((expert >= 0) & (expert < num_experts), expert, num_experts)


# Numbers that change with the step: a kernel of its own for multiples of 16 would be built late.
@triton.jit(do_not_specialize=["pairs"])
def _count(
    ids, counts, pairs, first_expert, num_experts,
    BINS: tl.constexpr, CHUNK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    chain.start(CHAINED)
    chunk = tl.program_id(0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    expert = _experts_of(ids, at, pairs, first_expert, num_experts)
    tl.store(counts + chunk * BINS + tl.arange(0, BINS), tl.histogram(expert, BINS))


@triton.jit(do_not_specialize=["pairs", "chunks"])
def _place(
    ids,
    counts,
    order,
    tiles,
    pairs,
    first_expert,
    num_experts,
    chunks,
    BINS: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    IS_ONE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    chain.start(CHAINED)
    chunk = tl.program_id(0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    expert = _experts_of(ids, at, pairs, first_expert, num_experts)
    bins = tl.arange(0, BINS)
    before = tl.zeros([BINS], tl.int32)
    if IS_ONE:
        total = tl.histogram(expert, BINS)
    else:
        total = tl.zeros([BINS], tl.int32)
        first = 0
        while first < chunks:
            line = (first + tl.arange(0, 16))[:, None]
            part = tl.load(counts + line * BINS + bins[None, :], mask=line < chunks, other=0)
            total += tl.sum(part, 0)
            before += tl.sum(tl.where(line < chunk, part, 0), 0)
            first += 16
    start = tl.cumsum(total, 0) - total
    # Stable, so that the order does not depend on which program comes first.
    is_earlier = (expert[None, :] == expert[:, None]) & (at[None, :] < at[:, None])
    place = tl.gather(start + before, expert, 0) + tl.sum(is_earlier.to(tl.int32), 1)
    tl.store(order + place, at, mask=at < pairs)
    if chunk == 0:
        num_tiles = tl.where(bins < num_experts, tl.cdiv(total, ROWS), 0)
        tl.store(tiles, tl.sum(num_tiles, 0))
        entry = tiles + 1 + 3 * (tl.cumsum(num_tiles, 0) - num_tiles)
        index = 0
        while index < tl.max(num_tiles, 0):
            begin = start + index * ROWS
            tl.store(entry + 3 * index, bins, mask=index < num_tiles)
            tl.store(entry + 3 * index + 1, begin, mask=index < num_tiles)
            end = tl.minimum(begin + ROWS, start + total)
            tl.store(entry + 3 * index + 2, end, mask=index < num_tiles)
            index += 1
