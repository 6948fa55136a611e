"""Products of rows with weights. A weight kept in another dtype than the rows is cast for the call.

Every row's result has the same bits alone and in any batch. Libraries break that for small batches:
they switch to another order of summation below some number of rows. `row_tile` finds the number
where this machine's library stops doing so, and the rows are padded to a multiple of it.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows of one product at most: bounds what a library may decide by size.
_MAX_ROWS = 1024
_TILES = (1, 2, 4, 8, 16, 32)
# (in, out) sizes that the probe looks at: small and large, even and odd.
_PROBES = ((64, 64), (512, 512), (512, 24), (2048, 40), (33, 1000))


def _keep(x: Tensor) -> Tensor:
    return x


@cache
def row_tile(dtype: torch.dtype, num_threads: int) -> int:
    """Fewest rows such that products of any multiple of them give each row the same bits (CPU).

    Measured, not assumed: the answer differs between libraries and processors. The largest tile
    tried is returned if none passes; the law on batches would then fail, and say so.
    """
    generator = torch.Generator().manual_seed(0)
    best = 0
    for num_inputs, num_outputs in _PROBES:
        weight = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)
        rows = torch.randn(96, num_inputs, generator=generator).to(dtype)
        expected = F.linear(rows, weight)
        while best < len(_TILES) - 1 and not _agrees(rows, weight, expected, _TILES[best]):
            best += 1
    return _TILES[best]


def _agrees(rows: Tensor, weight: Tensor, expected: Tensor, tile: int) -> bool:
    """Whether some first and last rows, in multiples of `tile`, come out as in the whole."""
    for count in {min(96, tile * multiple) for multiple in (1, 2, 3, 5, 7, 64 // tile)}:
        if not torch.equal(F.linear(rows[:count], weight), expected[:count]):
            return False
        if not torch.equal(F.linear(rows[-count:], weight), expected[-count:]):
            return False
    return True


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, in] times weight [out, in], in tiles of rows where the device is a CPU."""
    if x.device.type != "cpu":
        return F.linear(x, weight)
    num_rows = x.shape[0]
    missing = -num_rows % row_tile(x.dtype, torch.get_num_threads())
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    if x.shape[0] <= _MAX_ROWS:
        product = F.linear(x, weight)
    else:
        product = torch.cat([F.linear(part, weight) for part in x.split(_MAX_ROWS)])
    return product[:num_rows] if missing else product


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., in] times weight [out, in] -> [..., out] in x's dtype, accumulated in float32."""
    weight = weight.to(x.dtype)
    if x.dim() == 2:
        return _product(x, weight)
    return _product(x.flatten(0, -2), weight).unflatten(0, x.shape[:-1])


def linear_float32(x: Tensor, weight: Tensor) -> Tensor:
    """As `linear`, with a float32 result that is never rounded to x's dtype (head, router, pair
    compressor).
    """
    return linear(x.to(torch.float32), weight.to(torch.float32))


def linear_quantised(
    x: Tensor, weight: Tensor, *, quantise: Callable[[Tensor], Tensor] = _keep
) -> Tensor:
    """As `linear`, for weights that the release stores in FP8; `quantise` rounds rows first."""
    return linear(quantise(x), weight)


def grouped_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, G, in] times weight [G * out, in], group by group -> [T, G * out] (spec 7.7)."""
    groups = weight.to(x.dtype).unflatten(0, (x.shape[1], -1))
    return torch.cat([_product(x[:, g], group) for g, group in enumerate(groups)], 1)
