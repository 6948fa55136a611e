"""Cases of experts, projections, hyper-connections and what else a layer does."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.bench.gpu.cases import (
    CHANNELS,
    CONFIG,
    EXPERTS_PER_TOKEN,
    HEADS,
    HIDDEN,
    INNER,
    STREAMS,
    Case,
    Randoms,
    how_many,
)
from deepinfer.bench.gpu.timing import Call
from deepinfer.kernels.reference import quant
from deepinfer.kernels.triton import dense, hyper, linear
from deepinfer.kernels.triton.engram import engram_gate, engram_gather
from deepinfer.kernels.triton.expert_order import sort_pairs
from deepinfer.kernels.triton.expert_product import choose_tiling, grouped_product
from deepinfer.kernels.triton.expert_weights import ExpertWeights
from deepinfer.kernels.triton.experts import experts as all_of_experts
from deepinfer.kernels.triton.linear_fp8 import ROWS as SOME_ROWS
from deepinfer.kernels.triton.linear_fp8 import linear_fp8
from deepinfer.kernels.triton.packed_fp8 import pack_fp8
from deepinfer.kernels.triton.pick import pick
from deepinfer.kernels.triton.route import route
from deepinfer.kernels.values import HyperWeights, Written

_LOCAL = 48  # experts of an EP8 rank
_GROUPS = CONFIG.o_groups
_MIXED, _GROUP_INPUTS = _GROUPS * CONFIG.o_lora_rank, HEADS * CHANNELS // _GROUPS
_PROJECTIONS = {
    "wq_b": (CONFIG.q_lora_rank, HEADS * CHANNELS),
    "wq_a and wkv": (HIDDEN, CONFIG.q_lora_rank + CHANNELS),
    "wo_b": (_MIXED, HIDDEN),
    "shared gate and up": (HIDDEN, 2 * INNER),
}


def experts() -> Iterator[Case]:
    """48 experts, equal rows each: both products with packed weights, and all of the op."""
    randoms = Randoms()
    up, down = (_packed(randoms, *sizes) for sizes in ((HIDDEN, 2 * INNER), (INNER, HIDDEN)))
    packed = ExpertWeights(*up, *down, HIDDEN, INNER)
    for rows in (8, 32, 128, 1024):
        yield from _expert_cases(randoms, packed, rows)


def _packed(randoms: Randoms, num_in: int, num_out: int) -> tuple[Tensor, Tensor]:
    """Any codes, scales near 1."""
    shape = (_LOCAL, num_in // 128, num_out)
    codes = randoms.integers(-(2**31), 2**31 - 1, *shape, 16, dtype=torch.int32)
    return codes, randoms.integers(205, 212, *shape, 4, dtype=torch.uint8)


def _expert_cases(randoms: Randoms, packed: ExpertWeights, rows: int) -> Iterator[Case]:
    pairs = rows * _LOCAL
    x = randoms.normal(pairs // EXPERTS_PER_TOKEN, HIDDEN)
    ids = (torch.arange(pairs, device="cuda") % _LOCAL).view(-1, EXPERTS_PER_TOKEN).sort(-1).values
    weights = randoms.uniform(*ids.shape)
    tiling = choose_tiling(pairs, _LOCAL)
    order, tiles = sort_pairs(ids, _LOCAL, tiling.rows)
    hidden, out = randoms.normal(pairs, INNER), randoms.normal(pairs, HIDDEN)
    common = order, tiles, weights, EXPERTS_PER_TOKEN, 10.0

    def up() -> None:
        grouped_product(x, packed.gate_up, packed.gate_up_scales, hidden, common, tiling)

    def down() -> None:
        given = packed.down, packed.down_scales, out, common, tiling
        grouped_product(hidden, *given, is_down=True)

    size = HIDDEN * INNER
    packed_bytes = _LOCAL * size * 17 / 32
    name = f"{rows} rows an expert"
    yield Case(f"experts, gate and up, {name}", [up], 2 * packed_bytes, 4 * pairs * size)
    yield Case(f"experts, down, {name}", [down], packed_bytes, 2 * pairs * size)
    whole = [lambda: all_of_experts(x, ids, weights, packed, 10.0)]
    yield Case(f"experts, all, {name}", whole, 3 * packed_bytes, 6 * pairs * size)


def projections() -> Iterator[Case]:
    """Products by cuBLAS, by ours that no batch changes, and of fewer rows with FP8 weights."""
    for name, (k, n) in _PROJECTIONS.items():
        randoms = Randoms()
        weights = [_of_fp8(randoms.normal(n, k)) for _ in range(how_many(2 * k * n))]
        packed = [pack_fp8(weight) for weight in weights]
        for rows in (1, 4, 16, 32, 64, 128, 1024):
            x = randoms.normal(rows, k)
            work = 2 * (k * n + rows * (k + n)), 2 * rows * k * n
            for how, op in (("cuBLAS", F.linear), ("ours", linear.linear_invariant)):
                yield Case(f"{name}, {how}, {rows} rows", [_of(op, x, w) for w in weights], *work)
            if rows <= SOME_ROWS:
                calls = [_of(linear_fp8, x, one) for one in packed]
                yield Case(f"{name}, FP8, {rows} rows", calls, k * n, work[1])
    for rows in (1, 16, 32, 64, 128, 1024):
        randoms = Randoms()
        weights = [_of_fp8(randoms.normal(_MIXED, _GROUP_INPUTS)) for _ in range(6)]
        x, size = randoms.normal(rows, _GROUPS, _GROUP_INPUTS), _MIXED * _GROUP_INPUTS
        calls = [_of(dense.grouped_linear, x, weight) for weight in weights]
        yield Case(f"wo_a, cuBLAS, {rows} rows", calls, 2 * size, 2 * rows * size)
        if rows <= SOME_ROWS:
            calls = [_of(linear_fp8, x, pack_fp8(weight, _GROUPS)) for weight in weights]
            yield Case(f"wo_a, FP8, {rows} rows", calls, size, 2 * rows * size)


def _of_fp8(weight: Tensor) -> Tensor:
    """Rounded to what the release stores."""
    return quant.round_trip_fp8_blocks(weight.float()).to(weight.dtype)


def _of(op: Callable[..., object], *inputs: object) -> Call:
    return lambda: op(*inputs)


def streams() -> Iterator[Case]:
    """Hyper-connections between two sublayers: four streams read and written, y, pre-norm, u."""
    for rows in (1, 4, 32, 128, 1024, 8192):
        moved = rows * HIDDEN * 2 * (2 * STREAMS + 2)
        calls = [_enter_call(Randoms(n), rows) for n in range(how_many(moved, 4))]
        yield Case(f"hyper-connection, {rows} rows", calls, moved)


def _enter_call(randoms: Randoms, rows: int) -> Call:
    width = STREAMS * (STREAMS + 2)
    fn = randoms.normal(width, STREAMS * HIDDEN, dtype=torch.float32) * 0.007
    inputs = (
        randoms.normal(rows, STREAMS, HIDDEN),
        randoms.uniform(rows, STREAMS),
        Written(
            randoms.normal(rows, HIDDEN),
            randoms.uniform(rows, STREAMS),
            randoms.uniform(rows, STREAMS, STREAMS),
        ),
        HyperWeights(
            hyper.prepared(fn, STREAMS),
            randoms.normal(3, dtype=torch.float32),
            randoms.normal(width, dtype=torch.float32),
            norm_eps=1e-20,
            eps=1e-6,
            num_iters=20,
        ),
        randoms.normal(HIDDEN, dtype=torch.float32),
    )
    return lambda: hyper.hyper_enter(*inputs)


def others() -> Iterator[Case]:
    """The router; Engram's gate, and its rows from pinned memory."""
    randoms = Randoms()
    height = 1 << 22
    codes = torch.randint(0, 126, (height, 256), dtype=torch.uint8).pin_memory()
    scales = torch.full((height, 8), 127, dtype=torch.uint8).pin_memory()
    for rows in (1, 4, 128, 1024):
        logits, bias = (
            randoms.normal(*shape, dtype=torch.float32)
            for shape in ((rows, CONFIG.n_routed_experts), (CONFIG.n_routed_experts,))
        )
        kept = randoms.normal(rows, CONFIG.vocab_size, dtype=torch.float64)
        keys = randoms.order(rows)
        yield Case(f"drawing of all tokens, {rows} rows", [_of(pick, kept, keys)], kept.nbytes)
        yield Case(f"router, {rows} rows", [_of(route, logits, bias, EXPERTS_PER_TOKEN, 1.5)])
        key, value = randoms.normal(rows, 5 * HIDDEN).split((4 * HIDDEN, HIDDEN), -1)
        norms = [randoms.normal(STREAMS, HIDDEN, dtype=torch.float32) for _ in range(2)]
        streams = randoms.normal(rows, STREAMS, HIDDEN)
        gate = _of(engram_gate, streams, key.unflatten(1, (STREAMS, HIDDEN)), value, *norms, 1e-20)
        yield Case(f"Engram's gate, {rows} rows", [gate], rows * 13 * HIDDEN * 2)
        ids = [randoms.integers(0, height, rows, 24) for _ in range(4)]
        calls = [_of(engram_gather, codes, scales, one) for one in ids]
        yield Case(f"Engram's rows from the host, {rows} tokens", calls, rows * 24 * 264)
