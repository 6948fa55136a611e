"""Sparse attention for many rows on SM90, in Gluon: keys are unpacked beside the products (spec 6,
7.6).

A program takes one row after another: four warps read packed cache rows and make bfloat16 keys in
shared memory, two tiles deep, while eight others multiply, 64 heads at a time. Triton by itself
does one after the other and lacks the registers; the numbers and their order are those of attend.py
but for the size of tiles. Queries are laid out as the keys are, and the result is put back in order
when it is turned back.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
)

from deepinfer.kernels.triton.attend_hopper_keys import (
    BLOCK,
    STAGES,
    UNPACKERS,
    count_tiles,
    groups,
    pieces,
    unpack,
)
from deepinfer.kernels.triton.attend_kernels import LOG2_E
from deepinfer.kernels.triton.attend_tiles import SHIFT, to_bf16

WARPS = 8
_UNPACKER_REGISTERS: gl.constexpr = gl.constexpr(152)
_HEADS: gl.constexpr = gl.constexpr(64)


@gluon.jit
def _turned(even, odd, cos, sin, row, C: gl.constexpr, R: gl.constexpr, BACK: gl.constexpr):
    """Rotates the last R pairs of channels; even, odd [heads, C / 8, 4]."""
    LAYOUT: gl.constexpr = even.type.layout
    pair = groups(C // 8, LAYOUT) * 4 + pieces(4, LAYOUT) - (C // 2 - R)
    is_turned = pair >= 0
    c = gl.load(cos + row * R + pair, mask=is_turned, other=1.0)
    s = gl.load(sin + row * R + pair, mask=is_turned, other=0.0)
    if BACK:
        s = -s
    # A select, because the pairs that stay may hold infinities: those times 0 are NaN.
    turned_even = gl.where(is_turned, even * c - odd * s, even)
    turned_odd = gl.where(is_turned, even * s + odd * c, odd)
    return turned_even, turned_odd


@gluon.jit
def _mix_row(
    turned, probs, keys, hidden, full, empty, done, num_tiles,
    plain, where, is_head, cos, sin, sink, out, row, first, heads, scale,
    C: gl.constexpr, R: gl.constexpr,
):  # fmt: skip
    """Products, softmax, and what the row becomes, for heads from `first` on."""
    WIDE: gl.constexpr = plain.type.layout
    PAIRS: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 32, 1], [8, 1, 1], [2, 1, 0])
    LOGITS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK // 2, 16])
    MIXED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, C // 2, 16])
    even, odd = gl.split(gl.reshape(plain, (_HEADS, C // 8, 4, 2)))
    even = gl.convert_layout(even, PAIRS).to(gl.float32)
    odd = gl.convert_layout(odd, PAIRS).to(gl.float32)
    even, odd = _turned(even, odd, cos, sin, row, C, R, False)
    both = gl.permute(gl.join(to_bf16(even, True), to_bf16(odd, True)), (0, 1, 3, 2))
    turned.store(gl.convert_layout(gl.reshape(both, (_HEADS, C)), WIDE))
    fence_async_shared()

    of_logits = first + gl.arange(0, _HEADS, layout=gl.SliceLayout(1, LOGITS))
    # The sink takes part in the maximum, so that is finite even when every logit is -inf.
    top = gl.load(sink + of_logits, mask=of_logits < heads, other=0.0) * LOG2_E
    total = gl.full((_HEADS,), 1.0, gl.float32, gl.SliceLayout(1, LOGITS))
    mixed = gl.zeros((_HEADS, C), gl.float32, MIXED)
    nothing = gl.zeros((_HEADS, BLOCK), gl.float32, LOGITS)
    for number in range(num_tiles):
        tile = done + number  # as the loop's own start Triton 3.6 takes it for 0
        stage = tile % STAGES
        mbarrier.wait(full.index(stage), (tile // STAGES) & 1)
        key = keys.index(stage)
        logits = warpgroup_mma(turned, key.permute((1, 0)), nothing, use_acc=False)
        absent = hidden.index(stage).load(gl.SliceLayout(0, LOGITS))
        logits = logits * scale + absent[None, :]
        ceiling = gl.maximum(top, gl.max(logits, 1))
        weights = gl.exp2(logits - ceiling[:, None])
        fade = gl.exp2(top - ceiling)
        top, total = ceiling, total * fade + gl.sum(weights, 1)
        probs.store(to_bf16(weights, True))
        fence_async_shared()
        mixed = mixed * gl.convert_layout(fade, gl.SliceLayout(1, MIXED))[:, None]
        mixed = warpgroup_mma(probs, key, mixed)
        mbarrier.arrive(empty.index(stage), count=1)

    factor = gl.div_rn(gl.full_like(total, 2.0**SHIFT), total)
    mixed = mixed * gl.convert_layout(factor, gl.SliceLayout(1, MIXED))[:, None]
    turned.store(to_bf16(mixed, True))
    both = gl.reshape(turned.load(WIDE), (_HEADS, C // 8, 2, 4))
    even, odd = gl.split(gl.permute(both, (0, 1, 3, 2)))
    even = gl.convert_layout(even, PAIRS).to(gl.float32)
    odd = gl.convert_layout(odd, PAIRS).to(gl.float32)
    even, odd = _turned(even, odd, cos, sin, row, C, R, True)
    both = gl.reshape(gl.join(to_bf16(even, True), to_bf16(odd, True)), (_HEADS, C))
    gl.store(out + where, gl.convert_layout(both, WIDE), mask=is_head)


@gluon.jit
def _mix(
    turned, probs, keys, hidden, full, empty, num_rows,
    query, cos, sin, sink, out, heads, scale,
    window_index, window_stride, window_size, entry_index, entry_stride, entry_size,
    C: gl.constexpr, R: gl.constexpr, SPANS: gl.constexpr, HEAD_TILES: gl.constexpr,
):  # fmt: skip
    """The rows of this program."""
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    done = 0
    for item in range(gl.program_id(0), num_rows * HEAD_TILES, gl.num_programs(0)):
        row, first = (item // HEAD_TILES).to(gl.int64), item % HEAD_TILES * _HEADS
        head = first + gl.arange(0, _HEADS, layout=gl.SliceLayout(1, WIDE))
        column = gl.arange(0, C, layout=gl.SliceLayout(0, WIDE))
        where = (row * heads + head)[:, None] * C + column[None, :]
        is_head = (head < heads)[:, None]
        # The query comes while the tiles are counted.
        plain = gl.load(query + where, mask=is_head, other=0.0)
        windows, listed = window_index + row * window_stride, entry_index + row * entry_stride
        num_tiles = count_tiles(windows, window_size, SPANS[0], gl.num_warps())
        num_tiles += count_tiles(listed, entry_size, SPANS[1], gl.num_warps())
        _mix_row(
            turned, probs, keys, hidden, full, empty, done, num_tiles,
            plain, where, is_head, cos, sin, sink, out, row, first, heads, scale, C, R,
        )  # fmt: skip
        done += num_tiles


@gluon.jit(do_not_specialize=["num_rows"])
def attend_kernel(
    query, cos, sin, sink, out, num_rows,
    window, window_index, window_stride, window_size,
    entries, entry_index, entry_stride, entry_size,
    scale, heads,
    C: gl.constexpr, R: gl.constexpr, IS_FP4: gl.constexpr,
    SPANS: gl.constexpr, HEAD_TILES: gl.constexpr,
):  # fmt: skip
    """Any number of programs. window, entries: rows as words of four bytes. SPANS: powers of two
    that the two lists fit in."""
    HALVES: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    turned = gl.allocate_shared_memory(gl.bfloat16, [_HEADS, C], HALVES)
    probs = gl.allocate_shared_memory(gl.bfloat16, [_HEADS, BLOCK], HALVES)
    keys = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK, C], HALVES)
    hidden = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK], PLAIN)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    gl.warp_specialize(
        [
            (
                _mix,
                (
                    turned, probs, keys, hidden, full, empty, num_rows,
                    query, cos, sin, sink, out, heads, scale,
                    window_index, window_stride, window_size,
                    entry_index, entry_stride, entry_size, C, R, SPANS, HEAD_TILES,
                ),
            ),
            (
                unpack,
                (
                    keys, hidden, full, empty, num_rows,
                    window, window_index, window_stride, window_size,
                    entries, entry_index, entry_stride, entry_size,
                    C, IS_FP4, SPANS, HEAD_TILES,
                ),
            ),
        ],
        [UNPACKERS],
        [_UNPACKER_REGISTERS],
    )  # fmt: skip
