"""Hyper-connections between two sublayers, in two kernels (spec 4).

What the sublayer before still has to write, what this one reads and the coefficients of the next
all need the same streams: the first kernel reads them once, in tiles of rows and columns, and
leaves partial sums; the second adds these in a fixed order and finishes every row. The first is
there twice: for Hopper, and in plain Triton for other widths and for the interpreter.
"""

from typing import Any

import torch
from torch import Tensor

from deepinfer.kernels.triton import chain, hyper_finish, hyper_pieces
from deepinfer.kernels.triton.device import is_hopper
from deepinfer.kernels.triton.hyper_finish import finish, norm_rows
from deepinfer.kernels.triton.hyper_tile import tile
from deepinfer.kernels.triton.linear import dot_dtype
from deepinfer.kernels.triton.sizes import cdiv, next_power_of_2
from deepinfer.kernels.values import Entered, HyperWeights, Written

# Rows of a tile: what one wgmma takes; fewer would be another instruction, and maybe other bits.
_ROWS = 64
_COLUMNS = hyper_pieces.COLUMNS
# So many chunks of columns are added up before anything else is. One program makes one of them or
# all: the order of the additions is the same.
_FOLD = 4
_ENOUGH_PROGRAMS = 264  # two for each multiprocessor
_PLAIN = {"ROWS": _ROWS, "COLUMNS": _COLUMNS, "num_warps": 4, "num_stages": 3}
# The most warps of a program; so many registers let three of these fit.
_HOPPER_WARPS, _HOPPER_REGISTERS = 4, 168
_FINISH_WARPS = 4
_NORM_SPAN = 1024


def prepared(fn: Tensor, num_streams: int) -> Tensor:
    """fn of `HyperWeights` as `hyper_enter` is fastest with it: cut into pieces, if that can be.

    fn float32 [M * (M + 2), M * D]. What is on the CPU stays as it is: for the interpreter.
    """
    size = fn.shape[1] // num_streams
    if fn.device.type == "cpu" or not _can_cut(num_streams, size):
        return fn
    return hyper_pieces.cut(fn.detach(), num_streams)


def hyper_enter(
    streams: Tensor, pre: Tensor, write: Written | None, mix: HyperWeights, norm_weight: Tensor
) -> Entered:
    """From one sublayer into the next: `hyper_expand`, `hyper_mix`, `hyper_collapse`, `rms_norm`.

    streams bf16 [T, M, D] of any strides; pre float32 [T, M] of the sublayer before; write: what
    that left to be written, None for nothing; mix: its fn may be `prepared`, and is cut in every
    call otherwise; norm_weight [D]. mix.norm_eps serves both norms. With nothing to write, the
    result's streams are the argument. A row has the same bits in every batch. Raises ValueError
    unless M is 2 or 4.
    """
    num_rows, num_streams, size = streams.shape
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
    partials = torch.empty((cdiv(size, fold * _COLUMNS), num_rows, width), **wide)
    collapsed = _fresh(streams[:, 0])
    _tiles(streams, write, (pre, collapsed), entered.streams, (mix.fn, partials))
    rows = hyper_finish.ROWS
    finish[((rows + 1) * cdiv(num_rows, rows),)](
        *(collapsed, norm_weight, entered.u),
        *(partials, mix.scale.contiguous(), mix.base.contiguous()),
        *(entered.pre, entered.post, entered.comb),
        *(mix.norm_eps, mix.eps, num_rows),
        **_finish_options(entered.u),
        M=num_streams,
        N=width,
        COUNT=partials.shape[0],
        INNER=_FOLD // fold,
        ITERS=mix.num_iters,
        R=rows,
        NATIVE=streams.is_cuda,
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
    num_rows = len(u)
    if num_rows:
        _tiles(streams, write, (pre, collapsed), None, None)
        norm_rows[(num_rows,)](collapsed, norm_weight, u, eps, **_finish_options(u))
    return u


def hyper_write(streams: Tensor, write: Written) -> Tensor:
    """`hyper_expand` alone, where streams are needed between sublayers: bf16 [T, M, D]."""
    written = _fresh(streams)
    if len(streams):
        _tiles(streams, write, None, written, None)
    return written


def _fresh(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def _finish_options(u: Tensor) -> dict[str, int]:
    """What both second kernels take."""
    size = u.shape[1]
    span = min(_NORM_SPAN, next_power_of_2(size))
    return {"D": size, "SPAN": span, "num_warps": _FINISH_WARPS, **chain.launch(u.device)}


def _fold(num_rows: int, size: int) -> int:
    """Chunks that one program adds: all of a group as soon as there are programs enough."""
    programs = cdiv(num_rows, _ROWS) * cdiv(size, _FOLD * _COLUMNS)
    return _FOLD if programs >= _ENOUGH_PROGRAMS else 1


def _partial_width(num_streams: int) -> int:
    """Columns of a row's partial sums: the coefficients and, behind them, the sum of squares."""
    if num_streams not in (2, 4):
        raise ValueError(f"{num_streams} streams: the kernels are made for 2 and 4")
    return next_power_of_2(num_streams * (num_streams + 2) + 1)


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
    pre, collapsed = (None, None) if collapse is None else collapse
    y, post, comb = (None,) * 3 if write is None else (part.contiguous() for part in write)
    fn, partials = (None, None) if mix is None else mix
    is_fast = is_hopper(streams.device) and streams.dtype == torch.bfloat16
    if is_fast and _can_cut(num_streams, size):
        streams, y = _aligned(streams), None if y is None else _aligned(y)
        fn = prepared(fn, num_streams) if fn is not None and fn.dtype == torch.float32 else fn
        kernel, rows, options = _for_hopper(num_rows)
    else:
        if fn is not None and fn.dtype != torch.float32:
            raise ValueError("pieces of a weight are for bfloat16 on Hopper alone")
        streams = streams if streams.stride(2) == 1 else streams.contiguous()
        fn = None if fn is None else fn.contiguous()
        kernel, rows, options = tile, _ROWS, {**_PLAIN, "DOT": dot_dtype(streams)}
    fold = _fold(num_rows, size)
    # Programs of the same rows follow each other: together they read whole lines of the streams.
    kernel[(cdiv(size, fold * _COLUMNS), cdiv(num_rows, rows))](
        *(streams, streams.stride(0), streams.stride(1)),
        None if pre is None else pre.contiguous(),
        *(y, post, comb, written, collapsed, fn, partials, num_rows),
        D=size,
        M=num_streams,
        N=_partial_width(num_streams),
        FOLD=fold,
        WRITE=write is not None,
        KEEP=write is not None and written is not None,
        COLLAPSE=collapse is not None,
        MIX=mix is not None,
        **options,
    )


def _for_hopper(num_rows: int) -> tuple[Any, int, dict[str, int]]:
    """The kernel, how many rows a program takes, and how it is launched."""
    from deepinfer.kernels.triton import hyper_hopper  # Gluon, which not every Triton has

    warps = next_power_of_2(cdiv(num_rows, hyper_hopper.WARP_ROWS))
    warps = min(warps, _HOPPER_WARPS)
    options = {"num_warps": warps, "maxnreg": _HOPPER_REGISTERS}
    return hyper_hopper.tile_hopper, warps * hyper_hopper.WARP_ROWS, options


def _can_cut(num_streams: int, size: int) -> bool:
    """Whether the kernel for Hopper takes it: in whole groups of chunks."""
    return num_streams in (2, 4) and size % (_FOLD * _COLUMNS) == 0


def _aligned(x: Tensor) -> Tensor:
    """x, or a copy of it, to be read 16 bytes at a time: in multiples of 16 numbers, as Triton
    looks at it."""
    is_aligned = x.stride(-1) == 1 and x.data_ptr() % 16 == 0
    if is_aligned and not any(step % 16 for step in x.stride()[:-1]):
        return x
    return x.clone(memory_format=torch.contiguous_format)
