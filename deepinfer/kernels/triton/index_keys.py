"""Products of packed index keys with queries, on the way from the store to the tensor core.

Operands are FP8 of the kind e5m2: it holds e2m1 values times a power of two, and a step of the
tensor core takes four of them from a register. The largest scale of a key and the size of a head's
query are left out of it and multiplied in afterwards.

A word of eight codes becomes two registers, its first four codes and its last four. A row's quad of
threads shares the words so that each thread has the 32 channels of one scale: it looks its codes up
in one table of eight bytes, which the scale is worked into. So everything from the load to the
tensor core is elementwise, and no tile passes through shared memory on the way.
"""

import triton
import triton.language as tl

from deepinfer.kernels.triton.index_places import BYTES, WORDS

# 0, 0.5, 1, 1.5 and 2, 3, 4, 6 in e5m2, times 2**3: a key's codes under its largest scale. A head
# is below 2**3 and 6 at most is 1.5 * 2**2 of it, so that a product of 128 channels fits a float16.
_SMALL: tl.constexpr = tl.constexpr(0x4A484400)
_LARGE: tl.constexpr = tl.constexpr(0x52504E4C)
# From there down to 2**-13, where 0.5 is the smallest normal number.
_BINADES: tl.constexpr = tl.constexpr(16)


def _assembly(shift: int) -> tl.constexpr:
    """PTX that turns four codes of a word, from bit `shift` on, into minus what they stand for.

    A set fourth bit of a selector asks `prmt` for the sign of the byte, eight times. So the codes
    without it choose magnitudes from the table ($2, $6), and with it they make zero of the bytes
    0x40 in $10: twice that, added, is a sign for the codes that have none.
    """
    return tl.constexpr(
        f"""{{
        .reg .b32 m, s;
        and.b32 m, $1, 0x77777777;
        shr.u32 m, m, {shift};
        shr.u32 s, $1, {shift};
        prmt.b32 m, $2, $6, m;
        prmt.b32 s, $10, $10, s;
        mad.lo.u32 $0, s, 2, m;
        }}"""
    )


_UNPACK_FIRST: tl.constexpr = _assembly(0)
_UNPACK_LAST: tl.constexpr = _assembly(16)
# The largest byte of a word, in halves of a register: a reduction would go from thread to thread.
_MOST: tl.constexpr = tl.constexpr(
    """{
    .reg .b32 a, b;
    and.b32 a, $1, 0x00ff00ff;
    prmt.b32 b, $1, 0, 0x4341;
    max.u16x2 a, a, b;
    shl.b32 b, a, 16;
    max.u32 a, a, b;
    shr.u32 $0, a, 16;
    }"""
)


@triton.jit
def weighted(keys, key, operands, TILE: tl.constexpr, PACKED: tl.constexpr):
    """Scores float32 [TILE, 4] of the keys at rows `key` of the store, for `query_operands`."""
    queries, weight, size = operands
    first, last, most = key_operand(keys, key, TILE, PACKED)
    match = tl.dot(_beside(first, last), queries, input_precision="ieee")
    if PACKED:
        match = tl.inline_asm_elementwise(
            "cvt.rn.relu.f16x2.f32 $0, $2, $1;",
            "=r,r,r",
            [match],
            dtype=tl.float16,
            is_pure=True,
            pack=2,
        )
    else:
        match = tl.maximum(match, 0.0).to(tl.float16).to(tl.float32)
    total = tl.dot(match, weight, input_precision="ieee")
    total, rest = tl.split(tl.reshape(total, (TILE, 4, 2)))
    # Code 255 makes an infinite factor, and that times 0 is NaN: a broken key must show.
    factor = power_of_two(most) * size[None, :]
    return (total + rest * 2.0**-24) * factor + factor * 0.0


@triton.jit
def key_operand(keys, key, TILE: tl.constexpr, PACKED: tl.constexpr):
    """Minus the keys at rows `key` of the store, without their largest scales, in order of the
    operand: its first 64 channels and its last [TILE, 64], FP8 or, not PACKED, float32. And the
    largest scales' codes, int32 [TILE, 4], four times each.
    """
    place = key[:, None] * BYTES
    scale = tl.load(keys + (place + 64 + tl.arange(0, 4)[None, :]))
    code = tl.arange(0, 64)
    word, nibble = _place_of_word(code // 4), code % 4
    if PACKED:
        words = keys.to(tl.pointer_type(tl.int32))
        scales = tl.load(words + (key[:, None] * WORDS + 16))
        most, small, large, sign = _table(tl.broadcast_to(scales, (TILE, 4)), scale)
        code = tl.load(keys + (place + (word + nibble)[None, :]))
        small, large, sign = _each(small, TILE), _each(large, TILE), _each(sign, TILE)
        first = _four_at_once(_UNPACK_FIRST, code, small, large, sign)
        last = _four_at_once(_UNPACK_LAST, code, small, large, sign)
    else:
        scale = scale.to(tl.int32)
        most = tl.broadcast_to(tl.max(scale, 1)[:, None], (TILE, 4))
        power = _each(power_of_two(130 - tl.minimum(most - scale, _BINADES)), TILE)
        byte = keys + (place + (word + nibble // 2)[None, :])
        first = -_value(tl.load(byte), nibble) * power
        last = -_value(tl.load(byte + 2), nibble) * power
    return first, last, most


@triton.jit
def query_operands(
    query, weights, head_row, WIDE: tl.constexpr, HEADS: tl.constexpr, PACKED: tl.constexpr
):
    """What `weighted` multiplies by: queries [128, WIDE], weights [WIDE, 8], sizes [4].

    head_row int64 [WIDE]: whose head each one is, HEADS of each row. Each head's query is divided
    by its power of two, which goes to its weight; the weights of a row by theirs, which is its
    size. Column 2 * r of the weights is row r's; what a float16 cannot hold of it, times 2**24, is
    in column 2 * r + 1.
    """
    head = tl.arange(0, WIDE)
    at = head_row * HEADS + head % HEADS
    first, last, weight = query_operand(query, weights, at)
    own = (head // HEADS)[:, None] == tl.arange(0, 4)[None, :]
    up, size = size_of_row(tl.max(tl.where(own, magnitude(weight)[:, None], 0), 0))
    weight *= power_of_two(tl.max(tl.where(own, up[None, :], 0), 1))
    main = weight.to(tl.float16)
    rest = ((weight - main.to(tl.float32)) * 2.0**24).to(tl.float16)
    column = tl.arange(0, 8)[None, :]
    parts = tl.where(column % 2 == 0, main[:, None], rest[:, None])
    parts = tl.where((head // HEADS)[:, None] == column // 2, parts, 0.0)
    if PACKED:
        first, last = first.to(tl.float8e5), last.to(tl.float8e5)
    else:
        parts = parts.to(tl.float32)
    return tl.trans(_beside(first, last)), parts, size


@triton.jit
def query_operand(query, weights, at):
    """Minus the queries of the heads `at` int64 [n], divided by their powers of two, in order of
    the operand: two halves float32 [n, 64]. And their weights times these powers.
    """
    code = tl.arange(0, 64)
    place = at[:, None] * 128 + (_place_of_word(code // 4) * 2 + code % 4)[None, :]
    first = tl.load(query + place).to(tl.float32)
    last = tl.load(query + place + 4).to(tl.float32)
    exponent = tl.max(tl.maximum(magnitude(first), magnitude(last)), 1) >> 23
    up = tl.minimum(tl.maximum(256 - exponent, 1), 253)
    # A NaN is left to its weight: in the operand it would reach the other rows of the tile.
    is_finite = (exponent < 255)[:, None]
    first = tl.where(is_finite, first * -power_of_two(up)[:, None], 0.0)
    last = tl.where(is_finite, last * -power_of_two(up)[:, None], 0.0)
    weight = tl.load(weights + at).to(tl.float32) * power_of_two(254 - up)
    return first, last, tl.where(exponent < 255, weight, float("nan"))


@triton.jit
def size_of_row(largest):
    """Of the `magnitude` of a row's largest weight: the exponent of the power of two that its
    weights are multiplied by, and the row's size, which its scores are multiplied by."""
    up = tl.minimum(tl.maximum(254 - (largest >> 23), 1), 253)
    return up, power_of_two(254 - up) * 0.125


@triton.jit
def _place_of_word(word):
    """Byte of a key at which the word lies that is `word` in order of the operand."""
    return word % 4 * 16 + word // 4 * 4


@triton.jit
def _beside(first, last):
    """[n, 128] of twice [n, 64]."""
    return tl.reshape(tl.permute(tl.join(first, last), (0, 2, 1)), (first.shape[0], 128))


@triton.jit
def _each(value, TILE: tl.constexpr):
    """What belongs to the four scales, for each code in order of the operand."""
    return tl.reshape(tl.broadcast_to(value[:, None, :, None], (TILE, 4, 4, 4)), (TILE, 64))


@triton.jit
def magnitude(value):
    """Bits without the sign, in order of size and NaN last: a maximum of floats would lose it."""
    return value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def power_of_two(exponent):
    """float32 of that exponent's code; of 255, infinity."""
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def _table(scales, scale):
    """Of a word of four scales' codes and one of them: the largest, and what `_assembly` needs.

    A scale more than 2**16 below the largest counts as that much below.
    """
    most = tl.inline_asm_elementwise(_MOST, "=r,r", [scales], dtype=tl.int32, is_pure=True, pack=1)
    below = tl.minimum(most - scale.to(tl.int32), _BINADES)
    # A plain 0x40404040 would be copied anew for each use: ptxas must not see that it is the same.
    sign = tl.inline_asm_elementwise(
        "max.s32 $0, $1, 0x40404040;", "=r,r", [below], dtype=tl.int32, is_pure=True, pack=1
    )
    return most, _SMALL - below * 0x04040400, _LARGE - below * 0x04040404, sign


@triton.jit
def _value(byte, nibble):
    """e2m1 value in float32 of a byte's low nibble if `nibble` is even, else of its high one."""
    code = (byte.to(tl.int32) >> (nibble % 2 * 4)[None, :]) & 15
    bits = ((code & 8) << 28) | ((code & 7) << 22)
    return bits.to(tl.float32, bitcast=True) * 2.0**126


@triton.jit
def _four_at_once(assembly: tl.constexpr, code, small, large, sign):
    """A register of four codes' bytes. They have one table and one sign: $3 to $5 are $2."""
    return tl.inline_asm_elementwise(
        assembly,
        "=r,r,r,r,r,r,r,r,r,r,r,r,r,r",
        [code, small, large, sign],
        dtype=tl.float8e5,
        is_pure=True,
        pack=4,
    )


@triton.jit
def put(where, value, mask, PACKED: tl.constexpr):
    """Stores bfloat16 from the threads that have it; a store of Triton would move it first."""
    if PACKED:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.b16 [$1], $2; mov.b32 $0, 0; }",
            "=r,l,h,r",
            [where.to(tl.uint64), value, mask.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.store(where, value, mask=mask)
