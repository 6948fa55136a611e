"""Inputs of every op of `KernelSet`, row by row, for the law that rows do not feel each other.

Where an op sums, every product meets its negative. What is left is rounding alone, which shows the
order of summation even where the result is rounded to bfloat16.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.values import Rotary, rotary

KERNELS = load_kernels()
NUM_ROWS = 64


@dataclass(frozen=True)
class Draw:
    """Random tensors of a case. width: channels, heads and so on are made of it."""

    width: int
    dtype: torch.dtype
    generator: torch.Generator

    def plain(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(dtype or self.dtype)

    def wide(self, *shape: int) -> Tensor:
        return self.plain(*shape, dtype=torch.float32)

    def whole(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator)

    def meeting(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The last axis twice: times an `opposing` one, every product meets its negative."""
        half = self.plain(*shape[:-1], shape[-1] // 2, dtype=dtype)
        return torch.cat((half, half, half.new_zeros(*shape[:-1], shape[-1] % 2)), -1)

    def opposing(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        half = self.plain(*shape[:-1], shape[-1] // 2, dtype=dtype)
        return torch.cat((half, -half, half.new_zeros(*shape[:-1], shape[-1] % 2)), -1)

    def expert_ids(self, num_experts: int, topk: int) -> Tensor:
        order = torch.rand(NUM_ROWS, num_experts, generator=self.generator).argsort(-1)
        return order[:, :topk].sort(-1).values

    def angles(self, num_pairs: int) -> Rotary:
        return rotary(self.whole(4000, NUM_ROWS), torch.rand(num_pairs, generator=self.generator))


# What an op takes: tensors with the rows as first axis, then a call of it over such rows.
Case = tuple[tuple[Tensor, ...], Callable[..., Any]]


def linear_case(op: Callable[..., Tensor], d: Draw) -> Case:
    weight = d.opposing(d.width + 3, d.width)
    return (d.meeting(NUM_ROWS, d.width),), lambda x: op(x, weight)


def grouped_linear(d: Draw) -> Case:
    weight = d.opposing(3 * 8, d.width)
    return (d.meeting(NUM_ROWS, 3, d.width),), lambda x: KERNELS.grouped_linear(x, weight)


def rms_norm(d: Draw) -> Case:
    weight = d.plain(d.width)
    return (d.plain(NUM_ROWS, d.width),), lambda x: KERNELS.rms_norm(x, weight, 1e-20)


def rotate(d: Draw) -> Case:
    angles = d.angles(max(1, d.width // 4))
    return (d.plain(NUM_ROWS, 3, d.width), *angles), KERNELS.rotate


def round_trip(op: Callable[[Tensor], Tensor], d: Draw) -> Case:
    return (d.plain(NUM_ROWS, 32 * -(-d.width // 32)),), op


def hyper_mix(d: Draw) -> Case:
    fn, scale, base = d.opposing(24, 4 * d.width, dtype=torch.float32), d.wide(3), d.wide(24)

    def call(streams: Tensor) -> tuple[Tensor, ...]:
        return KERNELS.hyper_mix(streams, fn, scale, base, norm_eps=1e-20, eps=1e-6, num_iters=20)

    return (d.meeting(NUM_ROWS, 4 * d.width).unflatten(1, (4, d.width)),), call


def hyper_collapse(d: Draw) -> Case:
    pairs = d.plain(NUM_ROWS, 2, d.width)
    return (torch.cat((pairs, -pairs), 1), d.wide(NUM_ROWS, 4)), KERNELS.hyper_collapse


def hyper_expand(d: Draw) -> Case:
    pairs, comb = d.plain(NUM_ROWS, 2, d.width), d.wide(NUM_ROWS, 2, 4)
    streams, meeting = torch.cat((pairs, -pairs), 1), torch.cat((comb, comb), 1)
    return (d.plain(NUM_ROWS, d.width), streams, d.wide(NUM_ROWS, 4), meeting), KERNELS.hyper_expand


def pool_pairs(d: Draw) -> Case:
    values = d.wide(NUM_ROWS, 1, d.width)
    scores = d.wide(NUM_ROWS, 2, d.width) * 1e-3
    return (torch.cat((values, -values), 1), scores), KERNELS.pool_pairs


def index_scores(d: Draw) -> Case:
    """Each row a sequence of one row."""
    store, table = d.opposing(90, d.width), d.whole(90, NUM_ROWS, 64)

    def call(query: Tensor, weights: Tensor, table: Tensor) -> Tensor:
        return KERNELS.index_scores(query, weights, store, table)

    return (d.meeting(NUM_ROWS, 1, 5, d.width), d.opposing(NUM_ROWS, 1, 5), table), call


def select_entries(d: Draw) -> Case:
    scores = d.whole(9, NUM_ROWS, d.width).float()  # ties are the rule
    return (scores, d.whole(3, NUM_ROWS, d.width) > 0), lambda s, a: KERNELS.select_entries(s, a, 5)


def candidate_entries(d: Draw) -> Case:
    scores, visible = d.whole(9, NUM_ROWS, d.width).float(), d.whole(d.width + 1, NUM_ROWS)
    return (scores, visible), lambda s, v: KERNELS.candidate_entries(s, v, 3, 2)


def attend(d: Draw) -> Case:
    """Channels in opposite pairs, and values whose weighted sum nearly cancels."""
    half = d.opposing(20, d.width)
    store, sink = torch.cat((half, -half)), d.wide(3)
    entries = d.opposing(30, d.width)
    seen, chosen = d.whole(41, NUM_ROWS, 16) - 1, d.whole(31, NUM_ROWS, 8) - 1

    def call(query: Tensor, window_index: Tensor, entry_index: Tensor) -> Tensor:
        return KERNELS.attend(query, sink, 0.1, store, window_index, entries, entry_index)

    return (d.meeting(NUM_ROWS, 3, d.width), seen, chosen), call


def route(d: Draw) -> Case:
    bias = d.wide(d.width)
    topk = min(2, d.width)
    return (d.wide(NUM_ROWS, d.width),), lambda x: KERNELS.route(x, bias, topk, 1.5)


def swiglu(d: Draw) -> Case:
    tensors = (d.plain(NUM_ROWS, d.width), d.plain(NUM_ROWS, d.width), d.wide(NUM_ROWS, 1))
    return tensors, lambda gate, up, weight: KERNELS.swiglu(gate, up, 2.5, weight)


def experts(d: Draw) -> Case:
    w1, w3 = d.opposing(6, 24, d.width), d.opposing(6, 24, d.width)
    w2 = d.opposing(6, d.width, 24)

    def call(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return KERNELS.experts(x, ids, weights, w1, w3, w2, 10.0)

    return (d.plain(NUM_ROWS, d.width), d.expert_ids(6, 3), d.wide(NUM_ROWS, 3)), call


def engram_rows(d: Draw) -> Case:
    multipliers, primes = d.whole(2**40, 4) * 2 + 1, d.whole(1000, 6) + 2
    offsets = d.whole(5000, 6)
    window = d.whole(300, NUM_ROWS, 4)
    return (window,), lambda w: KERNELS.engram_rows(w, multipliers, primes, offsets)


def engram_gate(d: Draw) -> Case:
    q_weight, k_weight = d.plain(4, d.width), torch.ones(4, d.width, dtype=d.dtype)
    tensors = (
        d.meeting(NUM_ROWS, 4, d.width),
        d.opposing(NUM_ROWS, 4, d.width),
        d.plain(NUM_ROWS, d.width),
    )
    return tensors, lambda s, k, v: KERNELS.engram_gate(s, k, v, q_weight, k_weight, 1e-20)


def pick(d: Draw) -> Case:
    kept = d.plain(NUM_ROWS, d.width, dtype=torch.float64)
    kept[::3, ::2] = -torch.inf  # enough for the short cut with these rows alone
    kept[::3, 0] = 0.0
    return (kept, d.whole(2**62, NUM_ROWS)), lambda *row: KERNELS.pick(*row)[:, None]


CASES: dict[str, Callable[[Draw], Case]] = {
    "linear": lambda d: linear_case(KERNELS.linear, d),
    "linear_float32": lambda d: linear_case(KERNELS.linear_float32, d),
    "linear_quantised": lambda d: linear_case(KERNELS.linear_quantised, d),
    "grouped_linear": grouped_linear,
    "rms_norm": rms_norm,
    "rotate": rotate,
    "round_trip_window": lambda d: round_trip(KERNELS.round_trip_window, d),
    "round_trip_entry": lambda d: round_trip(KERNELS.round_trip_entry, d),
    "round_trip_index": lambda d: round_trip(KERNELS.round_trip_index, d),
    "hyper_mix": hyper_mix,
    "hyper_collapse": hyper_collapse,
    "hyper_expand": hyper_expand,
    "pool_pairs": pool_pairs,
    "index_scores": index_scores,
    "select_entries": select_entries,
    "candidate_entries": candidate_entries,
    "attend": attend,
    "route": route,
    "swiglu": swiglu,
    "experts": experts,
    "engram_rows": engram_rows,
    "engram_gate": engram_gate,
    "pick": pick,
}
