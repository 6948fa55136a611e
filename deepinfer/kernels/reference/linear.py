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
_PROBE_SMALL = 1 << 14
_PLAIN_ELEMENTS = 1 << 19
# Columns of a batched product's probe: more than the few for which libraries have special cases.
_BATCHED_COLUMNS = 64


def _keep(x: Tensor) -> Tensor:
    return x


@cache
def row_tile(dtype: torch.dtype, num_inputs: int, num_outputs: int, num_threads: int) -> int:
    """Fewest rows such that products of any multiple of them give each row the same bits (CPU).

    0 if no tile does, as with very small weights and odd widths. Measured, not assumed: the answer
    differs between sizes, libraries and processors. (num_threads is there because a library may
    decide by it too.)
    """
    shape = min(num_inputs, _PROBE_INPUTS), min(num_outputs, _PROBE_OUTPUTS)
    # A small product has few results to betray another order of summation, and is cheap to repeat.
    is_small = shape[0] * shape[1] <= _PROBE_SMALL
    multiples = range(1, _PROBE_ROWS + 1) if is_small else (1, 2, 3, 5, 7, 16, _PROBE_ROWS)
    probes = [_probe(dtype, *shape, seed) for seed in range(4 if is_small else 1)]
    if not all(_same_at_every_place(rows, weight, expected) for rows, weight, expected in probes):
        return 0
    for tile in _TILES:
        counts = sorted({min(_PROBE_ROWS, tile * multiple) for multiple in multiples})
        if all(_agrees(*probe, counts) for probe in probes):
            return tile
    return 0


def _probe(
    dtype: torch.dtype, num_inputs: int, num_outputs: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, weight and product in which every term meets its negative.

    What is left is rounding alone, which shows the order of summation even where the result is
    rounded to bfloat16. In random places: at a fixed distance, two terms could meet in one lane of
    every routine, and hide the difference between them.
    """
    generator = torch.Generator().manual_seed(seed)
    half, odd = num_inputs // 2, num_inputs % 2
    right = torch.randn(num_outputs, half + odd, generator=generator)
    left = torch.randn(_PROBE_ROWS, half + odd, generator=generator)
    left[:, half:] = 0  # the middle one of an odd number meets nothing
    places = torch.randperm(num_inputs, generator=generator)
    weight = torch.cat((right, -right[:, :half]), 1)[:, places].to(dtype)
    rows = torch.cat((left, left[:, :half]), 1)[:, places].to(dtype)
    return rows, weight, F.linear(rows, weight)


def _same_at_every_place(rows: Tensor, weight: Tensor, expected: Tensor) -> bool:
    """Whether a row's place does not matter. It does where rows are not aligned alike."""
    return all(
        torch.equal(F.linear(rows.roll(places, 0), weight), expected.roll(places, 0))
        for places in range(1, 8)
    )


def _agrees(rows: Tensor, weight: Tensor, expected: Tensor, counts: list[int]) -> bool:
    """Whether the first and the last rows, counted from either end, come out right."""
    return all(
        torch.equal(F.linear(rows[:count], weight), expected[:count])
        and torch.equal(F.linear(rows[-count:], weight), expected[-count:])
        for count in counts
    )


def _tile(x: Tensor, num_outputs: int) -> int:
    """`row_tile` of a product of x [..., in]."""
    if x.device.type != "cpu":
        return 1
    return row_tile(x.dtype, x.shape[-1], num_outputs, torch.get_num_threads())


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, in] times weight [out, in], in tiles of rows where the device is a CPU."""
    num_rows, tile = x.shape[0], _tile(x, weight.shape[0])
    if tile == 0:
        return _plain_product(x, weight)
    missing = -num_rows % tile
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    if x.shape[0] <= _MAX_ROWS:
        product = F.linear(x, weight)
    else:
        product = torch.cat([F.linear(part, weight) for part in x.split(_MAX_ROWS)])
    return product[:num_rows] if missing else product


def _plain_product(x: Tensor, weight: Tensor) -> Tensor:
    """The same by multiplying and adding: slow, but a sum along a row knows no other row."""
    rows = max(1, _PLAIN_ELEMENTS // weight.numel())
    wide = weight.to(torch.float32)
    parts = [(part.to(torch.float32)[:, None] * wide).sum(-1) for part in x.split(rows)]
    return torch.cat(parts).to(x.dtype)


def row_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows [B, M, K] times matrix [B, K, N] -> [B, M, N], row by row the same bits for every M."""
    if rows.device.type == "cpu" and torch.get_num_threads() > 1:
        # How a library shares a batch of products among threads depends on how many there are.
        return torch.stack([linear(r, m.T) for r, m in zip(rows, matrix, strict=True)])
    num_rows = rows.shape[1]
    # Never 0 for so many columns; and the columns of a store are a multiple of 64 anyway.
    missing = -num_rows % max(1, _tile(rows, _BATCHED_COLUMNS))
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
