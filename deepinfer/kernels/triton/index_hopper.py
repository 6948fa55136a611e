"""Index scores of many rows of a sequence on SM90, in Gluon (spec 7.4).

A program has 16 rows and a span of the entries. Four warps ask for tiles of FP8 keys, which
index_operands.py has unpacked; two groups of four multiply them with the heads of eight rows each,
four rows at a time: while the tensor core has these four, the warps sum over the heads of the four
before.
"""

from functools import cache

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from deepinfer.kernels.triton.device import num_processors
from deepinfer.kernels.triton.gluon_names import copy_tile
from deepinfer.kernels.triton.index_operands import HEADS as HEADS_OF_ROW
from deepinfer.kernels.triton.index_operands import operands
from deepinfer.kernels.triton.sizes import cdiv
from deepinfer.kernels.values import EntryView

TILE: gl.constexpr = gl.constexpr(64)  # keys of a product
ROWS: gl.constexpr = gl.constexpr(4)  # rows of a product: 128 columns
STAGES: gl.constexpr = gl.constexpr(8)  # tiles in shared memory
_HEADS: gl.constexpr = gl.constexpr(HEADS_OF_ROW)
_WIDE: gl.constexpr = gl.constexpr(ROWS.value * HEADS_OF_ROW)
_REGISTERS: gl.constexpr = gl.constexpr(240)  # of threads that multiply; 24 are left for others
_ROWS = 4 * ROWS.value  # of a program
_START = 5  # what a program costs beside its tiles, in tiles


def score_rows(
    scores: Tensor, query: Tensor, weights: Tensor, keys: Tensor, view: EntryView, rows: Tensor
) -> None:
    """Writes `index_scores` of rows int64 [n], all of one sequence, -1 for none; 32 heads.

    n is 8 at least. Beside what `index_scores` says, relu(query . key) is not rounded. A score has
    the same bits in every batch, but not those of other kernels.
    """
    made = operands(query, weights, keys, view, rows)
    codes = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
    num_tiles, groups = cdiv(view.num_entries, TILE.value), cdiv(len(rows), _ROWS)
    span = _tiles_of_a_program(num_tiles, groups, num_processors(query.device))
    _scores[(groups, cdiv(num_tiles, span))](
        scores,
        TensorDescriptor.from_tensor(made.keys, [TILE.value, 128], codes),
        TensorDescriptor.from_tensor(made.queries, [_WIDE.value, 128], codes),
        made.weights,
        made.sizes,
        made.factors,
        view.num_visible,
        rows,
        len(rows),
        view.num_entries,
        span * TILE.value,
        num_warps=4,
    )


@cache
def _tiles_of_a_program(num_tiles: int, groups: int, processors: int) -> int:
    """A processor takes one program at a time: so many tiles that the last round ends soonest."""

    def time(parts: int) -> int:
        return cdiv(groups * parts, processors) * (cdiv(num_tiles, parts) + _START)

    return cdiv(num_tiles, min(range(1, min(num_tiles, 128) + 1), key=time))


def _add_across(lane: int) -> gl.constexpr:
    """PTX: of two numbers in each of two threads, the sum of the first ones in one thread and of
    the second ones in the other. $3 is a thread's number in its four."""
    return gl.constexpr(
        f"""{{
        .reg .pred p;
        .reg .b32 bit, sent, kept;
        and.b32 bit, $3, {lane};
        setp.ne.s32 p, bit, 0;
        selp.b32 sent, $1, $2, p;
        selp.b32 kept, $2, $1, p;
        shfl.sync.bfly.b32 sent, sent, {lane}, 31, 0xffffffff;
        add.f32 $0, kept, sent;
        }}"""
    )


_ADD_NEXT: gl.constexpr = _add_across(1)
_ADD_SECOND: gl.constexpr = _add_across(2)


@gluon.constexpr_function
def _match_layout():
    """[keys, heads of rows], of a product."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _WIDE.value, 32])


@gluon.constexpr_function
def _scores_layout():
    """[keys, rows]: a thread has two keys of a row. What `_summed` leaves."""
    lanes = [[0, 1], [0, 2], [2, 0], [4, 0], [8, 0]]
    warps, shape = [[16, 0], [32, 0]], [TILE.value, ROWS.value]
    return gl.DistributedLinearLayout([[1, 0]], lanes, warps, [], shape)


@gluon.jit
def _shared_out(x, ASSEMBLY: gl.constexpr):
    """[keys, rows, 4] -> [keys, rows / 2, 4]: half of the rows for each of two threads."""
    pairs = gl.permute(gl.reshape(x, (TILE, x.shape[1] // 2, 2, 4)), (0, 1, 3, 2))
    even, odd = gl.split(pairs)
    lane = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, even.type.layout)))
    lane, _ = gl.broadcast(gl.expand_dims(gl.expand_dims(lane, 0), 1), even)
    return gl.inline_asm_elementwise(
        ASSEMBLY, "=r,r,r,r", [even, odd, lane], gl.float32, is_pure=False, pack=1
    )


@gluon.jit
def _summed(match, weight):
    """Products [TILE, ROWS * heads], in the order of their keys, to [TILE, ROWS]: the sum over
    heads of weight * 2 * relu(match), in each thread first and then of a row's four threads."""
    # An addition goes where multiplications go, a maximum to a pipe of half the rate.
    each = (match + gl.abs(match)) * weight[None, :]
    # Keys are warp, half, eighth of a warp's 16; a thread has two heads of every eight.
    each = gl.reshape(each, (4, 2, 8, ROWS, _HEADS // 8, 4, 2))
    each = gl.permute(each, (0, 2, 1, 3, 5, 4, 6))
    total = gl.sum(gl.reshape(each, (TILE, ROWS, 4, _HEADS // 4)), 3)
    total = _shared_out(_shared_out(total, _ADD_NEXT), _ADD_SECOND)
    total = gl.reshape(total, (TILE, ROWS))
    return gl.convert_layout(total, _scores_layout(), assert_trivial=True)


@gluon.jit
def _of_rows(scores, weights, sizes, num_visible, rows, first, num_rows, num_entries):
    """Of ROWS rows from `first` on, as their scores lie in threads: halves of weights, sizes, how
    many entries they see, how many they have to be told of, and where."""
    MATCH: gl.constexpr = _match_layout()
    SCORES: gl.constexpr = _scores_layout()
    column = gl.arange(0, _WIDE, layout=gl.SliceLayout(0, MATCH))
    is_column = first + column // _HEADS < num_rows
    weight = 0.5 * gl.load(weights + first * _HEADS + column, mask=is_column, other=0.0)
    place = first + gl.arange(0, ROWS, layout=gl.SliceLayout(0, SCORES))
    row = gl.load(rows + place, mask=place < num_rows, other=-1)
    size = gl.load(sizes + place, mask=place < num_rows, other=0.0)
    visible = gl.load(num_visible + row, mask=row >= 0, other=0).to(gl.int32)
    told = gl.where(row >= 0, num_entries, 0)
    out = scores + gl.maximum(row, 0) * num_entries
    return weight, size[None, :], visible[None, :], told[None, :], out[None, :]


@gluon.jit
def _put(match, factor, entry, of_rows):
    """Scores of a tile, from its products."""
    weight, size, visible, told, out = of_rows
    # A key's code 255 makes an infinite factor, and that times 0 is NaN: it must show.
    by = factor[:, None] * size
    total = _summed(match, weight) * by + by * 0.0
    entry = entry[:, None]
    total = gl.where(entry < visible, total, -float("inf"))
    gl.store(out + entry, total.to(gl.bfloat16), mask=entry < told)


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, ways, num_tiles, all_tiles,
    scores, weights, sizes, factors, num_visible, rows, first, num_rows, start, num_entries,
):  # fmt: skip
    """Scores of eight rows from `first` + 8 * WHICH on."""
    queries, loaded, ring, full, empty = ways
    first += WHICH * (2 * ROWS)
    left = _of_rows(scores, weights, sizes, num_visible, rows, first, num_rows, num_entries)
    first += ROWS
    right = _of_rows(scores, weights, sizes, num_visible, rows, first, num_rows, num_entries)
    of_left = queries.index(2 * WHICH).permute((1, 0))
    of_right = queries.index(2 * WHICH + 1).permute((1, 0))
    within = start + gl.arange(0, TILE, layout=gl.SliceLayout(1, _scores_layout()))
    # What no row of the program sees is not worth multiplying.
    unseen = gl.full((TILE, ROWS), -float("inf"), gl.bfloat16, _scores_layout())
    for tile in range(all_tiles - num_tiles):
        entry = (within + (num_tiles + tile) * TILE)[:, None]
        gl.store(left[4] + entry, unseen, mask=entry < left[3])
        gl.store(right[4] + entry, unseen, mask=entry < right[3])
    nothing = gl.zeros((TILE, _WIDE), gl.float32, _match_layout())
    mbarrier.wait(loaded, 0)
    if num_tiles > 0:
        factor = gl.load(factors + within)
        mbarrier.wait(full.index(0), 0)
        match = warpgroup_mma(ring.index(0), of_left, nothing, use_acc=False)
        ahead = warpgroup_mma(ring.index(0), of_right, nothing, use_acc=False, is_async=True)
        for tile in range(num_tiles):
            entry = within + tile * TILE
            # After the last tile that one again, for nothing.
            number = gl.minimum(tile + 1, num_tiles - 1)
            next_key = ring.index(number % STAGES)
            mbarrier.wait(full.index(number % STAGES), (number // STAGES) & 1)
            next_factor = gl.load(factors + within + number * TILE)
            _put(match, factor, entry, left)
            match = warpgroup_mma_wait(0, deps=[ahead])
            ahead = warpgroup_mma(next_key, of_left, nothing, use_acc=False, is_async=True)
            mbarrier.arrive(empty.index(tile % STAGES), count=1)
            # A branch, so that ptxas does not scatter the product over what follows.
            mbarrier.wait(loaded, 0)
            _put(match, factor, entry, right)
            match, factor = warpgroup_mma_wait(0, deps=[ahead]), next_factor
            ahead = warpgroup_mma(next_key, of_right, nothing, use_acc=False, is_async=True)
        warpgroup_mma_wait(0, deps=[ahead])


@gluon.jit
def _fetch(key_codes, query_codes, ways, num_tiles, first, start):
    """Asks for the queries, and for tile after tile as there is room for it."""
    queries, loaded, ring, full, empty = ways
    mbarrier.expect(loaded, 4 * _WIDE * 128)
    for part in gl.static_range(4):
        head = (first + part * ROWS) * _HEADS
        copy_tile(query_codes, [head, 0], loaded, queries.index(part))
    for tile in range(num_tiles):
        stage = tile % STAGES
        mbarrier.wait(empty.index(stage), ((tile // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), TILE * 128)
        key = start + tile * TILE
        copy_tile(key_codes, [key, 0], full.index(stage), ring.index(stage))


@gluon.jit(do_not_specialize=["num_rows"])
def _scores(
    scores, key_codes, query_codes, weights, sizes, factors,
    num_visible, rows, num_rows, num_entries, span,
):  # fmt: skip
    """Entries [span * program 1, ...) for rows [16 * program 0, ...)."""
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    queries = gl.allocate_shared_memory(gl.float8e5, [4, _WIDE, 128], query_codes.layout)
    ring = gl.allocate_shared_memory(gl.float8e5, [STAGES, TILE, 128], key_codes.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    mbarrier.init(loaded, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    fence_async_shared()

    first, start = gl.program_id(0) * (4 * ROWS), gl.program_id(1) * span
    stop = gl.minimum(start + span, num_entries)
    ALL: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    place = first + gl.arange(0, 4 * ROWS, layout=ALL)
    row = gl.load(rows + place, mask=place < num_rows, other=-1)
    most = gl.max(gl.load(num_visible + row, mask=row >= 0, other=0).to(gl.int32), 0)
    num_tiles = gl.maximum(gl.cdiv(gl.minimum(most, stop) - start, TILE), 0)
    ways = (queries, loaded, ring, full, empty)
    all_tiles = gl.cdiv(stop - start, TILE)
    gl.warp_specialize(
        [
            (_fetch, (key_codes, query_codes, ways, num_tiles, first, start)),
            (
                _multiply,
                (
                    gl.constexpr(0), ways, num_tiles, all_tiles, scores, weights, sizes, factors,
                    num_visible, rows, first, num_rows, start, num_entries,
                ),
            ),
            (
                _multiply,
                (
                    gl.constexpr(1), ways, num_tiles, all_tiles, scores, weights, sizes, factors,
                    num_visible, rows, first, num_rows, start, num_entries,
                ),
            ),
        ],
        [4, 4],
        [_REGISTERS, _REGISTERS],
    )  # fmt: skip
