"""What it costs that a row's bits do not depend on its batch: steps with and without tiles of rows.

Both run in turn. Without tiles, each product has the rows that there are, and the library may add
in another order for each number of them.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.bench.engine import milliseconds
from deepinfer.bench.steps import Case, make_step
from deepinfer.bench.toys import toy_config, toy_network
from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.kernels.reference import moe

CASES = (Case(1, 512), Case(8, 512), Case(32, 512), Case(1, 0, num_rows=512))


def untiled_kernels() -> KernelSet:
    """The reference ops with the library's products as they are."""
    return replace(
        load_kernels(),
        linear=_library,
        linear_float32=_library_float32,
        linear_quantised=_library,
        experts=partial(moe.experts, product=_library),
    )


def invariance_lines(toy: str, dtype: str, num_repeats: int) -> Iterator[str]:
    """A table, line by line: medians in milliseconds, and tiled over untiled."""
    config = toy_config(toy)
    networks = [toy_network(config, k, dtype) for k in (load_kernels(), untiled_kernels())]
    yield f"{'step':22}{'context':>8}{'tiled ms':>10}{'untiled ms':>12}{'cost':>7}"
    for case in CASES:
        steps = [make_step(network, case) for network in networks]
        times: list[list[float]] = [[], []]
        for _ in range(num_repeats + 1):
            for found, step in zip(times, steps, strict=True):
                found.append(milliseconds(step))
        tiled, untiled = (median(found[1:]) for found in times)  # the first run warms up
        yield (
            f"{case.words:22}{case.context:>8,}{tiled:>10.1f}{untiled:>12.1f}"
            f"{tiled / untiled:>7.2f}"
        )


def _library(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype))


def _library_float32(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x.to(torch.float32), weight.to(torch.float32))
