"""The experts' product for many rows on SM90, in Gluon: as expert_product.py has it, in warps that
do not wait for each other.

A program takes one item after another: 256 channels of an expert for a tile of rows. Four warps
copy rows and packed words to shared memory, as far ahead as it has stages. Two times four others
have 128 of the channels each: they unpack 64 to registers, the left factor, while the tensor cores
multiply the 64 before. Nobody but the copying warps waits for memory, and while four warps finish
an item the other four, a block behind, multiply. The left factor does not pass through shared
memory once more: that would be too slow for it.

Sums run over the columns in the order of expert_product.py: the bits are the same.
"""

from typing import NamedTuple

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.device import num_processors
from deepinfer.kernels.triton.expert_finish import activated, rounded, to_bfloat16
from deepinfer.kernels.triton.expert_weights import DEPTH, REST, spread

_DEPTH: gl.constexpr = gl.constexpr(DEPTH)
_REST: gl.constexpr = gl.constexpr(REST)
_ROWS: gl.constexpr = gl.constexpr(128)  # of a tile
_CHANNELS: gl.constexpr = gl.constexpr(256)  # of an item
_SHARE: gl.constexpr = gl.constexpr(64)  # channels of a wgmma
_WARPS: gl.constexpr = gl.constexpr(4)  # of each of three parts of a program
# Later versions of Triton have them by other names.
_barrier = getattr(gl, "thread_barrier", None) or gl.barrier
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


class Schedule(NamedTuple):
    """How the parts of a program keep apart. lag + lead is less than stages."""

    stages: int = 4  # blocks of 128 columns in shared memory
    lag: int = 1  # blocks that are asked for before one is waited for
    lead: int = 1  # blocks that the first 128 channels are ahead of the others
    unroll: int = 2  # blocks of a turn of the loop, if they are a multiple of it
    registers: int = 216  # of threads that multiply
    copier_registers: int = 72


def product(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    out: Tensor,
    common: tuple[Tensor, Tensor, Tensor, int, float],
    *,
    is_down: bool = False,
    is_fp8: bool = False,
    schedule: Schedule = Schedule(),
) -> None:
    """As `grouped_product`, for tiles of 128 rows and a multiple of 128 input columns, on SM90."""
    num_blocks = words.shape[1]
    channels = out.shape[1] * (1 if is_down else 2)
    product_kernel[(num_processors(x.device),)](
        *(x, words, scales, out, *common),
        *(x.shape[1], out.shape[1], words.shape[2], triton.cdiv(channels, _CHANNELS.value)),
        NUM_BLOCKS=num_blocks,
        IS_DOWN=is_down,
        IS_FP8=is_fp8,
        STAGES=schedule.stages,
        LAG=schedule.lag,
        LEAD=schedule.lead,
        UNROLL=schedule.unroll if num_blocks % schedule.unroll == 0 else 1,
        REGISTERS=(schedule.registers, schedule.copier_registers),
        **chain.launch(x.device),
        num_warps=_WARPS.value,
    )


@gluon.constexpr_function
def _word_layout(width):
    """[channels, width] as the left factor wants it: thread 4 i + j has channels i and i + 8 of its
    warp's 16, of the words the j-th four, of the scales all."""
    lanes = [[0, 4], [0, 8]] if width == 16 else [[0, 0], [0, 0]]
    return gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0]],
        [*lanes, [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]],
        [],
        [64, width],
    )


@gluon.constexpr_function
def _sum_layout():
    return gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, _ROWS, 16])


@gluon.constexpr_function
def _operand_layout():
    return gl.DotOperandLayout(0, _sum_layout(), 2)


@gluon.jit
def _item(tiles, item, num_parts):
    """Expert, first place in the order, the place after the last, and which part of the channels.
    Parts change fastest: programs that run at once share rows, and the weights of an expert."""
    entry = tiles + 1 + item // num_parts * 3
    return gl.load(entry), gl.load(entry + 1), gl.load(entry + 2), item % num_parts


@gluon.jit
def _copy_all(
    near, far, packed, codes, full, empty, num_items, num_parts,
    x, words, scales, order, tiles, topk, num_inputs, num_stored,
    NUM_BLOCKS: gl.constexpr, IS_DOWN: gl.constexpr, STAGES: gl.constexpr, LAG: gl.constexpr,
):  # fmt: skip
    """Fills the stages with the items of this program."""
    HALVES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [_WARPS, 1], [1, 0])
    FOURS: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [_WARPS, 1], [1, 0])
    BYTES: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [_WARPS, 1], [1, 0])
    column = gl.arange(0, _DEPTH // 2, layout=gl.SliceLayout(0, HALVES))[None, :]
    done = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        expert, first, end, part = _item(tiles, item, num_parts)
        # Behind the last row there is another expert's, or nothing: the last is read again.
        at = first + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, HALVES))
        at = gl.minimum(at, end - 1)
        source = at if IS_DOWN else gl.load(order + at) // topk
        x_at = x + (source.to(gl.int64)[:, None] * num_inputs + column)
        channel = expert.to(gl.int64) * NUM_BLOCKS * num_stored + part * _CHANNELS
        row = gl.arange(0, _CHANNELS, layout=gl.SliceLayout(1, FOURS))[:, None]
        word_at = words + channel * 16
        word_place = row * 16 + gl.arange(0, 16, layout=gl.SliceLayout(0, FOURS))[None, :]
        row = gl.arange(0, _CHANNELS, layout=gl.SliceLayout(1, BYTES))[:, None]
        scale_at = scales + channel * 4
        scale_place = row * 4 + gl.arange(0, 4, layout=gl.SliceLayout(0, BYTES))[None, :]
        for block in range(NUM_BLOCKS):
            step = done + block
            stage = step % STAGES
            mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
            _copy(packed.index(stage), word_at + word_place)
            _copy(codes.index(stage), scale_at + scale_place)
            _copy(near.index(stage), x_at)
            _copy(far.index(stage), x_at + _DEPTH // 2)
            async_copy.commit_group()
            x_at += _DEPTH
            word_at += num_stored * 16
            scale_at += num_stored * 4
            async_copy.wait_group(LAG)
            fence_async_shared()
            _barrier()
            if step >= LAG:
                mbarrier.arrive(full.index((step - LAG) % STAGES), count=1)
        done += NUM_BLOCKS
    async_copy.wait_group(0)
    fence_async_shared()
    _barrier()
    for step in range(LAG):
        if done > 0:
            mbarrier.arrive(full.index((done - LAG + step) % STAGES), count=1)


@gluon.jit
def _unpacked(words, codes):
    """Words [64, 8] and scale codes [64, 2] of 64 columns: pairs of bfloat16 without REST."""
    pairs = spread(words)  # [64, 4, b1, b0, b2]
    factor = gl.reshape(codes.to(gl.uint32) * 0x00800080, (_SHARE, 1, 1, 1, 2))
    factor = gl.convert_layout(factor, pairs.type.layout, assert_trivial=True)
    factor, pairs = gl.broadcast(factor, pairs)
    pairs = gl.inline_asm_elementwise(
        "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [pairs, factor], gl.uint32, is_pure=True, pack=1
    )
    low = pairs.to(gl.uint16).to(gl.bfloat16, bitcast=True)
    high = (pairs >> 16).to(gl.uint16).to(gl.bfloat16, bitcast=True)
    tile = gl.permute(gl.join(low, high), (0, 4, 2, 3, 1, 5))
    tile = gl.reshape(tile, (_SHARE, _DEPTH // 2))
    return gl.convert_layout(tile, _operand_layout(), assert_trivial=True)


@gluon.jit
def _load(packed, codes):
    """Words of 64 channels, and their scale codes, by halves of the columns."""
    words = gl.permute(gl.reshape(packed.load(_word_layout(16)), (_SHARE, 4, 2, 2)), (0, 1, 3, 2))
    first, second = gl.split(words)
    codes = gl.permute(gl.reshape(codes.load(_word_layout(4)), (_SHARE, 2, 2)), (0, 2, 1))
    first_codes, second_codes = gl.split(codes)
    first, second = gl.reshape(first, (_SHARE, 8)), gl.reshape(second, (_SHARE, 8))
    return first, first_codes, second, second_codes


@gluon.jit
def _halves(total):
    """The first 64 rows and the last."""
    both = gl.permute(gl.reshape(total, (_SHARE, 2, _ROWS // 2)), (0, 2, 1))
    return gl.split(both)


@gluon.jit
def _put(
    result, room, out, order, first, end, channel, num_outputs,
    IS_DOWN: gl.constexpr, IS_FP8: gl.constexpr,
):  # fmt: skip
    """Stores bfloat16 [channels, rows] at the rows from `first`, by way of shared memory, so that
    neighbouring threads have neighbouring channels."""
    SIZE: gl.constexpr = result.shape[0]
    WIDE: gl.constexpr = gl.BlockedLayout(
        [1, 8], [256 // SIZE, SIZE // 8], [_WARPS, 1], [1, 0]
    )
    room.permute((1, 0)).store(result)
    at = first + gl.arange(0, result.shape[1], layout=gl.SliceLayout(1, WIDE))
    target = at
    if IS_DOWN:
        target = gl.load(order + at, mask=at < end, other=0)
    channel += gl.arange(0, SIZE, layout=gl.SliceLayout(0, WIDE))
    value = room.load(WIDE)
    if IS_FP8:
        wide = value.to(gl.float32)
        largest = gl.max(gl.abs(wide), 1)
        value = rounded(wide, largest[:, None]).to(gl.bfloat16)
    place = target.to(gl.int64)[:, None] * num_outputs + channel[None, :]
    gl.store(out + place, value, mask=(at < end)[:, None] & (channel < num_outputs)[None, :])


@gluon.jit
def _finish(
    total, factor, room, out, order, first, end, channel, num_outputs, limit,
    IS_DOWN: gl.constexpr, IS_FP8: gl.constexpr,
):  # fmt: skip
    """What becomes of the sums [64 channels, rows]."""
    total *= _REST
    # Two at a time: the instruction for one is slow.
    total = gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [total], gl.bfloat16, is_pure=True, pack=2
    )
    if IS_DOWN:
        left, right = _halves(total)
        place = channel, num_outputs, True, False
        _put(left, room, out, order, first, end, *place)
        _put(right, room, out, order, first + _ROWS // 2, end, *place)
    else:
        both = gl.permute(gl.reshape(total, (_SHARE // 16, 2, 8, _ROWS)), (0, 2, 3, 1))
        gate, up = gl.split(both.to(gl.float32))
        hidden = gl.reshape(activated(gate, up, limit, True), (_SHARE // 2, _ROWS))
        factor = gl.convert_layout(factor, gl.SliceLayout(0, hidden.type.layout))
        result = to_bfloat16(hidden * factor[None, :], True)
        _put(result, room, out, order, first, end, channel // 2, num_outputs, False, IS_FP8)


@gluon.jit
def _add(total, before, near, far, words, codes):
    """Adds the products of 64 channels and 128 columns to total. What was under way before, and
    sums to `before`, has ended then; the last 64 columns are under way."""
    early, early_codes, late, late_codes = _load(words, codes)
    total = warpgroup_mma(_unpacked(early, early_codes), near, total, is_async=True)
    before = warpgroup_mma_wait(1, [before])
    total = warpgroup_mma(_unpacked(late, late_codes), far, total, is_async=True)
    return warpgroup_mma_wait(1, [total]), before


@gluon.jit
def _sums(
    near, far, packed, codes, full, empty, done, last,
    SHARE: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr, LEAD: gl.constexpr,
    UNROLL: gl.constexpr,
):  # fmt: skip
    """Of one item: float32 [64, rows], twice. done: steps of the items before; last: the last
    step of all."""
    upper = gl.zeros((_SHARE, _ROWS), gl.float32, _sum_layout())
    lower = gl.zeros((_SHARE, _ROWS), gl.float32, _sum_layout())
    FIRST: gl.constexpr = SHARE * 2 * _SHARE
    for turn in range(NUM_BLOCKS // UNROLL):
        for i in gl.static_range(UNROLL):
            step = done + turn * UNROLL + i
            ahead = gl.minimum(step + SHARE * LEAD, last)
            mbarrier.wait(full.index(ahead % STAGES), (ahead // STAGES) & 1)
            stage = step % STAGES
            left, right = near.index(stage).permute((1, 0)), far.index(stage).permute((1, 0))
            word, code = packed.index(stage), codes.index(stage)
            words, scales = word.slice(FIRST, _SHARE), code.slice(FIRST, _SHARE)
            upper, lower = _add(upper, lower, left, right, words, scales)
            if i > 0:
                mbarrier.arrive(empty.index((step - 1) % STAGES), count=1)
            words, scales = word.slice(FIRST + _SHARE, _SHARE), code.slice(FIRST + _SHARE, _SHARE)
            lower, upper = _add(lower, upper, left, right, words, scales)
        # The compiler lets no product be under way where a loop turns. The other warps go on.
        upper, lower = warpgroup_mma_wait(0, [upper, lower])
        mbarrier.arrive(empty.index((done + turn * UNROLL + UNROLL - 1) % STAGES), count=1)
    return upper, lower


@gluon.jit
def _multiply_all(
    near, far, packed, codes, full, empty, room, num_items, num_parts,
    out, order, tiles, weights, limit, num_outputs,
    SHARE: gl.constexpr, NUM_BLOCKS: gl.constexpr, IS_DOWN: gl.constexpr, IS_FP8: gl.constexpr,
    STAGES: gl.constexpr, LEAD: gl.constexpr, UNROLL: gl.constexpr,
):  # fmt: skip
    """What becomes of every item of this program, for the SHARE-th 128 channels of each."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [_WARPS], [0])
    start, stride = gl.program_id(0), gl.num_programs(0)
    last = (num_items - start + stride - 1) // stride * NUM_BLOCKS - 1
    done = 0
    for item in range(start, num_items, stride):
        _, first, end, part = _item(tiles, item, num_parts)
        factor = gl.zeros((_ROWS,), gl.float32, LINE)
        if not IS_DOWN:
            at = first + gl.arange(0, _ROWS, layout=LINE)
            pair = gl.load(order + at, mask=at < end, other=0)
            factor = gl.load(weights + pair)
        upper, lower = _sums(
            near, far, packed, codes, full, empty, done, last,
            SHARE, NUM_BLOCKS, STAGES, LEAD, UNROLL,
        )  # fmt: skip
        done += NUM_BLOCKS
        channel = part * _CHANNELS + SHARE * 2 * _SHARE
        common = room, out, order, first, end
        _finish(upper, factor, *common, channel, num_outputs, limit, IS_DOWN, IS_FP8)
        _finish(lower, factor, *common, channel + _SHARE, num_outputs, limit, IS_DOWN, IS_FP8)


@gluon.jit
def product_kernel(
    x, words, scales, out, order, tiles, weights,
    topk, limit, num_inputs, num_outputs, num_stored, num_parts,
    NUM_BLOCKS: gl.constexpr, IS_DOWN: gl.constexpr, IS_FP8: gl.constexpr,
    STAGES: gl.constexpr, LAG: gl.constexpr, LEAD: gl.constexpr, UNROLL: gl.constexpr,
    REGISTERS: gl.constexpr, CHAINED: gl.constexpr,
):  # fmt: skip
    """Any number of programs. Arguments as of expert_product.py; num_inputs is a multiple of 128."""
    chain.start(CHAINED)
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    WIDTH: gl.constexpr = _SHARE if IS_DOWN else _SHARE // 2
    ROOM: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=2 * WIDTH, element_bitwidth=16)
    # Columns by halves, each an allocation of its own, since the compiler puts a barrier between
    # two writes to the same.
    near = gl.allocate_shared_memory(gl.bfloat16, [STAGES, _ROWS, _DEPTH // 2], SWIZZLED)
    far = gl.allocate_shared_memory(gl.bfloat16, [STAGES, _ROWS, _DEPTH // 2], SWIZZLED)
    packed = gl.allocate_shared_memory(gl.int32, [STAGES, _CHANNELS, 16], PLAIN)
    codes = gl.allocate_shared_memory(gl.uint8, [STAGES, _CHANNELS, 4], PLAIN)
    one = gl.allocate_shared_memory(gl.bfloat16, [4096 // WIDTH, WIDTH], ROOM)
    other = gl.allocate_shared_memory(gl.bfloat16, [4096 // WIDTH, WIDTH], ROOM)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    num_items = gl.load(tiles) * num_parts
    gl.warp_specialize(
        [
            (_multiply_all, (
                near, far, packed, codes, full, empty, one, num_items, num_parts,
                out, order, tiles, weights, limit, num_outputs,
                0, NUM_BLOCKS, IS_DOWN, IS_FP8, STAGES, LEAD, UNROLL,
            )),
            (_multiply_all, (
                near, far, packed, codes, full, empty, other, num_items, num_parts,
                out, order, tiles, weights, limit, num_outputs,
                1, NUM_BLOCKS, IS_DOWN, IS_FP8, STAGES, LEAD, UNROLL,
            )),
            (_copy_all, (
                near, far, packed, codes, full, empty, num_items, num_parts,
                x, words, scales, order, tiles, topk, num_inputs, num_stored,
                NUM_BLOCKS, IS_DOWN, STAGES, LAG,
            )),
        ],
        [_WARPS, _WARPS],
        [REGISTERS[0], REGISTERS[1]],
    )  # fmt: skip
