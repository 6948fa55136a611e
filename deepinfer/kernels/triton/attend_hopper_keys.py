"""The part of attend_hopper.py that reads packed cache rows and makes keys of them (spec 14).

Within eight channels the even ones come first, as a word's bits want it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from deepinfer.kernels.triton.attend_tiles import EIGHT, FOUR, FP4_ASM, FP8_ASM, scales

BLOCK: gl.constexpr = gl.constexpr(64)  # keys of a tile
STAGES: gl.constexpr = gl.constexpr(2)  # tiles in shared memory
UNPACKERS: gl.constexpr = gl.constexpr(4)  # warps


@gluon.constexpr_function
def _word_layout():
    """[rows, pairs of words, 2]: 16 bytes a thread. Eight neighbours have eight rows, so that what
    they store goes to all banks of shared memory."""
    return gl.BlockedLayout([1, 2, 2], [8, 4, 1], [UNPACKERS, 1, 1], [2, 0, 1])


@gluon.constexpr_function
def _load_layout():
    """The same in fours, as they are read: [rows, fours of words, 4]."""
    return gl.BlockedLayout([1, 1, 4], [8, 4, 1], [UNPACKERS, 1, 1], [2, 0, 1])


@gluon.jit
def _listed(index, tile, size):
    """Store rows of a tile of a list, -1 beyond it, as the fetched rows lie in threads."""
    ROWS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, _word_layout()))
    place = tile * BLOCK + gl.arange(0, BLOCK, layout=ROWS)
    return gl.load(index + place, mask=place < size, other=-1).to(gl.int32)


@gluon.jit
def groups(SIZE: gl.constexpr, LAYOUT: gl.constexpr):
    """0 to SIZE - 1 along the second of three dimensions."""
    column = gl.arange(0, SIZE, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    return gl.expand_dims(gl.expand_dims(column, 0), 2)


@gluon.jit
def pieces(SIZE: gl.constexpr, LAYOUT: gl.constexpr):
    """0 to SIZE - 1 along the third of three dimensions."""
    column = gl.arange(0, SIZE, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    return gl.expand_dims(gl.expand_dims(column, 0), 1)


@gluon.jit
def _fetch(words, index, C: gl.constexpr, IS_FP4: gl.constexpr):
    """Words of the listed rows [BLOCK, pairs, 2], and of two pairs each the scale codes that they
    need [BLOCK, pairs / 2]: one byte for each pair of FP4, one for both of FP8. Rows of -1 are not
    read: what lies there could be NaN.
    """
    FOURS: gl.constexpr = _load_layout()
    SIZE: gl.constexpr = C // 2 if IS_FP4 else C
    WIDTH: gl.constexpr = C // 2 + C // 16 if IS_FP4 else C + C // 32
    row = gl.expand_dims(gl.convert_layout(index, gl.SliceLayout(1, gl.SliceLayout(2, FOURS))), 1)
    start = words + row.to(gl.int64) * (WIDTH // 4)
    place = gl.expand_dims(start, 2) + (groups(SIZE // 16, FOURS) * 4 + pieces(4, FOURS))
    raw = gl.load(place, mask=gl.expand_dims(row, 2) >= 0, other=0)
    raw = gl.convert_layout(gl.reshape(raw, (BLOCK, SIZE // 8, 2)), _word_layout())
    part = gl.arange(0, SIZE // 16, layout=gl.SliceLayout(0, gl.SliceLayout(2, FOURS)))
    part = gl.expand_dims(part, 0)
    if IS_FP4:
        halves = start.to(gl.pointer_type(gl.uint16), bitcast=True)
        codes = gl.load(halves + (SIZE // 2 + part), mask=row >= 0, other=0)
    else:
        singles = start.to(gl.pointer_type(gl.uint8), bitcast=True)
        codes = gl.load(singles + (SIZE + part // 2), mask=row >= 0, other=0)
    return raw, codes


@gluon.jit
def _halves(x):
    """The first half of the pairs, and the second: of all rows, in every thread."""
    parts = gl.reshape(x, (x.shape[0], 2, x.shape[1] // 2, 2))
    first, second = gl.split(gl.permute(parts, (0, 2, 3, 1)))
    LAYOUT: gl.constexpr = _word_layout()
    return gl.convert_layout(first, LAYOUT), gl.convert_layout(second, LAYOUT)


@gluon.jit
def _code_halves(x):
    """The same of codes."""
    parts = gl.reshape(x, (x.shape[0], 2, x.shape[1] // 2))
    first, second = gl.split(gl.permute(parts, (0, 2, 1)))
    LAYOUT: gl.constexpr = gl.SliceLayout(2, _load_layout())
    return gl.convert_layout(first, LAYOUT), gl.convert_layout(second, LAYOUT)


@gluon.jit
def _factor(code, IS_FP4: gl.constexpr):
    """`scales` as bfloat16 in both halves of a word: NaN and infinity keep their upper half."""
    scale = scales(code, IS_FP4)
    upper = (scale.to(gl.int32, bitcast=True) >> 16) & 0xFFFF
    return upper | (upper << 16)


@gluon.jit
def _factors(codes, IS_FP4: gl.constexpr):
    """A factor for each pair: [BLOCK, pairs]."""
    code = codes.to(gl.int32)
    if IS_FP4:
        both = gl.join(_factor(code & 0xFF, True), _factor(code >> 8, True))
    else:
        once = _factor(code, False)
        both = gl.join(once, once)
    flat = gl.reshape(both, (BLOCK, 2 * codes.shape[1]))
    return gl.convert_layout(flat, gl.SliceLayout(2, _word_layout()))


@gluon.jit
def _put(goal, raw, codes, C: gl.constexpr, IS_FP4: gl.constexpr):
    """Unpack some channels of all rows into shared memory, bfloat16 [BLOCK, channels]."""
    factor = _factors(codes, IS_FP4)
    if IS_FP4:
        factor, _ = gl.broadcast(gl.expand_dims(factor, 2), raw)
        e0, e1, e2, e3, o0, o1, o2, o3 = gl.inline_asm_elementwise(
            FP4_ASM, "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [raw, factor], EIGHT, is_pure=True, pack=1
        )
    else:
        first, second = gl.split(raw)
        factor = gl.convert_layout(factor, first.type.layout)
        e0, e1, o0, o1 = gl.inline_asm_elementwise(
            FP8_ASM, "=h,=h,=h,=h,r,r", [first, factor], FOUR, is_pure=True, pack=1
        )
        e2, e3, o2, o3 = gl.inline_asm_elementwise(
            FP8_ASM, "=h,=h,=h,=h,r,r", [second, factor], FOUR, is_pure=True, pack=1
        )
    left = gl.join(gl.join(e0, o0), gl.join(e2, o2))
    right = gl.join(gl.join(e1, o1), gl.join(e3, o3))
    goal.store(gl.reshape(gl.join(left, right), (BLOCK, C)))


@gluon.jit
def _hand_over(
    raw, codes, index, tile, keys, hidden, full, empty, C: gl.constexpr, IS_FP4: gl.constexpr
):
    """Unpack a tile to where the products read it, once they are through with what was there."""
    stage = tile % STAGES
    mbarrier.wait(empty.index(stage), ((tile // STAGES) & 1) ^ 1)
    goal = keys.index(stage)
    # A quarter at a time: unpacked, a tile would take all registers.
    PART: gl.constexpr = C // 4
    left, right = _halves(raw)
    left_codes, right_codes = _code_halves(codes)
    raw_a, raw_b = _halves(left)
    codes_a, codes_b = _code_halves(left_codes)
    _put(goal.slice(0, PART, dim=1), raw_a, codes_a, PART, IS_FP4)
    _put(goal.slice(PART, PART, dim=1), raw_b, codes_b, PART, IS_FP4)
    raw_a, raw_b = _halves(right)
    codes_a, codes_b = _code_halves(right_codes)
    _put(goal.slice(2 * PART, PART, dim=1), raw_a, codes_a, PART, IS_FP4)
    _put(goal.slice(3 * PART, PART, dim=1), raw_b, codes_b, PART, IS_FP4)
    hidden.index(stage).store(gl.where(index >= 0, 0.0, -float("inf")))
    fence_async_shared()
    mbarrier.arrive(full.index(stage), count=1)


@gluon.jit
def unpack(
    keys, hidden, full, empty, num_rows,
    window, window_index, window_stride, window_size,
    entries, entry_index, entry_stride, entry_size,
    C: gl.constexpr, IS_FP4: gl.constexpr, SPANS: gl.constexpr, HEAD_TILES: gl.constexpr,
):  # fmt: skip
    """All tiles of the rows of this program, of each row the window's first."""
    done = 0
    for item in range(gl.program_id(0), num_rows * HEAD_TILES, gl.num_programs(0)):
        row = (item // HEAD_TILES).to(gl.int64)
        windows, listed = window_index + row * window_stride, entry_index + row * entry_stride
        index = _listed(windows, 0, window_size)
        later = _listed(listed, 0, entry_size)
        later_ahead = _listed(listed, 1, entry_size)
        num_tiles = count_tiles(windows, window_size, SPANS[0], UNPACKERS)
        entry_tiles = count_tiles(listed, entry_size, SPANS[1], UNPACKERS)
        for tile in range(num_tiles):
            raw, codes = _fetch(window, index, C, False)
            ahead = _listed(windows, tile + 1, window_size)
            _hand_over(raw, codes, index, done, keys, hidden, full, empty, C, False)
            index = ahead
            done += 1
        index, ahead = later, later_ahead
        if IS_FP4:
            # A tile is read while the one before is at work.
            raw, codes = _fetch(entries, index, C, True)
            for tile in range(entry_tiles):
                next_raw, next_codes = _fetch(entries, ahead, C, True)
                beyond = _listed(listed, tile + 2, entry_size)
                _hand_over(raw, codes, index, done, keys, hidden, full, empty, C, True)
                raw, codes, index, ahead = next_raw, next_codes, ahead, beyond
                done += 1
        else:
            for tile in range(entry_tiles):
                raw, codes = _fetch(entries, index, C, False)
                beyond = _listed(listed, tile + 2, entry_size)
                _hand_over(raw, codes, index, done, keys, hidden, full, empty, C, False)
                index, ahead = ahead, beyond
                done += 1


@gluon.jit
def count_tiles(index, size, SPAN: gl.constexpr, WARPS: gl.constexpr):
    """Tiles of a list up to the last row it names: at its end there may be nothing but -1.

    Every warp counts for itself, which takes no barrier."""
    ALL: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [1, WARPS], [0, 1])
    place = gl.arange(0, SPAN, layout=gl.SliceLayout(1, ALL))
    row = gl.load(index + place, mask=place < size, other=-1)
    return gl.max(gl.where(row >= 0, place // BLOCK + 1, 0), 0)
