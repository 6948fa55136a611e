"""The product of sorted rows with their experts' weights, and what follows each in its registers.

The weights are the left factor, so that few rows waste little of the tensor core. A sum runs over
the input columns in one program and always in the same order: a row has the same bits in tiles of
any size and in any batch.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.device import is_hopper
from deepinfer.kernels.triton.expert_finish import activated, round_trip, to_bfloat16
from deepinfer.kernels.triton.expert_weights import DEPTH, REST, unpack_tile
from deepinfer.kernels.triton.sizes import cdiv

# The next block's weights go to registers that a product still reads: Triton 3.6 waits for its
# first sixteen columns only (triton-lang/triton issue 9433).
WAIT: tl.constexpr = tl.constexpr("wgmma.wait_group.sync.aligned 0; mov.b32 $0, $1;")


_TALLEST = 128  # rows of the tallest tile
_FEW_EXPERTS = 7  # of the released model's sizes, two programs on each multiprocessor
# From so many pairs an expert on, expert_hopper.py has them, where it can.
_MANY = 128


class Tiling(NamedTuple):
    """Shape of a program of the grouped product."""

    rows: int
    channels: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


def choose_tiling(pairs: int, num_experts: int) -> Tiling:
    """The tiles for this many pairs.

    A tile that is too short unpacks an expert's weights twice; one that is too tall takes registers
    from programs that would hide each other's waiting. Experts are not visited equally often, so
    that the shortest leaves room for half as many again.
    """
    if pairs <= 11 * num_experts:
        if min(pairs, num_experts) <= _FEW_EXPERTS:
            return Tiling(16, 128, 4, 8)  # two at a time are all: each has more on the way
        return Tiling(16, 128, 4, 4, 128)  # four programs at a time on a multiprocessor
    if pairs <= 32 * num_experts:
        return Tiling(32, 128, 4, 4)
    if pairs <= 64 * num_experts:
        return Tiling(64, 128, 4, 4)
    return Tiling(_TALLEST, 128, 4, 3)


def grouped_product(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    out: Tensor,
    common: tuple[Tensor, Tensor, Tensor, int, float],
    tiling: Tiling,
    *,
    is_down: bool = False,
    is_fp8: bool = False,
) -> None:
    """One of the two grouped products; `common` is order, tiles, weights, topk and limit.

    Gate and up: rows of x [T, K], results in sorted order. Down: rows in sorted order, results at
    their pair's place in `out`.
    """
    if _is_for_hopper(x, words, common, tiling):
        from deepinfer.kernels.triton import expert_hopper  # Gluon, which not every Triton has

        expert_hopper.product(x, words, scales, out, common, is_down=is_down, is_fp8=is_fp8)
        return
    channels = out.shape[1] * (1 if is_down else 2)
    blocks = cdiv(channels, tiling.channels)
    _product[(blocks * (common[1].numel() // 3),)](
        x,
        words,
        scales,
        out,
        *common,
        x.shape[1],
        out.shape[1],
        words.shape[2],
        blocks,
        NUM_BLOCKS=words.shape[1],
        IS_DOWN=is_down,
        IS_FP8=is_fp8,
        IS_EVEN=x.shape[1] % DEPTH == 0,
        ROWS=tiling.rows,
        CHANNELS=tiling.channels,
        NATIVE=not triton.knobs.runtime.interpret,
        WAITS=is_hopper(x.device),
        REST=REST,
        **chain.launch(x.device),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
        maxnreg=tiling.max_registers,
    )


def _is_for_hopper(
    x: Tensor, words: Tensor, common: tuple[Tensor, Tensor, Tensor, int, float], tiling: Tiling
) -> bool:
    is_many = common[0].numel() >= _MANY * words.shape[0] and tiling.rows == _TALLEST
    return is_many and is_hopper(x.device) and x.shape[1] % DEPTH == 0


@triton.jit
def _product(
    x, words, scales, out, order, tiles, weights,
    topk, limit, num_inputs, num_outputs, num_stored, num_parts,
    NUM_BLOCKS: tl.constexpr, IS_DOWN: tl.constexpr, IS_FP8: tl.constexpr, IS_EVEN: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, NATIVE: tl.constexpr, WAITS: tl.constexpr,
    REST: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    chain.start(CHAINED)
    tile, part = tl.program_id(0) // num_parts, tl.program_id(0) % num_parts
    if tile >= tl.load(tiles):
        return
    entry = tiles + 1 + 3 * tile
    expert = tl.load(entry).to(tl.int64)
    at = tl.load(entry + 1) + tl.arange(0, ROWS)
    inside = at < tl.load(entry + 2)
    source = at if IS_DOWN else tl.load(order + at, mask=inside, other=0) // topk
    channel, column = part * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, 128)
    x_at = x + source.to(tl.int64)[:, None] * num_inputs + column[None, :]
    first = expert * NUM_BLOCKS * num_stored
    word_at = words + first * 16 + channel[:, None] * 16 + tl.arange(0, 16)[None, :]
    scale_at = scales + first * 4 + channel[:, None] * 4 + tl.arange(0, 4)[None, :]
    total = tl.zeros([CHANNELS, ROWS], tl.float32)
    for block in range(NUM_BLOCKS):
        mask = inside[:, None]
        if not IS_EVEN:
            mask = mask & (column[None, :] < num_inputs - block * 128)
        rows = tl.load(x_at, mask=mask, other=0.0)
        weight = unpack_tile(tl.load(word_at), tl.load(scale_at), CHANNELS, NATIVE)
        if NATIVE:
            total = tl.dot(weight, tl.trans(rows), total)
            if WAITS:
                tl.inline_asm_elementwise(
                    WAIT, "=r,r", [block], dtype=tl.int32, is_pure=False, pack=1
                )
        else:
            # The interpreter would multiply the bits of bfloat16 as integers.
            total = tl.dot(weight.to(tl.float32), tl.trans(rows).to(tl.float32), total)
        x_at += 128
        word_at += num_stored * 16
        scale_at += num_stored * 4
    total *= REST
    # Read again, not kept: while the largest tile is summed there is no register left for them.
    at = tl.load(entry + 1) + tl.arange(0, ROWS)
    inside = at < tl.load(entry + 2)
    pair = tl.load(order + at, mask=inside, other=0)
    if IS_DOWN:
        target = pair
        result = to_bfloat16(total, NATIVE)
    else:
        target = at
        channel = part * (CHANNELS // 2) + tl.arange(0, CHANNELS // 2)
        both = tl.permute(tl.reshape(total, (CHANNELS // 16, 2, 8, ROWS)), (0, 2, 3, 1))
        gate, up = tl.split(to_bfloat16(both, NATIVE).to(tl.float32))
        hidden = activated(gate, up, limit, NATIVE)
        weight = tl.load(weights + pair, mask=inside, other=0.0)
        hidden = tl.reshape(hidden, (CHANNELS // 2, ROWS)) * weight[None, :]
        result = to_bfloat16(hidden, NATIVE)
        if IS_FP8:
            result = round_trip(result.to(tl.float32), CHANNELS // 64).to(tl.bfloat16)
    out_at = out + target.to(tl.int64)[None, :] * num_outputs + channel[:, None]
    tl.store(out_at, result, mask=inside[None, :] & (channel[:, None] < num_outputs))
