"""Scores of the lightning indexer, straight from the packed index keys (spec 7.4, 7.5, 14.3).

The tensor core's tall side are 128 keys, its wide side the heads of up to four rows of a sequence:
keys are read and unpacked once for these rows, and the sum over heads stays in the registers of one
quad of threads. A score depends on its row and its key alone, in a fixed order of heads, so a
row has the same bits in every batch and for every split of the keys.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from deepinfer.kernels.triton.index_keys import candidates_at, keys_at, query_operands, weighted
from deepinfer.kernels.values import EntryView

_TILE = 128  # keys of one product: two heights of wgmma share what a tile costs besides
_MAX_ROWS = 4  # rows of one product
_REGISTERS = {1: 128, 2: 168, 4: 255}  # of a thread: room for 4, 3 and 2 programs on a processor
_PROCESSORS = 132
_AT_ONCE = {1: 4, 2: 3, 4: 2}  # programs on one of them, as the registers allow
_START = 1.5  # what a program costs beside its tiles, in tiles: mostly, unpacking its queries


def index_scores(query: Tensor, weights: Tensor, keys: Tensor, view: EntryView) -> Tensor:
    """Score of every entry for every row: bf16 [T, N], -inf where the row does not see the entry.

    query bf16 [T, Hi, 128], already on the MXFP4 grid, Hi a power of two; weights bf16 [T, Hi];
    keys uint8 [*, 68]: 64 bytes of e2m1, even channel in the low nibble, then the UE8M0 scales of
    32 channels each. The sum over heads of weight * relu(query . key) is float32, rounded once.
    Scales from 2**-72 to 2**61 and queries below 2**67 are exact; a greater scale gives NaN.
    """
    _check(query, weights, keys, view.blocks)
    num_rows, heads, _ = query.shape
    scores = torch.empty(num_rows, view.num_entries, dtype=torch.bfloat16, device=query.device)
    num_tiles = triton.cdiv(view.num_entries, _TILE)
    for rows in view.groups:
        tile_rows = min(_MAX_ROWS, triton.next_power_of_2(rows.shape[1]))
        row_tiles = rows.shape[0] * -(-rows.shape[1] // max(1, tile_rows))
        if row_tiles == 0 or num_tiles == 0:
            continue
        span = _tiles_of_a_program(num_tiles, row_tiles, _AT_ONCE[tile_rows])
        _scores[(row_tiles, triton.cdiv(num_tiles, span))](
            scores,
            query,
            weights,
            keys.view(torch.int16),
            keys,
            *view[:4],
            rows.contiguous(),
            rows.shape[1],
            view.num_entries,
            span * _TILE,
            num_blocks=view.blocks.shape[1],
            HEADS=heads,
            ROWS=tile_rows,
            TILE=_TILE,
            PACKED=not knobs.runtime.interpret,
            num_warps=4,
            num_stages=5 if tile_rows == 1 else 4,
            maxnreg=_REGISTERS[tile_rows],
        )
    return scores


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
    num_tiles = triton.cdiv(width, _TILE)
    if num_rows == 0 or num_tiles == 0:
        return scores
    span = _tiles_of_a_program(num_tiles, num_rows, _AT_ONCE[1])
    _scores_of[(num_rows, triton.cdiv(num_tiles, span))](
        scores,
        query,
        weights,
        keys.view(torch.int16),
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
    assert query.shape[2] == 128 and keys.shape[1] == 68
    assert all(tensor.is_contiguous() for tensor in (query, weights, keys, *others))


@cache
def _tiles_of_a_program(num_tiles: int, row_tiles: int, at_once: int) -> int:
    """Tiles of keys that a program takes in turn: a query is unpacked once for all of them.

    So many that the rounds of programs that the processors take end soonest: a last round of a few
    programs costs as much as a full one.
    """
    slots = _PROCESSORS * at_once

    def time(span: int) -> float:
        rounds = -(-row_tiles * -(-num_tiles // span) // slots)
        return rounds * (span + _START)

    return min(range(2, 33), key=time)


@triton.jit
def _scores(
    scores,
    query,
    weights,
    codes,
    scales,
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
    tiles = tl.cdiv(rows_of_sequence, ROWS)
    rows += (tl.program_id(0) // tiles).to(tl.int64) * rows_of_sequence
    first = tl.program_id(0) % tiles * ROWS
    place = first + tl.arange(0, ROWS)
    row = tl.load(rows + place, mask=place < rows_of_sequence, other=-1)
    visible = tl.load(num_visible + row, mask=row >= 0, other=0).to(tl.int32)
    most = tl.minimum(tl.max(visible), num_entries)
    blocks += tl.load(sequence_ids + tl.maximum(tl.load(rows), 0)) * num_blocks

    start, stop = tl.program_id(1) * span, tl.minimum(tl.program_id(1) * span + span, num_entries)
    out = scores + tl.maximum(row, 0)[None, :] * num_entries
    is_row = (row >= 0)[None, :]
    within = tl.arange(0, TILE)
    if start < most:
        head_place = first + tl.arange(0, ROWS * HEADS) // HEADS
        head_row = tl.load(rows + head_place, mask=head_place < rows_of_sequence, other=0)
        head_row = tl.maximum(head_row, 0) * HEADS + tl.arange(0, ROWS * HEADS) % HEADS
        operands = query_operands(query, head_row, ROWS * HEADS, PACKED)
        weight = tl.load(weights + head_row).to(tl.float32)
        for at in tl.range(start, tl.minimum(stop, most), TILE):
            entry = at + within
            codes_at, scales_at, key = keys_at(
                codes, scales, blocks, at, num_entries, PER_BLOCK, TILE
            )
            total = weighted(codes_at, scales_at, key, operands, weight, TILE, ROWS, HEADS, PACKED)
            total = tl.where(entry[:, None] < visible[None, :], total, -float("inf"))
            inside = is_row & (entry < num_entries)[:, None]
            tl.store(out + entry[:, None], total.to(tl.bfloat16), mask=inside)
    # What no row of the tile sees is not worth reading.
    for at in range(tl.maximum(start, tl.cdiv(most, TILE) * TILE), stop, TILE):
        entry = at + within[:, None]
        nothing = tl.full((TILE, ROWS), -float("inf"), tl.bfloat16)
        tl.store(out + entry, nothing, mask=is_row & (entry < num_entries))


@triton.jit
def _scores_of(
    scores,
    query,
    weights,
    codes,
    scales,
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
    head_row = row * HEADS + tl.arange(0, HEADS)
    operands = query_operands(query, head_row, HEADS, PACKED)
    weight = tl.load(weights + head_row).to(tl.float32)

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
        total = weighted(codes, scales, key, operands, weight, TILE, 1, HEADS, PACKED)
        total = tl.where((entry >= 0)[:, None], total, -float("inf")).to(tl.bfloat16)
        place = at + within[:, None]
        tl.store(scores + place, total, mask=place < width)
        entry, key = next_entry, next_key
    for at in range(tl.maximum(start, tl.cdiv(most, TILE) * TILE), stop, TILE):
        nothing = tl.full((TILE,), -float("inf"), tl.bfloat16)
        tl.store(scores + at + within, nothing, mask=at + within < width)
