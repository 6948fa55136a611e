"""Where index keys lie in the store: their rows, from entries of a sequence or from candidates."""

import triton
import triton.language as tl

BYTES: tl.constexpr = tl.constexpr(68)  # of a key
WORDS: tl.constexpr = tl.constexpr(17)  # of it; the last one is its scales


@triton.jit
def block_at(blocks, number):
    """int64: a block of a sequence; one that exists even if none was given out for that."""
    # Numbers fit 32 bits, and are read so: a maximum of 64 takes four instructions.
    return tl.maximum(tl.load(blocks + number).to(tl.int32), 0).to(tl.int64)


@triton.jit
def key_row(blocks, entry, PER_BLOCK: tl.constexpr):
    """Where an entry lies."""
    return block_at(blocks, entry // PER_BLOCK) * PER_BLOCK + entry % PER_BLOCK


@triton.jit
def keys_at(keys, blocks, at, num_entries, PER_BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Pointers, and the rows from there on at which entries at..at+TILE-1 lie, for `weighted`.

    Whole blocks, or pairs of them, are at fixed distances from one or two addresses. `at` is a
    multiple of TILE.
    """
    within = tl.arange(0, TILE)
    if PER_BLOCK % TILE == 0:
        keys += key_row(blocks, at, PER_BLOCK) * BYTES
        key = within
    elif PER_BLOCK * 2 == TILE:
        number = at // TILE * 2
        last = num_entries // PER_BLOCK - 1
        first = block_at(blocks, number) * (PER_BLOCK * BYTES)
        second = block_at(blocks, tl.minimum(number + 1, last)) * (PER_BLOCK * BYTES)
        apart = tl.where((within < PER_BLOCK)[:, None], first, second)
        keys += tl.multiple_of(apart, [4, 4])
        key = within % PER_BLOCK
    else:
        key = key_row(blocks, tl.minimum(at + within, num_entries - 1), PER_BLOCK)
    return keys, key


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
