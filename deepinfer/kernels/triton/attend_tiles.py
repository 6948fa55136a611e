"""Tiles of attention: packed cache rows to bf16 keys, exactly, and their mixing (spec 7.6, 14, 15).

A row's channels are handled as two halves, the even ones and then the odd ones: the nibbles of a
byte (or the bytes of a word) then need no interleaving. Keys come out times 2**-SHIFT, which leaves
room for the factor that makes a bf16 of the bits of an FP4 or FP8 value.
"""

import triton
import triton.language as tl

SHIFT = tl.constexpr(48)
FOUR = tl.constexpr((tl.bfloat16,) * 4)
EIGHT = tl.constexpr((tl.bfloat16,) * 8)

# A word of eight nibbles to four even and four odd bf16, in order: the sign goes to bit 15, and
# exponent and mantissa to bits 8 to 6 of each half. $9 is the factor, twice.
FP4_ASM = tl.constexpr("""{
.reg .b32 u, v, a, b;
prmt.b32 u, $8, 0, 0x1404;
prmt.b32 v, $8, 0, 0x3424;
shr.b32 a, u, 2; and.b32 a, a, 0x01C001C0; shl.b32 b, u, 4; and.b32 b, b, 0x80008000;
or.b32 a, a, b; mul.rn.bf16x2 a, a, $9; mov.b32 {$0, $1}, a;
shr.b32 a, v, 2; and.b32 a, a, 0x01C001C0; shl.b32 b, v, 4; and.b32 b, b, 0x80008000;
or.b32 a, a, b; mul.rn.bf16x2 a, a, $9; mov.b32 {$2, $3}, a;
shr.b32 a, u, 6; and.b32 a, a, 0x01C001C0; and.b32 b, u, 0x80008000;
or.b32 a, a, b; mul.rn.bf16x2 a, a, $9; mov.b32 {$4, $5}, a;
shr.b32 a, v, 6; and.b32 a, a, 0x01C001C0; and.b32 b, v, 0x80008000;
or.b32 a, a, b; mul.rn.bf16x2 a, a, $9; mov.b32 {$6, $7}, a;
}""")
# A word of four bytes to two even and two odd bf16: exponent and mantissa go to bits 10 to 4.
FP8_ASM = tl.constexpr("""{
.reg .b32 a, b;
shl.b32 a, $4, 4; and.b32 a, a, 0x07F007F0; shl.b32 b, $4, 8; and.b32 b, b, 0x80008000;
or.b32 a, a, b; mul.rn.bf16x2 a, a, $5; mov.b32 {$0, $1}, a;
shr.b32 a, $4, 4; and.b32 a, a, 0x07F007F0; and.b32 b, $4, 0x80008000;
or.b32 a, a, b; mul.rn.bf16x2 a, a, $5; mov.b32 {$2, $3}, a;
}""")


@triton.jit
def to_bf16(x, NATIVE: tl.constexpr):
    """float32 to the nearest bf16, ties to even."""
    if NATIVE:
        # Two at a time: what the compiler makes of a cast goes one by one, at a small part of the
        # rate.
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, is_pure=True, pack=2
        )
    bits = x.to(tl.int32, bitcast=True)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    bits = tl.where(is_nan, 0x7FC00000, bits + 0x7FFF + ((bits >> 16) & 1))
    return (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _operand(x, NATIVE: tl.constexpr):
    """What a product takes: bf16, or its values in float32 where bf16 has no products."""
    return to_bf16(x, NATIVE) if NATIVE else to_bf16(x, NATIVE).to(tl.float32)


@triton.jit
def _listed(index, place, limit, BLOCK: tl.constexpr):
    """Store rows of the tile that starts at `place`; -1 beyond the list."""
    places = place + tl.arange(0, BLOCK)
    return tl.load(index + places, mask=places < limit, other=-1).to(tl.int32)


@triton.jit
def _fetch(store, words, index, C: tl.constexpr, IS_FP4: tl.constexpr, PACKED: tl.constexpr):
    """The listed rows as they lie, and their scale codes. Rows of -1 are not read: what lies there
    could be NaN.

    Both come as words of four bytes where rows are made of whole words (so they take a quarter of
    the registers while they wait), else as bytes of two nibbles, or two bytes of FP8, [BLOCK, C/2],
    and codes [BLOCK, groups].
    """
    SIZE: tl.constexpr = C // 2 if IS_FP4 else C
    GROUPS: tl.constexpr = C // 16 if IS_FP4 else C // 32
    is_there = (index >= 0)[:, None]
    row = index.to(tl.int64)[:, None]
    if PACKED:
        column = tl.arange(0, SIZE // 4)[None, :]
        raw = tl.load(words + row * ((SIZE + GROUPS) // 4) + column, mask=is_there, other=0)
    else:
        column = tl.arange(0, C // 2)[None, :]
        place = store + row * (SIZE + GROUPS) + column * (1 if IS_FP4 else 2)
        raw = tl.load(place, mask=is_there, other=0).to(tl.int32)
        if not IS_FP4:
            raw |= tl.load(place + 1, mask=is_there, other=0).to(tl.int32) << 8
    if PACKED:
        column = SIZE // 4 + tl.arange(0, GROUPS // 4)[None, :]
        codes = tl.load(words + row * ((SIZE + GROUPS) // 4) + column, mask=is_there, other=0)
    else:
        column = SIZE + tl.arange(0, GROUPS)[None, :]
        codes = tl.load(store + row * (SIZE + GROUPS) + column, mask=is_there, other=0)
    return raw, codes


@triton.jit
def scales(codes, IS_FP4: tl.constexpr):
    """float32 factors from the bf16 that a value's bits make to the value times 2**-SHIFT."""
    codes = codes.to(tl.int32)
    if IS_FP4:
        # As a float32 the bits of an e4m3 are its value times 2**-120, subnormal or not.
        scale = ((codes & 0x7F) << 20).to(tl.float32, bitcast=True) * 2.0**120
        return tl.where((codes & 0x7F) == 0x7F, float("nan"), scale * 2.0 ** (126 - SHIFT))
    # From 2**56 on the factor would overflow; no normed row comes near. Code 255 is NaN.
    bits = (codes + (120 - SHIFT)) << 23
    return tl.where(codes + (120 - SHIFT) > 254, float("nan"), bits.to(tl.float32, bitcast=True))


@triton.jit
def _unpack(
    raw, codes, C: tl.constexpr, IS_FP4: tl.constexpr, PACKED: tl.constexpr, NATIVE: tl.constexpr
):
    """[BLOCK, C] keys times 2**-SHIFT, even channels first. Exact."""
    BLOCK: tl.constexpr = raw.shape[0]
    GROUPS: tl.constexpr = C // 16 if IS_FP4 else C // 32
    if PACKED:
        codes = (codes[:, :, None] >> (8 * tl.arange(0, 4))[None, None, :]) & 0xFF
        codes = tl.reshape(codes, (BLOCK, GROUPS))
    scale = scales(codes, IS_FP4)
    raw = tl.reshape(raw, (BLOCK, GROUPS, raw.shape[1] // GROUPS))
    if PACKED:
        # A NaN or infinity keeps its upper half; the others are bf16 already.
        upper = (scale.to(tl.int32, bitcast=True) >> 16) & 0xFFFF
        scale = tl.broadcast_to((upper | (upper << 16))[:, :, None], raw.shape)
        if IS_FP4:
            e0, e1, e2, e3, o0, o1, o2, o3 = tl.inline_asm_elementwise(
                FP4_ASM, "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [raw, scale], EIGHT, is_pure=True, pack=1
            )
            even = tl.join(tl.join(e0, e2), tl.join(e1, e3))
            odd = tl.join(tl.join(o0, o2), tl.join(o1, o3))
        else:
            e0, e1, o0, o1 = tl.inline_asm_elementwise(
                FP8_ASM, "=h,=h,=h,=h,r,r", [raw, scale], FOUR, is_pure=True, pack=1
            )
            even = tl.join(e0, e1)
            odd = tl.join(o0, o1)
    else:
        if IS_FP4:
            even, odd = (raw & 7) << 22 | (raw & 8) << 28, (raw & 0x70) << 18 | (raw & 0x80) << 24
        else:
            even = (raw & 0x7F) << 20 | (raw & 0x80) << 24
            odd = (raw & 0x7F00) << 12 | (raw & 0x8000) << 16
        even = _operand(even.to(tl.float32, bitcast=True) * scale[:, :, None], NATIVE)
        odd = _operand(odd.to(tl.float32, bitcast=True) * scale[:, :, None], NATIVE)
    even = tl.reshape(even, (BLOCK, C // 2))
    odd = tl.reshape(odd, (BLOCK, C // 2))
    return tl.reshape(tl.permute(tl.join(even, odd), (0, 2, 1)), (BLOCK, C))


@triton.jit
def tiles(index, size, SPAN: tl.constexpr, BLOCK: tl.constexpr):
    """Tiles of a list up to the last row it names: at its end there may be nothing but -1."""
    place = tl.arange(0, SPAN)
    row = tl.load(index + place, mask=place < size, other=-1)
    return tl.max(tl.where(row >= 0, place // BLOCK + 1, 0), 0)


@triton.jit
def walk(
    query, store, words, index, first, count, size, scale, top, total, mixed,
    MOST: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    IS_FP4: tl.constexpr, PACKED: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """`count` tiles of one list. FP4 rows are read while the tile before is at work, and their
    numbers one tile earlier still. For FP8, twice as wide, there are no registers left to wait in.
    """
    if IS_FP4:
        ahead = _listed(index, first * BLOCK, size, BLOCK)
        raw, codes = _fetch(store, words, ahead, C, IS_FP4, PACKED)
        ahead = _listed(index, (first + 1) * BLOCK, size, BLOCK)
    # The interpreter cannot loop to a number that it read: more tiles, all of -1, do no harm.
    for i in range(count if NATIVE else MOST):
        # Not kept from an earlier turn, as registers are what this kernel lacks.
        here = _listed(index, (first + i) * BLOCK, size, BLOCK)
        is_there = here >= 0
        if not IS_FP4:
            raw, codes = _fetch(store, words, here, C, IS_FP4, PACKED)
        key = _unpack(raw, codes, C, IS_FP4, PACKED, NATIVE)
        logits = tl.zeros((query.shape[0], BLOCK), tl.float32)
        # Once, or not at all. The loop hides from the compiler that one product feeds the other:
        # it would else let both halves of the program form the same logits.
        for _ in range(tl.max(is_there.to(tl.int32), 0) if NATIVE else 1):
            logits = tl.dot(query, tl.trans(key), logits, input_precision="ieee")
        if IS_FP4:
            raw, codes = _fetch(store, words, ahead, C, IS_FP4, PACKED)
            ahead = _listed(index, (first + i + 2) * BLOCK, size, BLOCK)
        logits = tl.where(is_there[None, :], logits, -float("inf"))
        ceiling = tl.maximum(top, tl.max(logits, 1) * scale)
        weights = tl.exp2(logits * scale - ceiling[:, None])
        fade = tl.exp2(top - ceiling)
        top, total = ceiling, total * fade + tl.sum(weights, 1)
        weights = _operand(weights, NATIVE)
        mixed = tl.dot(weights, key, mixed * fade[:, None], input_precision="ieee")
    return top, total, mixed
