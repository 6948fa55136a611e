"""Kernels of attend.py: one row and up to 64 heads a program, or a part of a row's keys.

Channels are handled as two halves, the even ones and then the odd ones (see attend_tiles.py): the
pairs of a rotation are elementwise too.
"""

import triton
import triton.language as tl

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.attend_tiles import SHIFT, tiles, to_bf16, walk

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rotate(even, odd, cos, sin, row, R: tl.constexpr, back: tl.constexpr):
    """Rotates the last R pairs of [BLOCK_H, C / 2] halves."""
    pair = tl.arange(0, even.shape[1]) - (even.shape[1] - R)
    is_turned = pair >= 0
    c = tl.load(cos + row * R + pair, mask=is_turned, other=1.0)[None, :]
    s = tl.load(sin + row * R + pair, mask=is_turned, other=0.0)[None, :]
    if back:
        s = -s
    # A select, because the pairs that stay may hold infinities: those times 0 are NaN.
    turned_even = tl.where(is_turned[None, :], even * c - odd * s, even)
    turned_odd = tl.where(is_turned[None, :], even * s + odd * c, odd)
    return turned_even, turned_odd


@triton.jit
def _finish(even, odd, cos, sin, out, row, head, heads, R: tl.constexpr, NATIVE: tl.constexpr):
    """Rounds, rotates back and writes the normed result, two halves [BLOCK_H, C / 2]."""
    HALF: tl.constexpr = even.shape[1]
    even = to_bf16(even, NATIVE).to(tl.float32)
    odd = to_bf16(odd, NATIVE).to(tl.float32)
    even, odd = _rotate(even, odd, cos, sin, row, R, back=True)
    both = tl.join(to_bf16(even, NATIVE), to_bf16(odd, NATIVE))
    both = tl.reshape(both, (even.shape[0], 2 * HALF))
    where = (row * heads + head)[:, None] * (2 * HALF) + tl.arange(0, 2 * HALF)[None, :]
    tl.store(out + where, both, mask=(head < heads)[:, None])


@triton.jit
def _turn(
    plain, tail, cos, sin, out, is_head, row,
    C: tl.constexpr, R: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """The query [BLOCK_H, C], and its last 2R channels again, as the products need it: turned, even
    channels first.

    It goes through memory (this row's own output, written later) because what comes from there
    goes on into shared memory; what comes out of registers would stay in registers, and there is
    no room. Programs that share a row all write the same.
    """
    even, odd = tl.split(tl.reshape(plain, (plain.shape[0], C // 2, 2)))
    column = tl.arange(0, C // 2)[None, :]
    tl.store(out + column, even, mask=is_head & (column < C // 2 - R))
    tl.store(out + C // 2 + column, odd, mask=is_head & (column < C // 2 - R))
    even, odd = tl.split(tl.reshape(tail, (plain.shape[0], R, 2)))
    even, odd = _rotate(even.to(tl.float32), odd.to(tl.float32), cos, sin, row, R, back=False)
    column = tl.arange(0, R)[None, :]
    tl.store(out + C // 2 - R + column, to_bf16(even, NATIVE), mask=is_head)
    tl.store(out + C - R + column, to_bf16(odd, NATIVE), mask=is_head)
    tl.debug_barrier()
    turned = tl.load(out + tl.arange(0, C)[None, :], mask=is_head, other=0.0)
    return turned if NATIVE else turned.to(tl.float32)


@triton.jit
def attend_kernel(
    query, cos, sin, sink, out, parts, stats,
    window, window_words, window_index, window_stride, window_size,
    entries, entry_words, entry_index, entry_stride, entry_size,
    scale, heads, splits,
    C: tl.constexpr, R: tl.constexpr, NATIVE: tl.constexpr,
    IS_SPLIT: tl.constexpr, IS_FP4: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW_SPAN: tl.constexpr, ENTRY_SPAN: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: rows, tiles of heads, parts of a row's keys (one but for IS_SPLIT)."""
    chain.start(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    part = tl.program_id(2)
    window_index += row * window_stride
    entry_index += row * entry_stride
    is_head = (head < heads)[:, None]
    where = (row * heads + head)[:, None] * C
    plain = tl.load(query + where + tl.arange(0, C)[None, :], mask=is_head, other=0.0)
    tail = tl.load(query + where + C - 2 * R + tl.arange(0, 2 * R), mask=is_head, other=0.0)
    if not IS_SPLIT:
        window_tiles = tiles(window_index, window_size, WINDOW_SPAN, BLOCK)
        entry_tiles = tiles(entry_index, entry_size, ENTRY_SPAN, BLOCK)
    turned = _turn(plain, tail, cos, sin, out + where, is_head, row, C, R, NATIVE)

    # The sink takes part in the maximum, so the maximum is finite even when every logit is -inf.
    top = tl.load(sink + head, mask=head < heads, other=0.0) * LOG2_E
    total = tl.zeros((BLOCK_H,), tl.float32) + (part == 0).to(tl.float32)
    mixed = tl.zeros((BLOCK_H, C), tl.float32)
    if not IS_SPLIT:
        top, total, mixed = walk(
            turned, window, window_words, window_index, 0, window_tiles, window_size,
            scale, top, total, mixed, (WINDOW_SPAN + BLOCK - 1) // BLOCK, C, BLOCK,
            False, PACKED, NATIVE,
        )  # fmt: skip
        top, total, mixed = walk(
            turned, entries, entry_words, entry_index, 0, entry_tiles, entry_size,
            scale, top, total, mixed, (ENTRY_SPAN + BLOCK - 1) // BLOCK, C, BLOCK,
            IS_FP4, PACKED, NATIVE,
        )  # fmt: skip
    elif part < tl.cdiv(window_size, BLOCK):
        top, total, mixed = walk(
            turned, window, window_words, window_index, part, 1, window_size,
            scale, top, total, mixed, 1, C, BLOCK, False, PACKED, NATIVE,
        )  # fmt: skip
    else:
        top, total, mixed = walk(
            turned, entries, entry_words, entry_index, part - tl.cdiv(window_size, BLOCK), 1,
            entry_size, scale, top, total, mixed, 1, C, BLOCK, IS_FP4, PACKED, NATIVE,
        )  # fmt: skip

    if IS_SPLIT:
        slot = row * splits + part
        where = (slot * heads + head)[:, None] * C + tl.arange(0, C)[None, :]
        tl.store(parts + where, mixed, mask=is_head)
        tl.store(stats + 2 * slot * heads + head, top, mask=head < heads)
        tl.store(stats + (2 * slot + 1) * heads + head, total, mask=head < heads)
    else:
        mixed = mixed * tl.div_rn(2.0**SHIFT, total)[:, None]
        halves = tl.permute(tl.reshape(mixed, (BLOCK_H, 2, C // 2)), (0, 2, 1))
        even, odd = tl.split(halves)
        _finish(even, odd, cos, sin, out, row, head, heads, R, NATIVE)


@triton.jit
def combine_kernel(
    parts, stats, cos, sin, out, heads, splits,
    C: tl.constexpr, R: tl.constexpr, NATIVE: tl.constexpr,
    SPAN: tl.constexpr, BLOCK_H: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Joins the parts of a row, always in the order of its tiles."""
    chain.start(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    is_head = head < heads
    part = tl.arange(0, SPAN)[:, None]
    where = 2 * (row * splits + part) * heads + head[None, :]
    is_part = (part < splits) & is_head[None, :]
    tops = tl.load(stats + where, mask=is_part, other=-float("inf"))
    totals = tl.load(stats + where + heads, mask=is_part, other=0.0)
    # Heads beyond the last have -inf throughout: keep their differences finite.
    top = tl.where(is_head, tl.max(tops, 0), 0.0)
    total = tl.sum(totals * tl.exp2(tops - top[None, :]), 0)
    total = tl.where(is_head, total, 1.0)
    column = tl.arange(0, C // 2)[None, :]
    even = tl.zeros((BLOCK_H, C // 2), tl.float32)
    odd = tl.zeros((BLOCK_H, C // 2), tl.float32)
    for i in tl.static_range(SPAN):
        slot = row * splits + i
        inside = head < tl.where(i < splits, heads, 0)
        fade = tl.load(stats + 2 * slot * heads + head, mask=inside, other=-float("inf"))
        fade = tl.exp2(fade - top)[:, None]
        where = (slot * heads + head)[:, None] * C + column
        even += fade * tl.load(parts + where, mask=inside[:, None], other=0.0)
        odd += fade * tl.load(parts + where + C // 2, mask=inside[:, None], other=0.0)
    factor = tl.div_rn(2.0**SHIFT, total)[:, None]
    _finish(even * factor, odd * factor, cos, sin, out, row, head, heads, R, NATIVE)
