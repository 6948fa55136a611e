"""FP8 operands of the index scores of many rows of a sequence, made once for all products.

The keys of a sequence are unpacked, in order of their entries, and the queries of its rows are
rounded, both as index_keys.py does it: products are the same numbers. index_hopper.py reads them.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from deepinfer.kernels.triton.index_keys import (
    key_operand,
    magnitude,
    power_of_two,
    query_operand,
    size_of_row,
)
from deepinfer.kernels.triton.index_places import keys_at
from deepinfer.kernels.triton.sizes import cdiv
from deepinfer.kernels.values import EntryView

HEADS = 32  # of the released model
TILE = 128  # keys of a program; operands are padded to that, and with any numbers
_ROWS = 4  # rows of a program


class Operands(NamedTuple):
    """keys float8_e5m2 [N', 128], in each 16 the even entries first, then the odd ones; factors
    float32 [N'], what a key's products are to be multiplied by; queries float8_e5m2 [32 * n, 128],
    weights float32 [32 * n] and sizes float32 [n] of n rows, a score's other two factors.
    """

    keys: Tensor
    factors: Tensor
    queries: Tensor
    weights: Tensor
    sizes: Tensor


def operands(
    query: Tensor, weights: Tensor, keys: Tensor, view: EntryView, rows: Tensor
) -> Operands:
    """Of all entries of a sequence, and of its rows int64 [n], -1 for none, the first of them one.

    query, weights, keys: as of `index_scores`, with 32 heads.
    """
    key_tiles = cdiv(view.num_entries, TILE)
    new = query.new_empty
    made = Operands(
        new((key_tiles * TILE, 128), dtype=torch.uint8),
        new(key_tiles * TILE, dtype=torch.float32),
        new((len(rows) * HEADS, 128), dtype=torch.uint8),
        new(len(rows) * HEADS, dtype=torch.float32),
        new(len(rows), dtype=torch.float32),
    )
    _make[(key_tiles + cdiv(len(rows), _ROWS),)](
        *made,
        query,
        weights,
        keys,
        *view[:3],
        rows,
        len(rows),
        view.num_entries,
        key_tiles,
        num_blocks=view.blocks.shape[1],
        HEADS=HEADS,
        ROWS=_ROWS,
        TILE=TILE,
        PACKED=not knobs.runtime.interpret,
        num_warps=4,
    )
    codes = made.keys.view(torch.float8_e5m2), made.queries.view(torch.float8_e5m2)
    return made._replace(keys=codes[0], queries=codes[1])


@triton.jit
def _make(
    key_codes,
    factors,
    query_codes,
    row_weights,
    sizes,
    query,
    weights,
    keys,
    blocks,
    PER_BLOCK: tl.constexpr,
    sequence_ids,
    rows,
    num_rows,
    num_entries,
    key_tiles,
    num_blocks,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """The first programs make keys, the others queries."""
    number = tl.program_id(0)
    if number < key_tiles:
        blocks += tl.load(sequence_ids + tl.load(rows)) * num_blocks
        at = number * TILE
        _make_keys(key_codes, factors, keys, blocks, at, num_entries, PER_BLOCK, TILE, PACKED)
    else:
        first = (number - key_tiles) * ROWS
        made = query_codes, row_weights, sizes
        _make_queries(made, query, weights, rows, first, num_rows, HEADS, ROWS)


@triton.jit
def _make_keys(
    codes,
    factors,
    keys,
    blocks,
    at,
    num_entries,
    PER_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    PACKED: tl.constexpr,
):
    keys_here, key = keys_at(keys, blocks, at, num_entries, PER_BLOCK, TILE)
    first, last, most = key_operand(keys_here, key, TILE, PACKED)
    entry = at + tl.arange(0, TILE)
    # So that a thread of the product has two neighbours.
    place = entry // 16 * 16 + entry % 2 * 8 + entry % 16 // 2
    _put_halves(codes, place, first, last)
    tl.store(factors + entry, power_of_two(tl.max(most, 1)))


@triton.jit
def _make_queries(
    made, query, weights, rows, first_row, num_rows, HEADS: tl.constexpr, ROWS: tl.constexpr
):
    codes, row_weights, sizes = made
    head = first_row * HEADS + tl.arange(0, ROWS * HEADS)
    is_head = head < num_rows * HEADS
    row = tl.maximum(tl.load(rows + head // HEADS, mask=is_head, other=0), 0)
    first, last, weight = query_operand(query, weights, row * HEADS + head % HEADS)
    weight = tl.reshape(weight, (ROWS, HEADS))
    up, size = size_of_row(tl.max(magnitude(weight), 1))
    weight = tl.reshape(weight * power_of_two(up)[:, None], (ROWS * HEADS,))
    _put_halves(codes, tl.where(is_head, head, -1), first, last)
    tl.store(row_weights + head, weight, mask=is_head)
    place = first_row + tl.arange(0, ROWS)
    tl.store(sizes + place, size, mask=place < num_rows)


@triton.jit
def _put_halves(codes, place, first, last):
    """Two halves [n, 64] as FP8 to rows `place` [n], none where that is negative."""
    where = codes + (place[:, None] * 128 + tl.arange(0, 64)[None, :])
    inside = place[:, None] >= 0
    tl.store(where, first.to(tl.float8e5).to(tl.uint8, bitcast=True), mask=inside)
    tl.store(where + 64, last.to(tl.float8e5).to(tl.uint8, bitcast=True), mask=inside)
