"""The weight of a hyper-connection as the tensor core takes it: cut once, when it is loaded.

A float32 number is three bfloat16 numbers that add up to it, so that products with them are
float32's own. `hyper_hopper` reads them in the order that its threads want.
"""

import torch
from torch import Tensor

COLUMNS = 32  # of a stream, in a chunk
GROUP = 8  # coefficients that stay together
TILE_ROWS = 2 * GROUP
_PIECES = 3


def cut(fn: Tensor, num_streams: int) -> Tensor:
    """fn float32 [M * (M + 2), M * D] -> bfloat16 [D / COLUMNS, tiles, M * TILE_ROWS * COLUMNS].

    The first pieces of all coefficients, then the second, then the third, and zeros up to a whole
    tile; of a tile what each thread takes in one go lies together.
    """
    pieces = torch.stack(_pieces(fn.float()))
    groups = pieces.reshape(-1, GROUP, fn.shape[1])
    if len(groups) % 2:
        groups = torch.cat((groups, torch.zeros_like(groups[:1])))
    # Within a chunk: the thread's four, the product's two, and 2 x 2 terms of a product.
    shape = (-1, 2, GROUP, num_streams, fn.shape[1] // (num_streams * COLUMNS), 4, 2, 2, 2)
    tiles, half, row, stream, chunk, thread, product, place, term = range(9)
    order = (chunk, tiles, stream, product, row, thread, place, half, term)
    return groups.reshape(shape).permute(order).flatten(2).contiguous()


def _pieces(x: Tensor) -> list[Tensor]:
    """float32 as _PIECES bfloat16 numbers, cut off by bits."""
    pieces = []
    for _ in range(_PIECES):
        piece = (x.contiguous().view(torch.int32) & -65536).view(torch.float32)
        pieces.append(piece.to(torch.bfloat16))
        x = x - piece
    return pieces
