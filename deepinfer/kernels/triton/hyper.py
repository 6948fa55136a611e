"""Hyper-connections between two sublayers, in two kernels (spec 4).

What the sublayer before still has to write, what this one reads and the coefficients of the next
all need the same streams: the first kernel reads them once, in tiles of rows and columns, and
leaves partial sums; the second adds these in a fixed order and finishes every row.
"""

import torch
import triton
from torch import Tensor

from deepinfer.kernels.triton.hyper_finish import finish, norm_rows
from deepinfer.kernels.triton.hyper_tile import tile
from deepinfer.kernels.triton.linear import dot_dtype
from deepinfer.kernels.values import Entered, Written

_ROWS = 64  # what one wgmma takes; fewer would be another instruction, and maybe other bits
_COLUMNS = 32
_TILE_WARPS, _TILE_STAGES = 4, 3
# So many chunks of columns are added up before anything else is. One program makes one of them or
# all: the order of the additions is the same.
_FOLD = 4
_ENOUGH_PROGRAMS = 264  # two for each multiprocessor
_FINISH_WARPS = 4


def hyper_enter(
    streams: Tensor,
    pre: Tensor,
    write: Written | None,
    mix: tuple[Tensor, Tensor, Tensor],
    norm_weight: Tensor,
    *,
    norm_eps: float,
    eps: float,
    num_iters: int,
) -> Entered:
    """From one sublayer into the next: `hyper_expand`, `hyper_mix`, `hyper_collapse`, `rms_norm`.

    streams bf16 [T, M, D] of any strides; pre float32 [T, M] of the sublayer before; write: what
    that left to be written, None for nothing; mix: fn, scale and base of `HyperWeights`;
    norm_weight [D]. norm_eps serves both norms. With nothing to write, the result's streams are
    the argument. A row has the same bits in every batch. Raises ValueError unless M is 2 or 4.
    """
    num_rows, num_streams, size = streams.shape
    fn, scale, base = (part.contiguous() for part in mix)
    wide = {"dtype": torch.float32, "device": streams.device}
    entered = Entered(
        streams if write is None else _fresh(streams),
        _fresh(streams[:, 0]),
        torch.empty((num_rows, num_streams), **wide),
        torch.empty((num_rows, num_streams), **wide),
        torch.empty((num_rows, num_streams, num_streams), **wide),
    )
    if num_rows == 0:
        return entered
    fold, width = _fold(num_rows, size), _partial_width(num_streams)
    partials = torch.empty((triton.cdiv(size, fold * _COLUMNS), num_rows, width), **wide)
    collapsed = _fresh(streams[:, 0])
    _tiles(streams, write, (pre, collapsed), entered.streams, (fn, partials))
    finish[(2 * num_rows,)](
        collapsed,
        norm_weight,
        entered.u,
        partials,
        scale,
        base,
        entered.pre,
        entered.post,
        entered.comb,
        norm_eps,
        eps,
        num_rows,
        D=size,
        WIDTH=triton.next_power_of_2(size),
        M=num_streams,
        N=width,
        COUNT=partials.shape[0],
        INNER=_FOLD // fold,
        ITERS=num_iters,
        num_warps=_FINISH_WARPS,
    )
    return entered


def hyper_exit(
    streams: Tensor,
    pre: Tensor,
    write: Written | None,
    norm_weight: Tensor,
    eps: float,
) -> Tensor:
    """The end of the network: [T, D], what `hyper_enter` calls u. Arguments as there."""
    collapsed, u = _fresh(streams[:, 0]), _fresh(streams[:, 0])
    num_rows, size = u.shape
    if num_rows:
        _tiles(streams, write, (pre, collapsed), None, None)
        norm_rows[(num_rows,)](
            collapsed,
            norm_weight,
            u,
            eps,
            D=size,
            WIDTH=triton.next_power_of_2(size),
            num_warps=_FINISH_WARPS,
        )
    return u


def hyper_write(streams: Tensor, write: Written) -> Tensor:
    """`hyper_expand` alone, where streams are needed between sublayers: bf16 [T, M, D]."""
    written = _fresh(streams)
    if len(streams):
        _tiles(streams, write, None, written, None)
    return written


def _fresh(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def _fold(num_rows: int, size: int) -> int:
    """Chunks that one program adds: all of a group as soon as there are programs enough."""
    programs = triton.cdiv(num_rows, _ROWS) * triton.cdiv(size, _FOLD * _COLUMNS)
    return _FOLD if programs >= _ENOUGH_PROGRAMS else 1


def _partial_width(num_streams: int) -> int:
    """Columns of a row's partial sums: the coefficients and, behind them, the sum of squares."""
    if num_streams not in (2, 4):
        raise ValueError(f"{num_streams} streams: the kernels are made for 2 and 4")
    return triton.next_power_of_2(num_streams * (num_streams + 2) + 1)


def _tiles(
    streams: Tensor,
    write: Written | None,
    collapse: tuple[Tensor, Tensor] | None,
    written: Tensor | None,
    mix: tuple[Tensor, Tensor] | None,
) -> None:
    """Launch the first kernel. collapse: pre and where its result goes; mix: fn and where the
    partial sums go. What is None is not computed or not kept.
    """
    num_rows, num_streams, size = streams.shape
    if streams.stride(2) != 1:
        streams = streams.contiguous()
    y, post, comb = (None,) * 3 if write is None else (part.contiguous() for part in write)
    pre, collapsed = (None, None) if collapse is None else collapse
    fn, partials = (None, None) if mix is None else mix
    fold = _fold(num_rows, size)
    tile[(triton.cdiv(num_rows, _ROWS), triton.cdiv(size, fold * _COLUMNS))](
        streams,
        streams.stride(0),
        streams.stride(1),
        None if pre is None else pre.contiguous(),
        y,
        post,
        comb,
        written,
        collapsed,
        fn,
        partials,
        num_rows,
        D=size,
        M=num_streams,
        N=_partial_width(num_streams),
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        FOLD=fold,
        WRITE=write is not None,
        KEEP=write is not None and written is not None,
        COLLAPSE=collapse is not None,
        MIX=mix is not None,
        DOT=dot_dtype(streams),
        num_warps=_TILE_WARPS,
        num_stages=_TILE_STAGES,
    )
