"""Sparse attention over packed cache rows, with a sink and both rotations (spec 6, 7.6, 15).

Channels are handled as two halves, the even ones and then the odd ones (see attend_tiles.py): the
pairs of a rotation are elementwise too.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton.attend_tiles import SHIFT, tiles, to_bf16, walk
from deepinfer.kernels.values import Rotary

_SPLIT_ROWS = 16  # up to so many rows, each tile of a row has a program of its own
_SPLIT_TILE = 64  # keys of such a tile
_TILE = 128  # and where one program does all: as many as fit beside the query in shared memory
_LOG2_E = tl.constexpr(1.4426950408889634)


def attend(
    query: Tensor,
    rotary: Rotary,
    sink: Tensor,
    scale: float,
    window: Tensor,
    window_index: Tensor,
    entries: Tensor | None = None,
    entry_index: Tensor | None = None,
    *,
    is_invariant: bool = False,
) -> Tensor:
    """Rotate, attend, rotate back: bf16 [T, H, C]. Meaning as in reference/attend.py.

    query bf16 [T, H, C], not rotated; rotary float32 [T, R] each; sink float32 [H]. The stores hold
    packed rows: window uint8 [*, C + C/32], entries uint8 [*, C/2 + C/16] (FP4) or as window.
    window_index [T, W] and entry_index [T, K], int32 or int64, list store rows, -1 for none. C is a
    power of two, 32 at least, and so is R. Products of bf16, float32 sums; probabilities round to
    bf16. is_invariant: a row has the same bits whatever the number of rows; otherwise a few rows
    are shared out over more programs. Raises ValueError for a row width of neither format.
    """
    rows, heads, channels = query.shape
    if entries is None or entry_index is None:
        entries, entry_index = window[:0], window_index[:, :0]
    widths = {channels + channels // 32: False, channels // 2 + channels // 16: True}
    if widths.get(window.shape[1]) is not False or entries.shape[1] not in widths:
        raise ValueError(f"rows of {window.shape[1]} and {entries.shape[1]} bytes: C is {channels}")
    query, window, entries = (x.contiguous() for x in (query, window, entries))
    window_index, entry_index = (x.contiguous() for x in (window_index, entry_index))
    out = torch.empty_like(query)
    if not rows:
        return out
    lists = (window_index.shape[1], entry_index.shape[1])
    splits, tile = 1, _TILE
    if rows <= _SPLIT_ROWS and not is_invariant:
        tile = _SPLIT_TILE
        splits = max(1, sum(triton.cdiv(n, tile) for n in lists))
    parts, stats = out, sink  # stand-ins: with one split nothing is written there
    if splits > 1:
        parts = query.new_empty((rows, splits, heads, channels), dtype=torch.float32)
        stats = query.new_empty((rows, splits, 2, heads), dtype=torch.float32)
    # Of fewer channels not every row starts at a whole word.
    is_packed = query.is_cuda and channels % 128 == 0
    words = [x.view(torch.int32) if is_packed else x for x in (window, entries)]
    shape = {"C": channels, "R": rotary.cos.shape[1], "NATIVE": query.is_cuda}
    # Wide rows want the products of 64 heads, even if some are empty: others need more memory.
    block_h = 64 if channels >= 256 else max(16, min(64, triton.next_power_of_2(heads)))
    _attend_kernel[(rows, triton.cdiv(heads, block_h), splits)](
        *(query, *rotary, sink, out, parts, stats),
        *(window, words[0], window_index, window_index.stride(0), lists[0]),
        *(entries, words[1], entry_index, entry_index.stride(0), lists[1]),
        scale * _LOG2_E.value * 2.0**SHIFT.value,
        *(heads, splits),
        **shape,
        IS_SPLIT=splits > 1,
        IS_FP4=widths[entries.shape[1]],
        PACKED=is_packed,
        BLOCK_H=block_h,
        BLOCK=tile,
        WINDOW_SPAN=triton.next_power_of_2(max(1, lists[0])),
        ENTRY_SPAN=triton.next_power_of_2(max(1, lists[1])),
        num_warps=8 if block_h == 64 else 4,
        num_stages=1,
    )
    if splits > 1:
        span = triton.next_power_of_2(splits)
        _combine_kernel[(rows, triton.cdiv(heads, 2))](
            *(parts, stats, *rotary, out, heads, splits), **shape, SPAN=span, BLOCK_H=2
        )
    return out


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
def _attend_kernel(
    query, cos, sin, sink, out, parts, stats,
    window, window_words, window_index, window_stride, window_size,
    entries, entry_words, entry_index, entry_stride, entry_size,
    scale, heads, splits,
    C: tl.constexpr, R: tl.constexpr, NATIVE: tl.constexpr,
    IS_SPLIT: tl.constexpr, IS_FP4: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW_SPAN: tl.constexpr, ENTRY_SPAN: tl.constexpr,
):  # fmt: skip
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
    top = tl.load(sink + head, mask=head < heads, other=0.0) * _LOG2_E
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
def _combine_kernel(
    parts, stats, cos, sin, out, heads, splits,
    C: tl.constexpr, R: tl.constexpr, NATIVE: tl.constexpr,
    SPAN: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Joins the parts of a row, always in the order of its tiles."""
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
