"""Some dozen rows times an FP8 weight: half the bytes that cuBLAS reads in bfloat16.

The weight is what `gemv` packs, for fewer rows; codes become bfloat16 in registers, exactly. A
program has a tile of outputs for all rows; where that leaves multiprocessors without work, programs
share the inputs of a tile between them, and a second kernel adds up their parts, in one order.
"""

from itertools import product
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.device import is_hopper
from deepinfer.kernels.triton.expert_finish import to_bfloat16
from deepinfer.kernels.triton.gemv import ROWS as FEW_ROWS
from deepinfer.kernels.triton.gemv import PackedFp8, gemv_fp8, pairs_of

ROWS = 128
FROM = 9  # rows from which on this is faster than `gemv_fp8`
_LEAST_ROWS = 32  # of a tile
# Up to how many rows this is faster than cuBLAS in bfloat16, as measured (docs/hopper.md): of a
# weight of so many outputs or more, of so many codes or more, and of others.
_MANY_OUTPUTS, _MANY_CODES = 16_384, 20_000_000
_MOST_ROWS = 128, 64, 32

_SHAPES = ((8, 2, 1), (8, 1, 2), (4, 1, 2))  # warps, units of each, 64s of inputs
_MULTIPROCESSORS = 132
_MEMORY = 200 << 10  # of a multiprocessor's, that its program takes
_MOST_STAGES, _MOST_SPLITS = 8, 16
_LEAST_INPUTS = 256  # of a share
# What a second kernel costs, in bytes that a multiprocessor could have read from the L2 cache.
_SECOND = 40_000
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

    x bf16 [T, in], or [T, G, in] group by group. A row's bits depend on the number of rows. Raises
    ValueError for more rows, or another number of groups or inputs. Hopper's; elsewhere it is
    `gemv_fp8` of 16 rows at a time.
    """
    if len(x) > ROWS:
        raise ValueError(f"{len(x)} rows: the kernel takes {ROWS}")
    if not is_hopper(x.device):
        return torch.cat([gemv_fp8(part, packed) for part in x.split(FEW_ROWS)])
    out = x.new_empty((len(x), packed.groups * packed.num_outputs))
    pairs = pairs_of(x, packed)
    if len(x):
        _multiply(pairs, packed, out, choose_tiling(packed, len(x)))
    return out


def most_rows(packed: PackedFp8) -> int:
    """Up to how many rows FP8 codes are worth reading."""
    if not is_hopper(packed.words.device):
        return FEW_ROWS
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
    """The tile and the shares with which the busiest multiprocessor has the least to read: codes,
    rows, which taller tiles share, and parts, of which fewer shares make fewer.
    """
    rows = max(_LEAST_ROWS, triton.next_power_of_2(num_rows))
    num_units, blocks = packed.words.shape[:2]
    units = num_units // packed.groups

    def cost(shape: tuple[tuple[int, int, int], int]) -> int:
        (warps, reps, subs), splits = shape
        height = 16 * warps * reps
        programs = num_units // (warps * reps) * splits
        inputs = 64 * subs * triton.cdiv(blocks // (2 * subs), splits)
        read = inputs * (height + 2 * rows)
        added = 8 * height * rows if splits > 1 else 0  # written and read
        rounds = triton.cdiv(programs, _MULTIPROCESSORS)
        return rounds * (read + added) + (_SECOND if splits > 1 else 0)

    most = min(_MOST_SPLITS, max(1, blocks * 32 // _LEAST_INPUTS))
    shapes = (one for one in _SHAPES if units % (one[0] * one[1]) == 0)
    (warps, reps, subs), splits = min(product(shapes, range(1, most + 1)), key=cost)
    stage = subs * 64 * (16 * warps * reps + 2 * rows + 2)
    return Tiling(rows, warps, reps, subs, min(_MOST_STAGES, _MEMORY // stage), splits)
