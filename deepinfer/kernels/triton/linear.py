"""Dense products with bf16 weights; SwiGLU.

A row's result has the same bits in every batch: every sum over the inputs has an order that only
the weight's shape decides. (A library takes another order for another number of rows.)
"""

from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton import chain, linear_kernels
from deepinfer.kernels.triton.sizes import cdiv, next_power_of_2

_MULTIPROCESSORS = 132


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
    programs = cdiv(num_rows, tile.rows) * cdiv(num_outputs, tile.outputs)
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
        per_group = cdiv(num_rows, tile.rows) * cdiv(num_outputs, tile.outputs)
        rounds = cdiv(per_group * num_groups, _MULTIPROCESSORS)
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
        block = min(_SWIGLU_COLUMNS, next_power_of_2(size))
        linear_kernels.swiglu[(num_rows, cdiv(size, block))](
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
            **chain.launch(gate.device),
            num_warps=_SWIGLU_WARPS,
        )
    return out
