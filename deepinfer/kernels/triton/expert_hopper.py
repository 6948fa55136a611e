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

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.device import num_processors
from deepinfer.kernels.triton.expert_hopper_memory import (
    BLOCK,
    CHANNELS,
    ROWS,
    SHARE,
    WARPS,
    copy_all,
    finish,
    item_of,
    pair_layout,
)
from deepinfer.kernels.triton.expert_weights import spread
from deepinfer.kernels.triton.sizes import cdiv

# How the parts of a program keep apart; a stage is a block of 128 columns. Lag + lead is at most
# stages - 2, or all would wait for each other.
_STAGES = 4
_LAG = 1  # stages that are asked for before one is waited for
_LEAD = 1  # stages by which the first 128 channels are ahead of the others
_UNROLL = 2  # stages of a turn of the loop, if they are a multiple of it
_REGISTERS = 216, 72  # of threads that multiply, and that copy


def product(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    out: Tensor,
    common: tuple[Tensor, Tensor, Tensor, int, float],
    *,
    is_down: bool = False,
    is_fp8: bool = False,
) -> None:
    """As `grouped_product`, for tiles of 128 rows and a multiple of 128 input columns, on SM90."""
    num_blocks = words.shape[1]
    channels = out.shape[1] * (1 if is_down else 2)
    experts_product[(num_processors(x.device),)](
        *(x, words, scales, out, *common),
        *(x.shape[1], out.shape[1], words.shape[2], cdiv(channels, CHANNELS.value)),
        NUM_BLOCKS=num_blocks,
        IS_DOWN=is_down,
        IS_FP8=is_fp8,
        STAGES=_STAGES,
        LAG=_LAG,
        LEAD=_LEAD,
        UNROLL=_UNROLL if num_blocks % _UNROLL == 0 else 1,
        REGISTERS=_REGISTERS,
        **chain.launch(x.device),
        num_warps=WARPS.value,
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
    return gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, ROWS, 16])


@gluon.constexpr_function
def _operand_layout():
    return gl.DotOperandLayout(0, _sum_layout(), 2)


@gluon.jit
def _unpacked(words, codes):
    """Words [64, 8] and scale codes [64, 2] of 64 columns: pairs of bfloat16 without REST."""
    pairs = spread(words)  # [64, 4, b1, b0, b2]
    factor = gl.reshape(codes.to(gl.uint32) * 0x00800080, (SHARE, 1, 1, 1, 2))
    factor = gl.convert_layout(factor, pairs.type.layout, assert_trivial=True)
    factor, pairs = gl.broadcast(factor, pairs)
    pairs = gl.inline_asm_elementwise(
        "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [pairs, factor], gl.uint32, is_pure=True, pack=1
    )
    low = pairs.to(gl.uint16).to(gl.bfloat16, bitcast=True)
    high = (pairs >> 16).to(gl.uint16).to(gl.bfloat16, bitcast=True)
    tile = gl.permute(gl.join(low, high), (0, 4, 2, 3, 1, 5))
    tile = gl.reshape(tile, (SHARE, BLOCK // 2))
    return gl.convert_layout(tile, _operand_layout(), assert_trivial=True)


@gluon.jit
def _load(packed, codes):
    """Words of 64 channels, and their scale codes, by halves of the columns."""
    words = gl.permute(gl.reshape(packed.load(_word_layout(16)), (SHARE, 4, 2, 2)), (0, 1, 3, 2))
    first, second = gl.split(words)
    codes = gl.permute(gl.reshape(codes.load(_word_layout(4)), (SHARE, 2, 2)), (0, 2, 1))
    first_codes, second_codes = gl.split(codes)
    first, second = gl.reshape(first, (SHARE, 8)), gl.reshape(second, (SHARE, 8))
    return first, first_codes, second, second_codes


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
    stages, done, last,
    SECOND: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr, LEAD: gl.constexpr,
    UNROLL: gl.constexpr,
):  # fmt: skip
    """Of one item: float32 [64, rows], twice. done: steps of the items before; last: the last
    step of all."""
    near, far, packed, codes, full, empty = stages
    upper = gl.zeros((SHARE, ROWS), gl.float32, _sum_layout())
    lower = gl.zeros((SHARE, ROWS), gl.float32, _sum_layout())
    FIRST: gl.constexpr = SECOND * 2 * SHARE
    for turn in range(NUM_BLOCKS // UNROLL):
        for i in gl.static_range(UNROLL):
            step = done + turn * UNROLL + i
            ahead = gl.minimum(step + SECOND * LEAD, last)
            mbarrier.wait(full.index(ahead % STAGES), (ahead // STAGES) & 1)
            stage = step % STAGES
            left, right = near.index(stage).permute((1, 0)), far.index(stage).permute((1, 0))
            word, code = packed.index(stage), codes.index(stage)
            words, scales = word.slice(FIRST, SHARE), code.slice(FIRST, SHARE)
            upper, lower = _add(upper, lower, left, right, words, scales)
            if i > 0:
                mbarrier.arrive(empty.index((step - 1) % STAGES), count=1)
            words, scales = word.slice(FIRST + SHARE, SHARE), code.slice(FIRST + SHARE, SHARE)
            lower, upper = _add(lower, upper, left, right, words, scales)
        # The compiler lets no product be under way where a loop turns. The other warps go on.
        upper, lower = warpgroup_mma_wait(0, [upper, lower])
        mbarrier.arrive(empty.index((done + turn * UNROLL + UNROLL - 1) % STAGES), count=1)
    return upper, lower


@gluon.jit
def _multiply_all(
    stages, room, num_items, num_parts,
    out, order, tiles, weights, limit, num_outputs,
    SECOND: gl.constexpr, NUM_BLOCKS: gl.constexpr, IS_DOWN: gl.constexpr, IS_FP8: gl.constexpr,
    STAGES: gl.constexpr, LEAD: gl.constexpr, UNROLL: gl.constexpr,
):  # fmt: skip
    """What becomes of every item of this program, for the SECOND-th 128 channels of each."""
    start, stride = gl.program_id(0), gl.num_programs(0)
    last = (num_items - start + stride - 1) // stride * NUM_BLOCKS - 1
    done = 0
    for item in range(start, num_items, stride):
        _, first, end, part = item_of(tiles, item, num_parts)
        # Asked for now, so that nobody waits for it at the end.
        goal = first + gl.arange(0, ROWS, layout=pair_layout())
        pair = gl.load(order + goal, mask=goal < end, other=0)
        factor = pair
        if IS_DOWN:
            goal = pair
        else:
            factor = gl.load(weights + pair)
        upper, lower = _sums(
            stages, done, last,
            SECOND, NUM_BLOCKS, STAGES, LEAD, UNROLL,
        )  # fmt: skip
        done += NUM_BLOCKS
        channel = part * CHANNELS + SECOND * 2 * SHARE
        common = goal, factor, room, out, end - first
        finish(upper, *common, channel, num_outputs, limit, IS_DOWN, IS_FP8)
        finish(lower, *common, channel + SHARE, num_outputs, limit, IS_DOWN, IS_FP8)


@gluon.jit
def experts_product(
    x, words, scales, out, order, tiles, weights,
    topk, limit, num_inputs, num_outputs, num_stored, num_parts,
    NUM_BLOCKS: gl.constexpr, IS_DOWN: gl.constexpr, IS_FP8: gl.constexpr,
    STAGES: gl.constexpr, LAG: gl.constexpr, LEAD: gl.constexpr, UNROLL: gl.constexpr,
    REGISTERS: gl.constexpr, CHAINED: gl.constexpr,
):  # fmt: skip
    """Any number of programs. Arguments as of expert_product.py; num_inputs: whole blocks."""
    chain.start(CHAINED)
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    WIDTH: gl.constexpr = SHARE if IS_DOWN else SHARE // 2
    ROOM: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=2 * WIDTH, element_bitwidth=16)
    # Columns by halves, each an allocation of its own, since the compiler puts a barrier between
    # two writes to the same.
    near = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, BLOCK // 2], SWIZZLED)
    far = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, BLOCK // 2], SWIZZLED)
    packed = gl.allocate_shared_memory(gl.int32, [STAGES, CHANNELS, 16], PLAIN)
    codes = gl.allocate_shared_memory(gl.uint8, [STAGES, CHANNELS, 4], PLAIN)
    one = gl.allocate_shared_memory(gl.bfloat16, [4096 // WIDTH, WIDTH], ROOM)
    other = gl.allocate_shared_memory(gl.bfloat16, [4096 // WIDTH, WIDTH], ROOM)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    stages = near, far, packed, codes, full, empty
    num_items = gl.load(tiles) * num_parts
    gl.warp_specialize(
        [
            (_multiply_all, (
                stages, one, num_items, num_parts,
                out, order, tiles, weights, limit, num_outputs,
                0, NUM_BLOCKS, IS_DOWN, IS_FP8, STAGES, LEAD, UNROLL,
            )),
            (_multiply_all, (
                stages, other, num_items, num_parts,
                out, order, tiles, weights, limit, num_outputs,
                1, NUM_BLOCKS, IS_DOWN, IS_FP8, STAGES, LEAD, UNROLL,
            )),
            (copy_all, (
                stages, num_items, num_parts,
                x, words, scales, order, tiles, topk, num_inputs, num_stored,
                NUM_BLOCKS, IS_DOWN, STAGES, LAG,
            )),
        ],
        [WARPS, WARPS],
        [REGISTERS[0], REGISTERS[1]],
    )  # fmt: skip
