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
# Larger weights are probed at these sizes, or a probe would take seconds.
_PROBE_INPUTS, _PROBE_OUTPUTS, _PROBE_ROWS = 4096, 512, 96
# Columns of a batched product's probe: more than the few for which libraries have special cases.
_BATCHED_COLUMNS = 64


def _keep(x: Tensor) -> Tensor:
    return x


@cache
def row_tile(dtype: torch.dtype, num_inputs: int, num_outputs: int, num_threads: int) -> int:
    """Fewest rows such that products of any multiple of them give each row the same bits (CPU).

    Measured, not assumed: the answer differs between sizes, libraries and processors. The largest
    tile is returned if none passes; the law on batches would then fail, and say so. (num_threads is
    there because a library may decide by it too.)
    """
    generator = torch.Generator().manual_seed(0)
    # Every product meets its negative: what is left is rounding alone, which shows the order of
    # summation even where the result is rounded to bfloat16.
    shape = (min(num_outputs, _PROBE_OUTPUTS), max(1, min(num_inputs, _PROBE_INPUTS) // 2))
    half = torch.randn(shape, generator=generator).to(dtype)
    weight = torch.cat((half, -half), 1)
    rows = torch.randn(_PROBE_ROWS, shape[1], generator=generator).to(dtype).repeat(1, 2)
    expected = F.linear(rows, weight)
    return next((t for t in _TILES if _agrees(rows, weight, expected, t)), _TILES[-1])


def _agrees(rows: Tensor, weight: Tensor, expected: Tensor, tile: int) -> bool:
    """Whether some first and last rows, in multiples of `tile`, come out as in the whole."""
    for count in {min(_PROBE_ROWS, tile * multiple) for multiple in (1, 2, 3, 5, 7, 64 // tile)}:
        if not torch.equal(F.linear(rows[:count], weight), expected[:count]):
            return False
        if not torch.equal(F.linear(rows[-count:], weight), expected[-count:]):
            return False
    return True


def _missing_rows(x: Tensor, num_rows: int, num_outputs: int) -> int:
    """Rows of padding that a product of `num_rows` rows of x [..., in] needs."""
    if x.device.type != "cpu":
        return 0
    return -num_rows % row_tile(x.dtype, x.shape[-1], num_outputs, torch.get_num_threads())


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, in] times weight [out, in], in tiles of rows where the device is a CPU."""
    num_rows = x.shape[0]
    missing = _missing_rows(x, num_rows, weight.shape[0])
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    if x.shape[0] <= _MAX_ROWS:
        product = F.linear(x, weight)
    else:
        product = torch.cat([F.linear(part, weight) for part in x.split(_MAX_ROWS)])
    return product[:num_rows] if missing else product


def row_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows [B, M, K] times matrix [B, K, N] -> [B, M, N], row by row the same bits for every M."""
    num_rows = rows.shape[1]
    missing = _missing_rows(rows, num_rows, _BATCHED_COLUMNS)
    if not missing:
        return rows @ matrix
    return (F.pad(rows, (0, 0, 0, missing)) @ matrix)[:, :num_rows]


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., in] times weight [out, in] -> [..., out] in x's dtype, accumulated in float32."""
    product = _product(x.reshape(-1, x.shape[-1]), weight.to(x.dtype))
    return product if x.dim() == 2 else product.view(*x.shape[:-1], -1)


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
