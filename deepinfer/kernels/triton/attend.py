"""Sparse attention over packed cache rows, with a sink and both rotations (spec 6, 7.6, 15).

For few rows the keys of a row are shared out over programs; many rows have one program each, or, on
SM90, those of attend_hopper.py.
"""

import torch
from torch import Tensor

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.attend_kernels import LOG2_E, attend_kernel, combine_kernel
from deepinfer.kernels.triton.attend_tiles import SHIFT
from deepinfer.kernels.triton.device import is_hopper, num_processors
from deepinfer.kernels.triton.sizes import cdiv, next_power_of_2
from deepinfer.kernels.values import Rotary

_SPLIT_ROWS = 12  # up to so many rows, each tile of a row has a program of its own
_SPLIT_TILE = 64  # keys of such a tile
_TILE = 128  # and where one program does all: as many as fit beside the query in shared memory
_HOPPER_CHANNELS = 512  # what attend_hopper.py is made for


def attend(
    query: Tensor,
    rotary: Rotary,
    sink: Tensor,
    scale: float,
    window: Tensor,
    window_index: Tensor,
    entries: Tensor | None = None,
    entry_index: Tensor | None = None,
    *,
    is_invariant: bool = False,
) -> Tensor:
    """Rotate, attend, rotate back: bf16 [T, H, C]. Meaning as in reference/attend.py.

    query bf16 [T, H, C], not rotated; rotary float32 [T, R] each; sink float32 [H]. The stores hold
    packed rows: window uint8 [*, C + C/32], entries uint8 [*, C/2 + C/16] (FP4) or as window.
    window_index [T, W] and entry_index [T, K], int32 or int64, list store rows, -1 for none. C is a
    power of two, 32 at least, and so is R. Products of bf16, float32 sums; probabilities round to
    bf16. is_invariant: a row has the same bits whatever the number of rows; otherwise a few rows
    are shared out over more programs. Raises ValueError for a row width of neither format.
    """
    rows, _, channels = query.shape
    if entries is None or entry_index is None:
        entries, entry_index = window[:0], window_index[:, :0]
    fp8, fp4 = channels + channels // 32, channels // 2 + channels // 16
    if window.shape[1] != fp8 or entries.shape[1] not in (fp8, fp4):
        raise ValueError(f"rows of {window.shape[1]} and {entries.shape[1]} bytes: C is {channels}")
    query, window, entries = (x.contiguous() for x in (query, window, entries))
    window_index, entry_index = (x.contiguous() for x in (window_index, entry_index))
    out = torch.empty_like(query)
    if not rows:
        return out
    is_split = rows <= _SPLIT_ROWS and not is_invariant
    scale *= LOG2_E.value * 2.0**SHIFT.value
    lists = (window, window_index), (entries, entry_index)
    if not is_split and channels == _HOPPER_CHANNELS and is_hopper(query.device):
        _attend_on_hopper(query, rotary, sink, out, scale, *lists)
    else:
        _attend(query, rotary, sink, out, scale, *lists, is_split=is_split)
    return out


_Listed = tuple[Tensor, Tensor]  # a store, and which of its rows


def _attend_on_hopper(
    query: Tensor,
    rotary: Rotary,
    sink: Tensor,
    out: Tensor,
    scale: float,
    *lists: _Listed,
) -> None:
    from deepinfer.kernels.triton import attend_hopper  # Gluon, which not every Triton has

    rows, heads, channels = query.shape
    head_tiles = cdiv(heads, 64)
    attend_hopper.attend_kernel[(min(rows * head_tiles, num_processors(query.device)),)](
        *(query, *rotary, sink, out, rows),
        *(
            argument
            for store, index in lists
            for argument in (store.view(torch.int32), index, index.stride(0), index.shape[1])
        ),
        *(scale, heads),
        C=channels,
        R=rotary.cos.shape[1],
        IS_FP4=lists[1][0].shape[1] < channels,
        SPANS=tuple(_span(index) for _, index in lists),
        HEAD_TILES=head_tiles,
        num_warps=attend_hopper.WARPS,
    )


def _attend(
    query: Tensor,
    rotary: Rotary,
    sink: Tensor,
    out: Tensor,
    scale: float,
    *lists: _Listed,
    is_split: bool,
) -> None:
    rows, heads, channels = query.shape
    splits, tile = 1, _TILE
    if is_split:
        tile = _SPLIT_TILE
        splits = max(1, sum(cdiv(index.shape[1], tile) for _, index in lists))
    parts, stats = out, sink  # stand-ins: with one split nothing is written there
    if splits > 1:
        parts = query.new_empty((rows, splits, heads, channels), dtype=torch.float32)
        stats = query.new_empty((rows, splits, 2, heads), dtype=torch.float32)
    # Of fewer channels not every row starts at a whole word.
    is_packed = query.is_cuda and channels % 128 == 0
    shape = {"C": channels, "R": rotary.cos.shape[1], "NATIVE": query.is_cuda}
    shape |= chain.launch(query.device)
    # Wide rows want the products of 64 heads, even if some are empty: others need more memory.
    block_h = 64 if channels >= 256 else max(16, min(64, next_power_of_2(heads)))
    attend_kernel[(rows, cdiv(heads, block_h), splits)](
        *(query, *rotary, sink, out, parts, stats),
        *(
            argument
            for store, index in lists
            for argument in (
                store,
                store.view(torch.int32) if is_packed else store,
                index,
                index.stride(0),
                index.shape[1],
            )
        ),
        *(scale, heads, splits),
        **shape,
        IS_SPLIT=splits > 1,
        IS_FP4=lists[1][0].shape[1] < channels,
        PACKED=is_packed,
        BLOCK_H=block_h,
        BLOCK=tile,
        WINDOW_SPAN=_span(lists[0][1]),
        ENTRY_SPAN=_span(lists[1][1]),
        num_warps=8 if block_h == 64 else 4,
        num_stages=1,
    )
    if splits > 1:
        span = next_power_of_2(splits)
        combine_kernel[(rows, cdiv(heads, 2))](
            *(parts, stats, *rotary, out, heads, splits), **shape, SPAN=span, BLOCK_H=2
        )


def _span(index: Tensor) -> int:
    """A power of two that a list fits in."""
    return next_power_of_2(max(1, index.shape[1]))
