"""What expert_hopper.py reads, rows and packed words, and what it writes: sums, once they are
rounded or have been through SwiGLU.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from deepinfer.kernels.triton.expert_finish import activated, rounded, to_bfloat16
from deepinfer.kernels.triton.expert_weights import DEPTH, REST
from deepinfer.kernels.triton.gluon_names import barrier, copy

BLOCK: gl.constexpr = gl.constexpr(DEPTH)  # columns of a stage
ROWS: gl.constexpr = gl.constexpr(128)  # of a tile
CHANNELS: gl.constexpr = gl.constexpr(256)  # of an item
SHARE: gl.constexpr = gl.constexpr(64)  # channels of a sum
WARPS: gl.constexpr = gl.constexpr(4)  # of each of three parts of a program
_REST: gl.constexpr = gl.constexpr(REST)


@gluon.jit
def item_of(tiles, item, num_parts):
    """Expert, first place in the order, the place after the last, and which part of the channels.
    Parts change fastest: programs that run at once share rows, and the weights of an expert."""
    entry = tiles + 1 + item // num_parts * 3
    return gl.load(entry), gl.load(entry + 1), gl.load(entry + 2), item % num_parts


@gluon.jit
def copy_all(
    stages, num_items, num_parts,
    x, words, scales, order, tiles, topk, num_inputs, num_stored,
    NUM_BLOCKS: gl.constexpr, IS_DOWN: gl.constexpr, STAGES: gl.constexpr, LAG: gl.constexpr,
):  # fmt: skip
    """Fills the stages with the items of this program."""
    near, far, packed, codes, full, empty = stages
    HALVES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    FOURS: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [WARPS, 1], [1, 0])
    BYTES: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [WARPS, 1], [1, 0])
    column = gl.arange(0, BLOCK // 2, layout=gl.SliceLayout(0, HALVES))[None, :]
    done = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        expert, first, end, part = item_of(tiles, item, num_parts)
        # Behind the last row there is another expert's, or nothing: the last is read again.
        at = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, HALVES))
        at = gl.minimum(at, end - 1)
        source = at if IS_DOWN else gl.load(order + at) // topk
        x_at = x + (source.to(gl.int64)[:, None] * num_inputs + column)
        channel = expert.to(gl.int64) * NUM_BLOCKS * num_stored + part * CHANNELS
        row = gl.arange(0, CHANNELS, layout=gl.SliceLayout(1, FOURS))[:, None]
        word_at = words + channel * 16
        word_place = row * 16 + gl.arange(0, 16, layout=gl.SliceLayout(0, FOURS))[None, :]
        row = gl.arange(0, CHANNELS, layout=gl.SliceLayout(1, BYTES))[:, None]
        scale_at = scales + channel * 4
        scale_place = row * 4 + gl.arange(0, 4, layout=gl.SliceLayout(0, BYTES))[None, :]
        for block in range(NUM_BLOCKS):
            step = done + block
            stage = step % STAGES
            mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
            copy(packed.index(stage), word_at + word_place)
            copy(codes.index(stage), scale_at + scale_place)
            copy(near.index(stage), x_at)
            copy(far.index(stage), x_at + BLOCK // 2)
            x_at += BLOCK
            word_at += num_stored * 16
            scale_at += num_stored * 4
            async_copy.commit_group()
            async_copy.wait_group(LAG)
            fence_async_shared()
            barrier()
            if step >= LAG:
                mbarrier.arrive(full.index((step - LAG) % STAGES), count=1)
        done += NUM_BLOCKS
    async_copy.wait_group(0)
    fence_async_shared()
    barrier()
    for step in range(LAG):
        if done > 0:
            mbarrier.arrive(full.index((done - LAG + step) % STAGES), count=1)


@gluon.constexpr_function
def pair_layout():
    """[rows] of which each thread has one of the first 64 and the one of the last 64 below it."""
    return gl.DistributedLinearLayout(
        [[64]], [[1], [2], [4], [8], [16]], [[32], [0]], [], [ROWS.value]
    )


@gluon.jit
def _halves(total):
    """The first 64 rows and the last."""
    both = gl.permute(gl.reshape(total, (SHARE, 2, ROWS // 2)), (0, 2, 1))
    return gl.split(both)


@gluon.jit
def _put(result, room, out, goal, num_rows, channel, num_outputs, IS_FP8: gl.constexpr):
    """Stores the first num_rows of bfloat16 [channels, rows] where goal says, by way of shared
    memory, so that neighbouring threads have neighbouring channels."""
    SIZE: gl.constexpr = result.shape[0]
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // SIZE, SIZE // 8], [WARPS, 1], [1, 0])
    room.permute((1, 0)).store(result)
    goal = gl.convert_layout(goal, gl.SliceLayout(1, WIDE)).to(gl.int64)
    row = gl.arange(0, result.shape[1], layout=gl.SliceLayout(1, WIDE))
    channel += gl.arange(0, SIZE, layout=gl.SliceLayout(0, WIDE))
    value = room.load(WIDE)
    if IS_FP8:
        wide = value.to(gl.float32)
        largest = gl.max(gl.abs(wide), 1)
        value = rounded(wide, largest[:, None]).to(gl.bfloat16)
    place = goal[:, None] * num_outputs + channel[None, :]
    gl.store(out + place, value, mask=(row < num_rows)[:, None] & (channel < num_outputs)[None, :])


@gluon.jit
def finish(
    total, goal, factor, room, out, num_rows, channel, num_outputs, limit,
    IS_DOWN: gl.constexpr, IS_FP8: gl.constexpr,
):  # fmt: skip
    """Stores what becomes of the sums [64 channels, rows]; of each row where, and its weight."""
    total *= _REST
    # Two at a time: the instruction for one is slow.
    total = gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [total], gl.bfloat16, is_pure=True, pack=2
    )
    if IS_DOWN:
        left, right = _halves(total)
        first, second = gl.split(gl.permute(gl.reshape(goal, (2, ROWS // 2)), (1, 0)))
        _put(left, room, out, first, num_rows, channel, num_outputs, False)
        _put(right, room, out, second, num_rows - ROWS // 2, channel, num_outputs, False)
    else:
        both = gl.permute(gl.reshape(total, (SHARE // 16, 2, 8, ROWS)), (0, 2, 3, 1))
        gate, up = gl.split(both.to(gl.float32))
        hidden = gl.reshape(activated(gate, up, limit, True), (SHARE // 2, ROWS))
        factor = gl.convert_layout(factor, gl.SliceLayout(0, hidden.type.layout))
        result = to_bfloat16(hidden * factor[None, :], True)
        _put(result, room, out, goal, num_rows, channel // 2, num_outputs, IS_FP8)
