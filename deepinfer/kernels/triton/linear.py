"""Dense products: FP8 weights with a few rows, bf16 weights with any number of them; SwiGLU.

A row's result has the same bits in every batch: every sum over the inputs has an order that only
the weight's shape decides. (A library takes another order for another number of rows.)
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton import linear_kernels

_GEMV_ROWS = 16
_GEMV_OUTPUTS = 64
_GEMV_BLOCKS = 4  # scale blocks of one loop step: 128 codes of a row, one line of memory
_GEMV_WARPS, _GEMV_STAGES = 4, 3
_BLOCK = 32  # inputs and outputs that share a scale
_MULTIPROCESSORS = 132
_GEMV_PROGRAMS = 4 * _MULTIPROCESSORS
_LEAST_STEPS = 4
_SUM_ELEMENTS = 256


class Tile(NamedTuple):
    """What a program computes, and how: rows and outputs, inputs of a step, warps, stages; speed is
    the share of the device's peak that it reaches.
    """

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    speed: float


# In each of them a result adds its inputs up 16 at a time, in one order: all give the same bits.
_TILES = (
    Tile(128, 256, 64, 8, 4, 1.0),
    Tile(128, 128, 64, 4, 3, 0.9),
    Tile(64, 128, 64, 4, 4, 0.75),
    Tile(64, 64, 128, 4, 4, 0.5),
    Tile(64, 32, 128, 4, 6, 0.3),
)
_BAND = 8

_SWIGLU_COLUMNS = 1024
_SWIGLU_WARPS = 4


def dot_dtype(x: Tensor) -> tl.dtype:
    """What matrix operands made of x are cast to. Triton's interpreter on the CPU would take bf16
    numbers for integers.
    """
    return tl.float32 if x.device.type == "cpu" else tl.bfloat16


def gemv_fp8(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Few rows times an FP8 weight, float32 inside: x bf16 [T, in] -> bf16 [T, out].

    codes uint8 [out, in] (e4m3); scales uint8 [ceil(out / 32), ceil(in / 32)] (UE8M0), one for each
    block of 32 x 32. Raises ValueError for more than 16 rows.
    """
    num_rows, num_inputs = x.shape
    num_outputs = codes.shape[0]
    if num_rows > _GEMV_ROWS:
        raise ValueError(f"{num_rows} rows: the kernel takes {_GEMV_ROWS}")
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    splits, steps = _gemv_splits(num_inputs, num_outputs)
    partials = out
    if splits > 1:
        shape = splits, num_rows, num_outputs
        partials = torch.empty(shape, dtype=torch.float32, device=x.device)
    linear_kernels.gemv_fp8[(triton.cdiv(num_outputs, _GEMV_OUTPUTS), splits)](
        x.contiguous(),
        codes,
        scales,
        partials,
        num_rows,
        INPUTS=num_inputs,
        OUTPUTS=num_outputs,
        STEPS=steps,
        ROWS=_GEMV_ROWS,
        TILE=_GEMV_OUTPUTS,
        BLOCK=_BLOCK,
        BLOCKS=_GEMV_BLOCKS,
        DOT=dot_dtype(x),
        num_warps=_GEMV_WARPS,
        num_stages=_GEMV_STAGES,
    )
    if splits > 1:
        elements = num_rows * num_outputs
        linear_kernels.add_splits[(triton.cdiv(elements, _SUM_ELEMENTS),)](
            partials, out, elements, SPLITS=splits, BLOCK=_SUM_ELEMENTS, num_warps=4
        )
    return out


def _gemv_splits(num_inputs: int, num_outputs: int) -> tuple[int, int]:
    """Parts of the inputs that programs share, and loop steps of a part. By the weight alone.

    Parts of equal length if there are any of a fair number: a last one that is shorter would cost
    all of them a mask.
    """
    steps = triton.cdiv(num_inputs, _BLOCK * _GEMV_BLOCKS)
    wanted = max(1, _GEMV_PROGRAMS // triton.cdiv(num_outputs, _GEMV_OUTPUTS))
    most = max(1, steps // _LEAST_STEPS)
    for splits in range(wanted, 2 * wanted):
        if splits <= most and steps % splits == 0:
            return splits, steps // splits
    part = triton.cdiv(steps, min(wanted, most))
    return triton.cdiv(steps, part), part


def linear_invariant(x: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """x bf16 [T, in] times weight bf16 [out, in], float32 inside: [T, out] in out_dtype."""
    return _product(x[:, None], weight, out_dtype)


def grouped_invariant(x: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """x bf16 [T, G, in] times weight bf16 [G * out, in], group by group: [T, G * out]."""
    return _product(x, weight, out_dtype)


def _product(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    num_rows, num_groups, num_inputs = x.shape
    num_outputs = weight.shape[0] // num_groups
    out = torch.empty((num_rows, weight.shape[0]), dtype=out_dtype, device=x.device)
    if num_rows == 0:
        return out
    if x.stride(2) != 1:
        x = x.contiguous()
    tile = _tile(num_rows, num_outputs, num_groups)
    programs = triton.cdiv(num_rows, tile.rows) * triton.cdiv(num_outputs, tile.outputs)
    linear_kernels.product[(programs, num_groups)](
        x,
        x.stride(0),
        x.stride(1),
        weight.contiguous(),
        out,
        num_rows,
        num_outputs,
        num_groups * num_outputs,
        INPUTS=num_inputs,
        ROWS=tile.rows,
        OUTS=tile.outputs,
        INS=tile.inputs,
        BAND=_BAND,
        DOT=dot_dtype(x),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


def _tile(num_rows: int, num_outputs: int, num_groups: int) -> Tile:
    """The tile with which the busiest multiprocessor is done first."""

    def cost(tile: Tile) -> float:
        per_group = triton.cdiv(num_rows, tile.rows) * triton.cdiv(num_outputs, tile.outputs)
        rounds = triton.cdiv(per_group * num_groups, _MULTIPROCESSORS)
        return rounds * tile.rows * tile.outputs / tile.speed

    return min(_TILES, key=cost)


def swiglu(gate: Tensor, up: Tensor | None, limit: float, weight: Tensor | None = None) -> Tensor:
    """silu(gate) * up with gate clamped above and up on both sides, times `weight`; float32 inside,
    one rounding: bf16 [T, I].

    gate, up bf16 [T, I], both perhaps parts of one wider row; or gate [T, 2I], which holds both,
    and up None. weight float32 [T, 1] or None.
    """
    if up is None:
        gate, up = gate.chunk(2, -1)
    num_rows, size = gate.shape
    out = torch.empty((num_rows, size), dtype=gate.dtype, device=gate.device)
    if num_rows:
        gate, up = (t if t.stride(1) == 1 else t.contiguous() for t in (gate, up))
        block = min(_SWIGLU_COLUMNS, triton.next_power_of_2(size))
        linear_kernels.swiglu[(num_rows, triton.cdiv(size, block))](
            gate,
            gate.stride(0),
            up,
            up.stride(0),
            None if weight is None else weight.contiguous(),
            out,
            limit,
            SIZE=size,
            BLOCK=block,
            WEIGHED=weight is not None,
            num_warps=_SWIGLU_WARPS,
        )
    return out
