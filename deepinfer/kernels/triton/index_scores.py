"""Scores of the lightning indexer, straight from the packed index keys (spec 7.4, 7.5, 14.3).

The tensor core's tall side are 128 keys, its wide side the heads of up to four rows of a sequence:
keys are read and unpacked once for these rows. A second product, of the registers that the first
one left with weights, sums over heads. A score depends on its row and its key alone, in a fixed
order of heads, so a row has the same bits in every batch and for every split of the keys.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from deepinfer.kernels.triton.device import is_hopper
from deepinfer.kernels.triton.index_keys import put, query_operands, weighted
from deepinfer.kernels.triton.index_places import candidates_at, keys_at
from deepinfer.kernels.triton.sizes import cdiv, next_power_of_2
from deepinfer.kernels.values import EntryView

_MANY_ROWS, _HOPPER_HEADS = 64, 32  # what index_hopper.py is made for; more rows, too
_TILE = 128  # keys of one product: two heights of wgmma share what a tile costs besides
_MAX_ROWS = 4  # rows of one product
_REGISTERS = {1: 128, 2: 168, 4: 255}  # of a thread: room for 4, 3 and 2 programs on a processor
_PROCESSORS = 132
_AT_ONCE = {1: 4, 2: 3, 4: 2}  # programs on one of them, as the registers allow
_START = 3  # what a program costs beside its tiles, in tiles: mostly, rounding its queries


def serves(query: Tensor) -> bool:
    """Whether query [T, Hi, Ci] is of heads that these kernels are made for.

    What one step of the tensor core adds must be of one row.
    """
    _, heads, channels = query.shape
    return channels == 128 and heads >= 16 and heads & (heads - 1) == 0


def index_scores(
    query: Tensor,
    weights: Tensor,
    keys: Tensor,
    view: EntryView,
    *,
    is_invariant: bool = False,
) -> Tensor:
    """Score of every entry for every row: bf16 [T, N], -inf where the row does not see the entry.

    query bf16 [T, Hi, 128], already on the MXFP4 grid, Hi a power of two, 16 at least (others:
    `index_scores_small`); weights bf16 [T, Hi]; keys uint8 [*, 68]: 64 bytes of e2m1, even channel
    in the low nibble, then the UE8M0 scales of 32 channels each. A score is the sum over heads of
    weight * relu(query . key); the scale 2**-127 counts as 0, and code 255, or a size beyond
    float32, makes NaN.

    Operands are exact where the scales of a key, and of a head's query, lie within 2**15 of the
    largest; a smaller one of a key counts as no more than 2**-16 of it. The tensor core cuts what
    it adds, 32 products and the sum so far, about 13 bits below the largest: nothing where scales
    are alike. relu(query . key) is rounded to float16, the sum over heads is float32. So beside its
    last rounding a score is off by less than 2**-12 of the sum of |weight * query * key|, up to
    2**-6 if few large products cancel, and by 2**-30 of |weight| times a head's largest query and
    the largest scale. Weights times their heads' sizes are exact to 2**-41 of a row's largest.

    is_invariant: a row has the same bits whatever the number of rows; otherwise 64 and more rows of
    a sequence may go to a kernel that adds up in another order.
    """
    _check(query, weights, keys, view.blocks)
    num_rows, heads, _ = query.shape
    scores = torch.empty(num_rows, view.num_entries, dtype=torch.bfloat16, device=query.device)
    inputs = scores, query, weights, keys, view
    may_differ = not is_invariant and heads == _HOPPER_HEADS and is_hopper(query.device)
    for rows in view.groups:
        if not rows.numel() or not view.num_entries:
            continue
        if may_differ and rows.shape[1] >= _MANY_ROWS:
            from deepinfer.kernels.triton import index_hopper  # Gluon, which not every Triton has

            for of_sequence in rows.contiguous():
                index_hopper.score_rows(*inputs, of_sequence)
        else:
            _score_rows(*inputs, rows.contiguous())
    return scores


def _score_rows(
    scores: Tensor, query: Tensor, weights: Tensor, keys: Tensor, view: EntryView, rows: Tensor
) -> None:
    num_tiles = cdiv(view.num_entries, _TILE)
    tile_rows = min(_MAX_ROWS, next_power_of_2(rows.shape[1]))
    row_tiles = rows.shape[0] * cdiv(rows.shape[1], tile_rows)
    span = _tiles_of_a_program(num_tiles, row_tiles, _AT_ONCE[tile_rows])
    _scores[(row_tiles, cdiv(num_tiles, span))](
        scores,
        query,
        weights,
        keys,
        *view[:4],
        rows,
        rows.shape[1],
        view.num_entries,
        span * _TILE,
        num_blocks=view.blocks.shape[1],
        HEADS=query.shape[1],
        ROWS=tile_rows,
        TILE=_TILE,
        PACKED=not knobs.runtime.interpret,
        num_warps=4,
        num_stages=7,  # three tiles on their way: the number of a block is read before
        maxnreg=_REGISTERS[tile_rows],
    )


def index_scores_of(
    query: Tensor,
    weights: Tensor,
    keys: Tensor,
    view: EntryView,
    candidates: Tensor,
    block_size: int,
) -> Tensor:
    """Scores of each row's own candidates: bf16 [T, kb * block_size], -inf where there is none.

    As `index_scores`; candidates int32 [T, kb]: numbers of blocks of `block_size` consecutive
    entries, ascending, then -1. Place i of a row is entry
    candidates[i // block_size] * block_size + i % block_size, -inf where the row does not see it.
    """
    _check(query, weights, keys, view.blocks, candidates)
    num_rows, heads, _ = query.shape
    width = candidates.shape[1] * block_size
    scores = torch.empty(num_rows, width, dtype=torch.bfloat16, device=query.device)
    num_tiles = cdiv(width, _TILE)
    if num_rows == 0 or num_tiles == 0:
        return scores
    span = _tiles_of_a_program(num_tiles, num_rows, _AT_ONCE[1])
    _scores_of[(num_rows, cdiv(num_tiles, span))](
        scores,
        query,
        weights,
        keys,
        *view[:4],
        candidates,
        width,
        view.num_entries,
        span * _TILE,
        num_blocks=view.blocks.shape[1],
        BLOCK_SIZE=block_size,
        HEADS=heads,
        TILE=_TILE,
        PACKED=not knobs.runtime.interpret,
        num_warps=4,
        num_stages=4,
    )
    return scores


def _check(query: Tensor, weights: Tensor, keys: Tensor, *others: Tensor) -> None:
    assert query.dtype == weights.dtype == torch.bfloat16 and keys.dtype == torch.uint8
    assert serves(query) and keys.shape[1] == 68
    assert all(tensor.is_contiguous() for tensor in (query, weights, keys, *others))


@cache
def _tiles_of_a_program(num_tiles: int, row_tiles: int, at_once: int) -> int:
    """Tiles of keys that a program takes in turn: a query is unpacked once for all of them.

    So many that the rounds of programs that the processors take end soonest: a last round of a few
    programs costs as much as a full one.
    """
    slots = _PROCESSORS * at_once

    def time(span: int) -> float:
        rounds = cdiv(row_tiles * cdiv(num_tiles, span), slots)
        return rounds * (span + _START)

    return min(range(2, 65), key=time)


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
    rows,
    rows_of_sequence,
    num_entries,
    span,
    num_blocks,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Entries [span * program 1, ...) for ROWS rows of one sequence."""
    WIDE: tl.constexpr = ROWS * HEADS
    tiles = tl.cdiv(rows_of_sequence, ROWS)
    rows += (tl.program_id(0) // tiles).to(tl.int64) * rows_of_sequence
    first = tl.program_id(0) % tiles * ROWS
    # A product has four columns of scores; those behind ROWS are of no row.
    is_place = (tl.arange(0, 4) < ROWS) & (first + tl.arange(0, 4) < rows_of_sequence)
    row = tl.load(rows + first + tl.arange(0, 4), mask=is_place, other=-1)
    visible = tl.load(num_visible + row, mask=row >= 0, other=0).to(tl.int32)
    most = tl.minimum(tl.max(visible), num_entries)
    blocks += tl.load(sequence_ids + tl.maximum(tl.load(rows), 0)) * num_blocks

    start, stop = tl.program_id(1) * span, tl.minimum(tl.program_id(1) * span + span, num_entries)
    out = scores + tl.maximum(row, 0)[None, :] * num_entries
    is_row = (row >= 0)[None, :]
    within = tl.arange(0, TILE)
    if start < most:
        place = first + tl.arange(0, WIDE) // HEADS
        head_row = tl.maximum(tl.load(rows + place, mask=place < rows_of_sequence, other=0), 0)
        operands = query_operands(query, weights, head_row, WIDE, HEADS, PACKED)
        for at in tl.range(start, tl.minimum(stop, most), TILE):
            entry = at + within[:, None]
            keys_here, key = keys_at(keys, blocks, at, num_entries, PER_BLOCK, TILE)
            total = weighted(keys_here, key, operands, TILE, PACKED)
            total = tl.where(entry < visible[None, :], total, -float("inf"))
            inside = is_row & (entry < num_entries)
            put(out + within[:, None] + at, total.to(tl.bfloat16), inside, PACKED)
    # What no row of the tile sees is not worth reading.
    for at in range(tl.maximum(start, tl.cdiv(most, TILE) * TILE), stop, TILE):
        entry = at + within[:, None]
        nothing = tl.full((TILE, 4), -float("inf"), tl.bfloat16)
        tl.store(out + entry, nothing, mask=is_row & (entry < num_entries))


@triton.jit
def _scores_of(
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
    span,
    num_blocks,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    TILE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Places [span * program 1, ...) of one row's candidates."""
    row = tl.program_id(0).to(tl.int64)
    blocks += tl.load(sequence_ids + row) * num_blocks
    candidates += row * (width // BLOCK_SIZE)
    scores += row * width
    visible = tl.minimum(tl.load(num_visible + row), num_entries).to(tl.int32)
    head_row = tl.zeros((HEADS,), tl.int64) + row
    operands = query_operands(query, weights, head_row, HEADS, HEADS, PACKED)

    start, stop = tl.program_id(1) * span, tl.minimum(tl.program_id(1) * span + span, width)
    # Each listed block holds an entry that is visible, so there are no more of them.
    most = tl.minimum(stop, tl.cdiv(visible, BLOCK_SIZE) * BLOCK_SIZE)
    within = tl.arange(0, TILE)
    entry, key = candidates_at(
        candidates, blocks, start, width, visible, PER_BLOCK, BLOCK_SIZE, TILE
    )
    for at in tl.range(start, most, TILE):
        # The next tile's two look-ups run beside this tile's reads: three in a row would be waited
        # for one after the other.
        next_entry, next_key = candidates_at(
            candidates, blocks, at + TILE, width, visible, PER_BLOCK, BLOCK_SIZE, TILE
        )
        total = weighted(keys, key, operands, TILE, PACKED)
        total = tl.where((entry >= 0)[:, None], total, -float("inf")).to(tl.bfloat16)
        # Of the four columns of scores only the first is of a row.
        place = (at + within)[:, None] + tl.zeros((1, 4), tl.int32)
        put(scores + place, total, (place < width) & (tl.arange(0, 4) == 0)[None, :], PACKED)
        entry, key = next_entry, next_key
    for at in range(tl.maximum(start, tl.cdiv(most, TILE) * TILE), stop, TILE):
        nothing = tl.full((TILE,), -float("inf"), tl.bfloat16)
        tl.store(scores + at + within, nothing, mask=at + within < width)
