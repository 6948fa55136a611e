"""What a case of `deepinfer bench kernels` is, and the released model's sizes."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.bench.gpu.timing import Call
from deepinfer.bench.steps import fill_packed
from deepinfer.config.released import released_config

CONFIG = released_config()
HIDDEN, INNER = CONFIG.hidden_size, CONFIG.moe_intermediate_size
HEADS, CHANNELS, WINDOW = CONFIG.num_attention_heads, CONFIG.head_dim, CONFIG.sliding_window
INDEX_HEADS, INDEX_CHANNELS, TOPK = CONFIG.index_n_heads, CONFIG.index_head_dim, CONFIG.index_topk
EXPERTS_PER_TOKEN, STREAMS = CONFIG.num_experts_per_tok, CONFIG.hc_mult
# More than the L2 cache (60 MiB on an H200) several times over.
COLD_BYTES = 200_000_000


class Case(NamedTuple):
    """calls: the same work on inputs of their own. num_bytes: what one of them must move at least;
    num_flops: what it computes; 0 where that says nothing."""

    name: str
    calls: Sequence[Call]
    num_bytes: float = 0
    num_flops: float = 0


class Randoms:
    """Random tensors on the GPU, the same in every run; never zeros, which cost less power."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator("cuda").manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Of mean 0 and deviation 1."""
        return torch.randn(shape, device="cuda", generator=self._generator).to(dtype)

    def uniform(self, *shape: int) -> Tensor:
        """float32 from 0 to 1."""
        return torch.rand(shape, device="cuda", generator=self._generator)

    def integers(
        self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64
    ) -> Tensor:
        """From low to high - 1."""
        options = {"device": "cuda", "dtype": dtype, "generator": self._generator}
        return torch.randint(low, high, shape, **options)

    def packed(self, num_rows: int, num_bytes: int) -> Tensor:
        """uint8 [num_rows, num_bytes]: rows of one of the caches' formats."""
        rows = torch.empty(num_rows, num_bytes, dtype=torch.uint8, device="cuda")
        fill_packed(rows, CONFIG, self._generator)
        return rows

    def order(self, num: int) -> Tensor:
        """int64 [num]: 0 to num - 1, shuffled."""
        return torch.randperm(num, device="cuda", generator=self._generator)


def how_many(num_bytes: float, most: int = 16) -> int:
    """Sets of inputs of `num_bytes` each that do not fit in the L2 cache together."""
    return max(1, min(most, -(-COLD_BYTES // max(1, int(num_bytes)))))
