"""The first kernel of `hyper` for bfloat16, in Gluon: what `hyper_tile` computes, by warps that do
not wait for each other within a chunk.

A warp has eight rows, and a thread needs the coefficients of one: so few registers that twelve
warps fit. Streams and weights come through shared memory, a chunk ahead. Triton by itself
multiplies by four warps at a time, with a barrier, a fence and a wait for each of twelve products.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.gluon_names import copy
from deepinfer.kernels.triton.hyper_pieces import COLUMNS, GROUP, TILE_ROWS
from deepinfer.kernels.triton.hyper_product import (
    combined,
    flat_layout,
    multiplied,
    no_products,
    no_total,
    row_layout,
    store_total,
)

WARP_ROWS = 8
_STAGES: gl.constexpr = gl.constexpr(2)  # chunks in shared memory
_COLUMNS: gl.constexpr = gl.constexpr(COLUMNS)
_TILE: gl.constexpr = gl.constexpr(TILE_ROWS * COLUMNS)
_GROUP: gl.constexpr = gl.constexpr(GROUP)


@gluon.jit
def _rounded(x):
    """float32 to bfloat16. Two at a time: the instruction for one is slow."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def _widened(x):
    """bfloat16 to float32. The compiler takes two instructions for every second one."""
    to_wide: gl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
    return gl.inline_asm_elementwise(to_wide, "=r,=r,r", [x], gl.float32, is_pure=True, pack=2)


@gluon.jit
def _of_rows(source, rows, COUNT: gl.constexpr):
    """The COUNT numbers of each row, as so many vectors."""
    values = ()
    for i in gl.static_range(COUNT):
        values += (gl.load(source + rows * COUNT + i),)
    return values


@gluon.jit
def _rooms(M: gl.constexpr, TILES: gl.constexpr, ROWS: gl.constexpr):
    """Shared memory for chunks: of each, the streams, y, and tiles of weights. All apart, since the
    compiler puts a barrier between two writes to the same allocation."""
    LINES: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    rooms = ()
    for _ in gl.static_range(_STAGES):
        rows, tiles = (), ()
        for _ in gl.static_range(M + 1):
            rows += (gl.allocate_shared_memory(gl.bfloat16, [ROWS, _COLUMNS], LINES),)
        for _ in gl.static_range(TILES):
            tiles += (gl.allocate_shared_memory(gl.bfloat16, [M * _TILE], FLAT),)
        rooms += ((rows, tiles),)
    return rooms


@gluon.jit
def _fetch(
    room, chunk, streams, stream_step, y, pieces, places,
    M: gl.constexpr, TILES: gl.constexpr, WRITE: gl.constexpr,
):  # fmt: skip
    """Start to read a chunk."""
    rows, tiles = room
    of_streams, of_rows, of_weights = places
    for a in gl.static_range(M):
        copy(rows[a], streams + (a * stream_step + chunk * _COLUMNS) + of_streams)
    if WRITE:
        copy(rows[M], y + chunk * _COLUMNS + of_rows)
    for i in gl.static_range(TILES):
        copy(tiles[i], pieces + (chunk * TILES + i) * (M * _TILE) + of_weights)
    async_copy.commit_group()


@gluon.jit
def _read(rows, M: gl.constexpr, WRITE: gl.constexpr):
    """A chunk of the streams and of y, as float32; if nothing is written, the streams as they
    are."""
    parts = ()
    for a in gl.static_range(M + 1 if WRITE else M):
        part = rows[a].load(row_layout(gl.num_warps()))
        parts += (_widened(part) if WRITE else part,)
    return parts


@gluon.jit
def _expanded(parts, gains, carries, b: gl.constexpr, M: gl.constexpr):
    """The new stream b: what y and the old streams give to it."""
    value = gains[b][:, None] * parts[M]
    for a in gl.static_range(M):
        value += carries[a * M + b][:, None] * parts[a]
    return _rounded(value)


@gluon.jit
def _chunk(
    room, shares, gains, carries, goal, step, there,
    M: gl.constexpr, TILES: gl.constexpr,
    WRITE: gl.constexpr, KEEP: gl.constexpr, COLLAPSE: gl.constexpr,
):  # fmt: skip
    """A chunk's weighted sum of the new streams, their squares, their products. goal: where the
    new stream 0 goes, the others `step` behind each other."""
    rows, tiles = room
    parts = _read(rows, M, WRITE)
    LAYOUT: gl.constexpr = row_layout(gl.num_warps())
    ROWS: gl.constexpr = rows[0].shape[0]
    collapse = gl.zeros([ROWS, _COLUMNS], gl.float32, LAYOUT)
    square = gl.zeros([ROWS, _COLUMNS], gl.float32, LAYOUT)
    products = no_products(TILES, ROWS)
    for b in gl.static_range(M):
        new = _expanded(parts, gains, carries, b, M) if WRITE else parts[b]
        if KEEP:
            gl.store(goal + b * step, new, mask=there)
        wide = _widened(new)
        if COLLAPSE:
            collapse += shares[b][:, None] * wide
        if TILES > 0:
            square += wide * wide
            products = multiplied(new, tiles, b, products, M)
    return collapse, square, products


@gluon.jit(do_not_specialize=["num_rows"])
def tile_hopper(
    streams, stream_row, stream_step, pre, y, post, comb, written, collapsed, pieces, partials,
    num_rows,
    D: gl.constexpr, M: gl.constexpr, N: gl.constexpr, FOLD: gl.constexpr,
    WRITE: gl.constexpr, KEEP: gl.constexpr, COLLAPSE: gl.constexpr, MIX: gl.constexpr,
):  # fmt: skip
    """As `hyper_tile.tile`, for D of whole groups of chunks; pieces: of fn, as `hyper_pieces` cuts
    it. Rows that are not there are read as the last one.
    """
    # The second kernel's programs may come as soon as there is room: they wait for this one's end.
    chain.release(True)
    ROWS: gl.constexpr = 8 * gl.num_warps()
    GROUPS: gl.constexpr = M * (M + 2) // _GROUP if MIX else 0
    TILES: gl.constexpr = (3 * GROUPS + 1) // 2
    LAYOUT: gl.constexpr = row_layout(gl.num_warps())
    FLAT: gl.constexpr = flat_layout(gl.num_warps())
    first, begin = gl.program_id(1).to(gl.int64) * ROWS, gl.program_id(0) * FOLD
    last = (num_rows - first).to(gl.int32)
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    there = rows < last
    rows = gl.minimum(rows, last - 1)
    columns = gl.arange(0, _COLUMNS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    new_place, flat_place = rows[:, None] * (M * D) + columns, rows[:, None] * D + columns
    of_weights = begin.to(gl.int64) * (M * TILES * _TILE) + gl.arange(0, M * _TILE, layout=FLAT)
    places = rows[:, None] * stream_row + columns, flat_place, of_weights
    streams += first * stream_row + begin * _COLUMNS
    if WRITE:
        y += first * D + begin * _COLUMNS

    rooms = _rooms(M, TILES, ROWS)
    _fetch(rooms[0], 0, streams, stream_step, y, pieces, places, M, TILES, WRITE)
    shares, gains, carries, total = (), (), (), no_total(GROUPS, ROWS)
    if COLLAPSE:
        shares = _of_rows(pre + first * M, rows, M)
    if WRITE:
        gains = _of_rows(post + first * M, rows, M)
        carries = _of_rows(comb + first * (M * M), rows, M * M)
    squares = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, LAYOUT))
    for chunk in gl.static_range(FOLD):
        # What other warps fetched is there too, and they have read what is overwritten next.
        async_copy.wait_group(0)
        if chunk + 1 < FOLD:
            ahead = chunk + 1, streams, stream_step, y, pieces, places
            _fetch(rooms[(chunk + 1) % _STAGES], *ahead, M, TILES, WRITE)
        start = (begin + chunk) * _COLUMNS
        goal = written + (first * (M * D) + start) + new_place if KEEP else None
        collapse, square, products = _chunk(
            rooms[chunk % _STAGES], shares, gains, carries, goal, D, there[:, None],
            M, TILES, WRITE, KEEP, COLLAPSE,
        )  # fmt: skip
        if COLLAPSE:
            place = (first * D + start) + flat_place
            gl.store(collapsed + place, _rounded(collapse), mask=there[:, None])
        total = combined(total, products, GROUPS)
        squares += gl.sum(square, 1)
    if MIX:
        partials += (gl.program_id(0).to(gl.int64) * num_rows + first) * N
        store_total(partials, total, last, N)
        gl.store(partials + rows * N + M * (M + 2), squares, mask=there)
