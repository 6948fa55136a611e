"""Products of packed index keys with queries, on the way from the store to the tensor core.

A key's 128 channels are taken as 32 pieces of 16 bits with four e2m1 codes each, and the product is
the sum of four: of the first codes of all pieces, of the second ones, and so on. So everything from
the load to the tensor core is elementwise: each thread unpacks just what it feeds to it, two codes
in a register, and no tile passes through shared memory on the way.
"""

import triton
import triton.language as tl

_BYTES: tl.constexpr = tl.constexpr(68)
_PIECES: tl.constexpr = tl.constexpr(34)  # the last two are scales


def _assembly(shift: int, mask: int, spread: int) -> tl.constexpr:
    """PTX that makes two bfloat16 of one nibble in each half of a word, times a factor.

    The product moves the sign to the top of its half, and the magnitude to the exponent and first
    bit of mantissa of a bfloat16: the value times 2**-126, 0.5 as a subnormal number.
    """
    return tl.constexpr(
        f"""{{
        .reg .b32 t;
        shr.b32 t, $1, {shift};
        and.b32 t, t, {mask:#010x};
        mul.lo.u32 t, t, {spread:#x};
        and.b32 t, t, 0x81C081C0;
        mul.rn.bf16x2 $0, t, $2;
        }}"""
    )


_UNPACK_0: tl.constexpr = _assembly(0, 0x000F000F, 0x1040)
_UNPACK_1: tl.constexpr = _assembly(0, 0x00F000F0, 0x0104)
_UNPACK_2: tl.constexpr = _assembly(8, 0x000F000F, 0x1040)
_UNPACK_3: tl.constexpr = _assembly(8, 0x00F000F0, 0x0104)


@triton.jit
def weighted(
    codes,
    scales,
    key,
    operands,
    weight,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Scores float32 [TILE, ROWS] of the keys at rows `key` of the store."""
    code = tl.load(codes + (key[:, None] * _PIECES + tl.arange(0, 32)[None, :]))
    scale = tl.load(scales + (key[:, None] * _BYTES + 64 + tl.arange(0, 4)[None, :]))
    factor = _factor(scale, PACKED)
    factor = tl.reshape(tl.broadcast_to(factor[:, :, None], (TILE, 4, 8)), (TILE, 32))
    match = tl.dot(_nibble(code, factor, 0, PACKED), operands[0], input_precision="ieee")
    match = tl.dot(_nibble(code, factor, 1, PACKED), operands[1], match, input_precision="ieee")
    match = tl.dot(_nibble(code, factor, 2, PACKED), operands[2], match, input_precision="ieee")
    match = tl.dot(_nibble(code, factor, 3, PACKED), operands[3], match, input_precision="ieee")
    # relu, in the pipe that has time for it. NaN passes: a broken key must show.
    match = (match + tl.abs(match)) * (0.5 * weight)[None, :]
    return tl.sum(tl.reshape(match, (TILE, ROWS, HEADS)), 2)


@triton.jit
def query_operands(query, head_row, WIDE: tl.constexpr, PACKED: tl.constexpr):
    """Queries of WIDE heads times 2**60 as four [32, WIDE]: channels n, n + 4, and so on."""
    q = tl.load(query + (head_row[:, None] * 128 + tl.arange(0, 128)[None, :])).to(tl.float32)
    q *= 2.0**60
    if PACKED:
        q = q.to(tl.bfloat16)
    even, odd = tl.split(tl.reshape(q, (WIDE, 32, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return tl.trans(first), tl.trans(second), tl.trans(third), tl.trans(fourth)


@triton.jit
def _factor(scale, PACKED: tl.constexpr):
    """Bits of a bfloat16 in either half of an int32, from a scale's code s: 2**(s - 127).

    Times 2**66 that is s + 66 in the exponent field, which holds all codes that occur; 2**60 of it
    comes back with the queries, 2**126 is what the codes' bits lack. Greater scales are infinite.
    """
    code = scale.to(tl.int32)
    if PACKED:
        # As assembly, or it is computed in pairs that cost more to take apart.
        return tl.inline_asm_elementwise(
            "{ .reg .b32 t; min.u32 t, $1, 189; mad.lo.u32 $0, t, 0x00800080, 0x21002100; }",
            "=r,r",
            [code],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return tl.minimum(code, 189) * 0x00800080 + 0x21002100


@triton.jit
def _nibble(code, factor, n: tl.constexpr, PACKED: tl.constexpr):
    """Nibble n of each 16 bits as a number: its e2m1 value times `factor`, times 2**-126."""
    if PACKED:
        if n == 0:
            value = _two_at_once(_UNPACK_0, code, factor)
        elif n == 1:
            value = _two_at_once(_UNPACK_1, code, factor)
        elif n == 2:
            value = _two_at_once(_UNPACK_2, code, factor)
        else:
            value = _two_at_once(_UNPACK_3, code, factor)
    else:
        bits = code.to(tl.int32) >> (4 * n)
        bits = ((bits & 8) << 28) | ((bits & 7) << 22)
        scale = (factor << 16).to(tl.float32, bitcast=True)
        value = bits.to(tl.float32, bitcast=True) * scale
    return value


@triton.jit
def _two_at_once(assembly: tl.constexpr, code, factor):
    """Arithmetic on pairs, which Triton does not do by itself. A pair has one factor: $3 is $2."""
    return tl.inline_asm_elementwise(
        assembly, "=r,r,r,r", [code, factor], dtype=tl.bfloat16, is_pure=True, pack=2
    )


@triton.jit
def key_row(blocks, entry, PER_BLOCK: tl.constexpr):
    """Where an entry lies; a row that exists even if no block was given out for it."""
    block = tl.maximum(tl.load(blocks + entry // PER_BLOCK), 0)
    return block * PER_BLOCK + entry % PER_BLOCK


@triton.jit
def keys_at(codes, scales, blocks, at, num_entries, PER_BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Pointers, and the rows from there on at which entries at..at+TILE-1 lie, for `weighted`.

    Whole blocks, or pairs of them, are at fixed distances from one or two addresses.
    """
    within = tl.arange(0, TILE)
    if PER_BLOCK % TILE == 0:
        first = key_row(blocks, at, PER_BLOCK)
        codes += first * _PIECES
        scales += first * _BYTES
        key = within
    elif PER_BLOCK * 2 == TILE:
        first = key_row(blocks, at, PER_BLOCK)
        second = key_row(blocks, tl.minimum(at + PER_BLOCK, num_entries - PER_BLOCK), PER_BLOCK)
        is_first = (within < PER_BLOCK)[:, None]
        codes = tl.where(is_first, codes + first * _PIECES, codes + second * _PIECES)
        scales = tl.where(is_first, scales + first * _BYTES, scales + second * _BYTES)
        key = within % PER_BLOCK
    else:
        key = key_row(blocks, tl.minimum(at + within, num_entries - 1), PER_BLOCK)
    return codes, scales, key


@triton.jit
def candidates_at(
    candidates,
    blocks,
    at,
    width,
    visible,
    PER_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Entries and store rows of places at..at+TILE-1; entry -1, and any row, if there is none."""
    place = at + tl.arange(0, TILE)
    block = tl.load(candidates + place // BLOCK_SIZE, mask=place < width, other=-1)
    entry = block * BLOCK_SIZE + place % BLOCK_SIZE
    entry = tl.where((block >= 0) & (entry < visible), entry, -1)
    return entry, key_row(blocks, tl.maximum(entry, 0), PER_BLOCK)
