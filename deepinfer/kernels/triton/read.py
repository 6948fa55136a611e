"""Reads memory and does nothing with it: what a GPU can read at most, measured."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 8192
_TILES = 64  # of a program, one after another


def read(words: Tensor) -> Tensor:
    """int32 [N], N a multiple of 2**19 -> int32 [N / 2**19], sums that nobody wants."""
    sums = torch.empty(len(words) // (_TILE * _TILES), dtype=torch.int32, device=words.device)
    _read[(len(sums),)](words, sums, TILE=_TILE, TILES=_TILES, num_warps=8)
    return sums


@triton.jit
def _read(words, sums, TILE: tl.constexpr, TILES: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * TILE * TILES
    total = tl.zeros([TILE], tl.int32)
    for i in range(TILES):
        total += tl.load(words + start + i * TILE + tl.arange(0, TILE))
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))
