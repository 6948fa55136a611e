"""What this GPU can do at most, measured: the roofline that a step is held against."""

from typing import NamedTuple

import torch

from deepinfer.bench.gpu.cases import Randoms
from deepinfer.bench.gpu.timing import microseconds
from deepinfer.kernels.triton.read import read

_READ_BYTES = 4 << 30
_SIZE = 8192


class Ceilings(NamedTuple):
    """Bytes a second read from memory, and bfloat16 operations a second of one large product."""

    bytes_per_s: float
    flops_per_s: float


def measure_ceilings() -> Ceilings:
    """Takes a few seconds, and 5 GB."""
    randoms = Randoms()
    words = randoms.integers(0, 1 << 31, _READ_BYTES // 4, dtype=torch.int32)
    read_us = microseconds([lambda: read(words)])
    a, b = (randoms.normal(_SIZE, _SIZE) for _ in range(2))
    product_us = microseconds([lambda: torch.mm(a, b)])
    return Ceilings(_READ_BYTES / read_us * 1e6, 2 * _SIZE**3 / product_us * 1e6)
