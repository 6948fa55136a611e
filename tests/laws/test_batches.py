"""A row's numbers have the same bits alone and at each place of any batch: every op, and the whole.

Where an op sums, its inputs let every product meet its negative. What is left is rounding alone,
which shows the order of summation even where the result is rounded to bfloat16.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.cache.layout import blocks_for
from deepinfer.kernels.kernelset import KernelSet, Rotary, load_kernels, rotary
from deepinfer.model.network import Network
from deepinfer.worker.pools import make_pools
from deepinfer.worker.worker import Worker
from tests.laws.engines import Step, in_chunks, poison, run_logits

KERNELS = load_kernels()
NUM_ROWS = 64
COUNTS = range(1, NUM_ROWS + 1)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


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
    keys = d.opposing(NUM_ROWS, 64, d.width)
    tensors = (d.meeting(NUM_ROWS, 1, 5, d.width), d.opposing(NUM_ROWS, 1, 5), keys)
    return tensors, KERNELS.index_scores


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
}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def parts(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def assert_rows(found: Any, expected: tuple[Tensor, ...], rows: Tensor, what: str) -> None:
    for one, alone in zip(parts(found), expected, strict=True):
        same = (one == alone[rows]) | (one.isnan() & alone[rows].isnan())
        wrong = rows[~same.flatten(1).all(1)].tolist()
        assert not wrong, f"{what}: rows {wrong} differ from themselves alone"


def check_rows(case: Case, generator: torch.Generator, counts: Sequence[int] = COUNTS) -> None:
    """Each row alone; then batches of every size: the first rows, the last, and any in any order.

    One row is then put at each place of some sizes.
    """
    tensors, call = case
    each = [parts(call(*(t[i : i + 1] for t in tensors))) for i in range(NUM_ROWS)]
    alone = tuple(torch.cat(column) for column in zip(*each, strict=True))
    everything = torch.arange(NUM_ROWS)
    for count in counts:
        any_order = torch.randperm(NUM_ROWS, generator=generator)[:count]
        for rows in (everything[:count], everything[-count:], any_order):
            assert_rows(call(*(t[rows] for t in tensors)), alone, rows, f"{count} rows")
    for count in (2, 3, 5, 16, 33):
        for place in range(count):
            rows = everything[:count].roll(place)
            assert_rows(call(*(t[rows] for t in tensors)), alone, rows, f"place {place} of {count}")


# ---- ops -----------------------------------------------------------------------------------------


def test_no_op_is_forgotten() -> None:
    """A new op is held to no law."""
    assert set(CASES) == {field.name for field in fields(KernelSet)} - {"name"}


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_rows_of_every_op(name: str, mode: str, num_threads: int) -> None:
    """F02: an op adds in another order for another number of rows, or for the last rows."""
    with threads(num_threads):
        for width in (7, 33, 96):
            generator = torch.Generator().manual_seed(width)
            check_rows(CASES[name](Draw(width, DTYPES[mode], generator)), generator)


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_rows_that_threads_share(name: str, mode: str) -> None:
    """F02: a library splits large tensors among threads, and rows between them."""
    with threads(2):
        generator = torch.Generator().manual_seed(0)
        check_rows(CASES[name](Draw(1024, DTYPES[mode], generator)), generator, (2, 9, 63, 64))


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("num_outputs", [1, 2, 3, 6, 8, 10, 16, 24, 33, 130])
@pytest.mark.parametrize("num_inputs", [2, 8, 16, 31, 32, 64, 100])
def test_products_of_every_shape(num_inputs: int, num_outputs: int, mode: str) -> None:
    """F02: libraries have routines of their own for small and narrow products."""
    generator = torch.Generator().manual_seed(num_outputs)
    d = Draw(num_inputs, DTYPES[mode], generator)
    weight = d.opposing(num_outputs, num_inputs)
    case: Case = (d.meeting(NUM_ROWS, num_inputs),), lambda x: KERNELS.linear(x, weight)
    check_rows(case, generator, (2, 3, 4, 7, 8, 12, 31, 32, 33, 48, 63, 64))


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize(("num_heads", "width"), [(16, 32), (5, 7), (64, 128)])
def test_index_scores_of_sequences(num_heads: int, width: int, mode: str, num_threads: int) -> None:
    """F02: a row's scores depend on how many rows, sequences and entries are scored with it."""
    d = Draw(width, DTYPES[mode], torch.Generator().manual_seed(1))
    query, weights = d.meeting(6, 8, num_heads, width), d.opposing(6, 8, num_heads)
    keys = d.opposing(6, 192, width)
    rows = [(b, s) for b in range(6) for s in range(8)]
    with threads(num_threads):
        alone = {
            (b, s): KERNELS.index_scores(
                query[b : b + 1, s : s + 1], weights[b : b + 1, s : s + 1], keys[b : b + 1, :64]
            )[0, 0]
            for b, s in rows
        }
        for num_entries in (64, 128, 192):
            for num_sequences in range(1, 7):
                for num_rows in range(1, 9):
                    part = (slice(0, num_sequences), slice(8 - num_rows, 8))
                    together = KERNELS.index_scores(
                        query[part], weights[part], keys[:num_sequences, :num_entries]
                    )
                    for b in range(num_sequences):
                        for s in range(num_rows):
                            expected = alone[b, 8 - num_rows + s]
                            assert torch.equal(together[b, s, :64], expected)


# ---- the whole -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mix:
    """Sequences in steps of any rows, in any order, at any place of the memory."""

    lengths: list[int]
    steps: list[Step]
    slots: list[int]
    blocks: list[list[int]]


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    """Up to 6 sequences. Whoever is in a step runs 1 row, a few, many, or all that it has left."""
    lengths = draw(st.lists(st.sampled_from([1, 2, 9, 30, 127, 140]), min_size=2, max_size=6))
    left, steps = dict(enumerate(lengths)), []
    while left:
        names = draw(st.lists(st.sampled_from(sorted(left)), min_size=1, unique=True))
        step = [
            (name, min(left[name], draw(st.sampled_from([1, 2, 7, 40, 200])))) for name in names
        ]
        for name, count in step:
            left[name] -= count
        left = {name: rest for name, rest in left.items() if rest}
        # Far from its end a sequence of single rows would take most of the time.
        steps.append(step)
        for name in [name for name, rest in left.items() if rest > 20 and len(steps) > 8]:
            steps.append([(name, left[name] - 20)])
            left[name] = 20
    slots = draw(st.permutations(range(8)))[: len(lengths)]
    free = list(draw(st.permutations(range(14))))
    blocks = [[free.pop() for _ in range(blocks_for(length))] for length in lengths]
    return Mix(lengths, steps, list(slots), blocks)


def some_ids(number: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(3, 500, (length,), generator=generator).tolist()


def fresh_worker(network: Network) -> Worker:
    """Memory as whoever had it before left it: NaN in all of it."""
    pools = make_pools(network.setup.config, 14, 8)
    poison(pools, range(8), range(14))
    return Worker(network, pools)


def check_mix(network: Network, mix: Mix) -> None:
    sequences = [some_ids(number, length) for number, length in enumerate(mix.lengths)]
    alone = [
        run_logits(
            fresh_worker(network), [ids], in_chunks(512, [len(ids)]), slots=[0], blocks=[[0, 1]]
        )[0]
        for ids in sequences
    ]
    found = run_logits(
        fresh_worker(network), sequences, mix.steps, slots=mix.slots, blocks=mix.blocks
    )
    for number, (one, expected) in enumerate(zip(found, alone, strict=True)):
        wrong = (one != expected).any(1).nonzero().flatten().tolist()
        assert not wrong, f"sequence {number} of {len(one)} tokens: positions {wrong} differ"


@pytest.mark.parametrize("mode", DTYPES)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(mix=mixes())
def test_logits_of_any_mix(tiny_networks: dict[str, Network], mode: str, mix: Mix) -> None:
    """A02, A08, A13, F02, K09: cuts, neighbours, slots, blocks or their last owner move a logit."""
    check_mix(tiny_networks[mode], mix)


@pytest.mark.parametrize("mode", DTYPES)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(mix=mixes())
def test_logits_of_any_mix_on_two_threads(
    tiny_networks: dict[str, Network], mode: str, mix: Mix
) -> None:
    """F02: the same where two threads share the work."""
    with threads(2):
        check_mix(tiny_networks[mode], mix)
