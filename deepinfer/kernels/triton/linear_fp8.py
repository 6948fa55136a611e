"""A few rows, or some dozen, times an FP8 weight: half the bytes that cuBLAS reads in bfloat16.

Codes become bfloat16 in registers, exactly. A program has a tile of outputs for all rows; where
that leaves multiprocessors without work, programs share the inputs of a tile between them, and a
second kernel adds up their parts, in one order. Hopper's alone.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.device import is_hopper
from deepinfer.kernels.triton.expert_finish import to_bfloat16
from deepinfer.kernels.triton.packed_fp8 import PackedFp8, pairs_of

ROWS = 128
# Up to how many rows this is faster than cuBLAS in bfloat16, as measured (docs/hopper.md): of a
# weight of so many outputs or more, of so many codes or more, and of others.
_MANY_OUTPUTS, _MANY_CODES = 16_384, 20_000_000
_MOST_ROWS = 128, 64, 32

# By rows of a tile: warps, units of each, 64s of inputs; and how many bytes of a multiprocessor's
# shared memory a program takes. As measured: of few rows two programs on each are faster than one.
_SHAPES = {
    32: ((8, 1, 2), 110 << 10),
    64: ((8, 2, 2), 200 << 10),
    128: ((8, 2, 1), 200 << 10),
}
_SHORTER = (4, 2, 2), (4, 1, 2)  # where there are not as many outputs
_MULTIPROCESSORS = 132
_MOST_STAGES, _MOST_SPLITS = 8, 16
_LEAST_INPUTS = 256  # of a share
_ADDED = 16  # outputs of a program that adds up


class Tiling(NamedTuple):
    """Shape of a program: rows, warps, units of 16 outputs a warp, 64s of inputs a step, steps in
    shared memory; programs that share a tile's inputs.
    """

    rows: int
    warps: int
    reps: int
    subs: int
    stages: int
    splits: int


def linear_fp8(x: Tensor, packed: PackedFp8) -> Tensor:
    """Up to 128 rows times an FP8 weight, float32 inside, rounded once: bf16 [T, G * out].

    x bf16 [T, in], or [T, G, in] group by group. A row has the same bits in every batch of up to
    32 rows; of more they depend on the number of rows. Raises ValueError for more rows, or another
    number of groups or inputs.
    """
    if len(x) > ROWS:
        raise ValueError(f"{len(x)} rows: the kernel takes {ROWS}")
    out = x.new_empty((len(x), packed.groups * packed.num_outputs))
    pairs = pairs_of(x, packed)
    if len(x):
        _multiply(pairs, packed, out, choose_tiling(packed, len(x)))
    return out


def most_rows(packed: PackedFp8) -> int:
    """Up to how many rows FP8 codes are worth reading."""
    if not is_hopper(packed.words.device):
        return 0
    num_outputs = packed.groups * packed.num_outputs
    if num_outputs >= _MANY_OUTPUTS:
        return _MOST_ROWS[0]
    return _MOST_ROWS[1 if num_outputs * packed.num_inputs >= _MANY_CODES else 2]


def _multiply(pairs: Tensor, packed: PackedFp8, out: Tensor, tiling: Tiling) -> None:
    from deepinfer.kernels.triton import linear_fp8_hopper  # Gluon, which not every Triton has

    num_units, blocks = packed.words.shape[:2]
    tiles = num_units // (tiling.warps * tiling.reps)
    parts = out
    if tiling.splits > 1:
        shape = tiling.splits, num_units * 16, tiling.rows
        parts = torch.empty(shape, dtype=torch.float32, device=out.device)
    linear_fp8_hopper.product[(tiles * tiling.splits,)](
        pairs,
        pairs.stride(0),
        pairs.stride(1),
        packed.words,
        packed.factors,
        parts,
        len(pairs),
        packed.num_outputs,
        tiles // packed.groups,
        INPUTS=packed.num_inputs,
        GROUPS=packed.groups,
        BLOCKS=blocks,
        ROWS=tiling.rows,
        WARPS=tiling.warps,
        REPS=tiling.reps,
        SUBS=tiling.subs,
        STAGES=tiling.stages,
        SPLITS=tiling.splits,
        **chain.launch(out.device),
        num_warps=tiling.warps,
    )
    if tiling.splits > 1:
        add_parts(parts, out, packed.groups)


def add_parts(parts: Tensor, out: Tensor, num_groups: int) -> None:
    """Sums of parts float32 [S, G * padded, R] over S, in ascending order, rounded: out bf16
    [T, G * outputs], of T rows up to R.
    """
    splits, height, rows = parts.shape
    add_kernel[(height // _ADDED,)](
        parts,
        out,
        len(out),
        out.shape[1] // num_groups,
        height // num_groups,
        GROUPS=num_groups,
        HEIGHT=height,
        ROWS=rows,
        SPLITS=splits,
        OUTPUTS=_ADDED,
        NATIVE=not triton.knobs.runtime.interpret,
        **chain.launch(out.device),
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_rows"])
def add_kernel(
    parts, out, num_rows, num_outputs, padded,
    GROUPS: tl.constexpr, HEIGHT: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    OUTPUTS: tl.constexpr, NATIVE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Some outputs of one group, of all rows."""
    chain.start(CHAINED)
    first = tl.program_id(0) * OUTPUTS
    group = first // padded
    row, output = tl.arange(0, ROWS), tl.arange(0, OUTPUTS)
    part_at = parts + (first + output)[:, None].to(tl.int64) * ROWS + row[None, :]
    total = tl.load(part_at)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(part_at + split * (HEIGHT * ROWS))
    output += first - group * padded
    out_at = out + row[None, :].to(tl.int64) * (GROUPS * num_outputs)
    out_at += (group * num_outputs + output)[:, None]
    inside = (row < num_rows)[None, :] & (output < num_outputs)[:, None]
    tl.store(out_at, to_bfloat16(total, NATIVE), mask=inside)


def choose_tiling(packed: PackedFp8, num_rows: int) -> Tiling:
    """As measured, with so many shares that all programs run at once."""
    rows = next(rows for rows in _SHAPES if num_rows <= rows)
    (shape, memory), (num_units, blocks) = _SHAPES[rows], packed.words.shape[:2]
    units = num_units // packed.groups
    warps, reps, subs = next(one for one in (shape, *_SHORTER) if units % (one[0] * one[1]) == 0)
    # A small weight is read before a second program on each would have begun.
    is_small = num_units * blocks * 512 < _MANY_CODES
    programs = _MULTIPROCESSORS * (2 if rows == min(_SHAPES) and not is_small else 1)
    shares = programs // (num_units // (warps * reps))
    splits = max(1, min(shares, _MOST_SPLITS, blocks * 32 // _LEAST_INPUTS))
    stage = subs * 64 * (16 * warps * reps + 2 * rows + 2)
    return Tiling(rows, warps, reps, subs, min(_MOST_STAGES, memory // stage), splits)
