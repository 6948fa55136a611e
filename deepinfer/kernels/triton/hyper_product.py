"""Products of `hyper_hopper`: new streams times the pieces of `hyper_pieces`, in Gluon.

A thread has eight neighbouring columns of one row: what it writes to a stream is, as it lies in
registers, what the tensor core takes. Rows are the product's columns, coefficients its rows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from deepinfer.kernels.triton.hyper_pieces import GROUP

_GROUP: gl.constexpr = gl.constexpr(GROUP)


@gluon.constexpr_function
def row_layout(warps):
    """[ROWS, COLUMNS]: eight columns of a row a thread, eight rows a warp."""
    return gl.BlockedLayout([1, 8], [8, 4], [warps, 1], [1, 0])


@gluon.constexpr_function
def flat_layout(warps):
    """Weights as they lie, 16 bytes a thread."""
    return gl.BlockedLayout([8], [32], [warps], [0])


@gluon.constexpr_function
def _sums_layout(warps):
    """[16, ROWS]: of products."""
    return gl.NVMMADistributedLayout([2, 0], [1, warps], [16, 8])


@gluon.jit
def _as_columns(x):
    """x [ROWS, COLUMNS] as two second operands of 16 terms. Which column is which term is our
    choice: so that no number moves to another thread."""
    LAYOUT: gl.constexpr = gl.DotOperandLayout(1, _sums_layout(gl.num_warps()), 2)
    ROWS: gl.constexpr = x.shape[0]
    both = gl.split(gl.permute(gl.reshape(x, (ROWS, 4, 2, 2, 2)), (3, 1, 4, 0, 2)))
    operands = ()
    for i in gl.static_range(2):
        operands += (gl.convert_layout(gl.reshape(both[i], (16, ROWS)), LAYOUT),)
    return operands


@gluon.jit
def _as_rows(weight):
    """Half a tile of weights as a first operand, its terms in the same order."""
    LAYOUT: gl.constexpr = gl.DotOperandLayout(0, _sums_layout(gl.num_warps()), 2)
    weight = gl.permute(gl.reshape(weight, (8, 4, 2, 2, 2)), (3, 0, 2, 1, 4))
    return gl.convert_layout(gl.reshape(weight, (16, 16)), LAYOUT)


@gluon.jit
def _halves(x):
    """x [16, ROWS] as two of eight."""
    return gl.split(gl.permute(gl.reshape(x, (2, _GROUP, x.shape[1])), (1, 2, 0)))


@gluon.jit
def no_products(TILES: gl.constexpr, ROWS: gl.constexpr):
    """What `multiplied` begins with: zeros."""
    products = ()
    for _ in gl.static_range(TILES):
        products += (gl.zeros([16, ROWS], gl.float32, _sums_layout(gl.num_warps())),)
    return products


@gluon.jit
def no_total(GROUPS: gl.constexpr, ROWS: gl.constexpr):
    """What `combined` begins with: zeros."""
    total = ()
    for _ in gl.static_range(GROUPS):
        total += (_halves(gl.zeros([16, ROWS], gl.float32, _sums_layout(gl.num_warps())))[0],)
    return total


@gluon.jit
def multiplied(x, tiles, b: gl.constexpr, products, M: gl.constexpr):
    """products + those of the new stream b, x [ROWS, COLUMNS]; tiles: the chunk's weights, in
    shared memory. What waits for each other does not follow at once."""
    HALF: gl.constexpr = tiles[0].shape[0] // (2 * M)
    operands = _as_columns(x)
    for half in gl.static_range(2):
        sums = ()
        for i in gl.static_range(len(tiles)):
            # Every warp reads all of it.
            piece = tiles[i].slice((2 * b + half) * HALF, HALF)
            weight = _as_rows(piece.load(flat_layout(gl.num_warps())))
            sums += (mma_v2(weight, operands[half], products[i]),)
        products = sums
    return products


@gluon.jit
def combined(total, products, GROUPS: gl.constexpr):
    """total + the products, the small pieces' first. In groups of coefficients, [GROUP, ROWS]."""
    parts, sums = (), ()
    for i in gl.static_range(len(products)):
        parts += _halves(products[i])
    for i in gl.static_range(GROUPS):
        sums += (total[i] + (parts[i] + (parts[GROUPS + i] + parts[2 * GROUPS + i])),)
    return sums


@gluon.jit
def store_total(goal, total, num_rows, N: gl.constexpr):
    """total as the first of N numbers of each row."""
    LAYOUT: gl.constexpr = total[0].type.layout
    row = gl.arange(0, total[0].shape[1], layout=gl.SliceLayout(0, LAYOUT))[None, :]
    output = gl.arange(0, _GROUP, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    for i in gl.static_range(len(total)):
        gl.store(goal + row * N + (_GROUP * i + output), total[i], mask=row < num_rows)
