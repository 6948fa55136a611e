"""A row's numbers have the same bits alone and at each place of any batch: every op, and the whole.

`op_cases.py` has the ops' inputs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.cache.layout import blocks_for
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.model.network import Network
from deepinfer.worker.pools import make_pools
from deepinfer.worker.worker import Worker
from tests.laws.engines import Step, in_chunks, poison, run_logits
from tests.laws.op_cases import CASES, KERNELS, NUM_ROWS, Case, Draw

COUNTS = range(1, NUM_ROWS + 1)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


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


def check_rows(
    case: Case,
    generator: torch.Generator,
    counts: Sequence[int] = COUNTS,
    sizes: Sequence[int] = (2, 3, 5, 16, 33),
) -> None:
    """Each row alone; then batches of every size: the first rows, the last, and any in any order.

    One row is then put at each place of batches of `sizes`.
    """
    tensors, call = case
    each = [parts(call(*(t[i : i + 1] for t in tensors))) for i in range(NUM_ROWS)]
    alone = tuple(torch.cat(column) for column in zip(*each, strict=True))
    everything = torch.arange(NUM_ROWS)
    for count in counts:
        any_order = torch.randperm(NUM_ROWS, generator=generator)[:count]
        for rows in (everything[:count], everything[-count:], any_order):
            assert_rows(call(*(t[rows] for t in tensors)), alone, rows, f"{count} rows")
    for count in sizes:
        for place in range(count):
            rows = everything[:count].roll(place)
            assert_rows(call(*(t[rows] for t in tensors)), alone, rows, f"place {place} of {count}")


# ---- ops -----------------------------------------------------------------------------------------


def test_no_op_is_forgotten() -> None:
    """A new op is held to no law."""
    assert set(CASES) == {field.name for field in fields(KernelSet)} - {"name"}


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_rows_of_every_op(name: str, mode: str) -> None:
    """F02: an op adds in another order for another number of rows, or for the last rows."""
    for width in (7, 33, 96):
        generator = torch.Generator().manual_seed(width)
        check_rows(CASES[name](Draw(width, DTYPES[mode], generator)), generator)


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_rows_that_threads_share(name: str, mode: str) -> None:
    """F02: a library splits large tensors among threads, and rows between them."""
    with threads(2):
        for width in (33, 1024):
            generator = torch.Generator().manual_seed(width)
            case = CASES[name](Draw(width, DTYPES[mode], generator))
            check_rows(case, generator, (2, 9, 63, 64), sizes=(3, 16))


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


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize(
    ("num_heads", "width", "num_threads"), [(16, 32, 1), (5, 7, 1), (64, 128, 1), (16, 32, 2)]
)
def test_index_scores_of_sequences(num_heads: int, width: int, mode: str, num_threads: int) -> None:
    """F02: a row's scores depend on how many rows, sequences and entries are scored with it."""
    d = Draw(width, DTYPES[mode], torch.Generator().manual_seed(1))
    query, weights = d.meeting(6, 8, num_heads, width), d.opposing(6, 8, num_heads)
    store, table = d.opposing(200, width), d.whole(200, 6, 192)

    def scores(sequences: slice, rows: slice, num_entries: int) -> Tensor:
        chosen = table[sequences, :num_entries]
        return KERNELS.index_scores(query[sequences, rows], weights[sequences, rows], store, chosen)

    with threads(num_threads):
        one = [[scores(slice(b, b + 1), slice(s, s + 1), 64) for s in range(8)] for b in range(6)]
        alone = torch.cat([torch.cat(rows, 1) for rows in one])
        for num_sequences, num_rows in product(range(1, 7), range(1, 9)):
            sequences, rows = slice(num_sequences), slice(8 - num_rows, 8)
            for num_entries in (64, 128, 192):
                together = scores(sequences, rows, num_entries)
                assert torch.equal(together[..., :64], alone[sequences, rows])


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
@settings(deadline=None, derandomize=True)
@given(mix=mixes())
def test_logits_of_any_mix(tiny_networks: dict[str, Network], mode: str, mix: Mix) -> None:
    """A02, A08, A13, F02, K09: cuts, neighbours, slots, blocks or their last owner move a logit."""
    check_mix(tiny_networks[mode], mix)


SHARED = Mix(
    lengths=[140, 30, 9],
    steps=[[(0, 70), (1, 7)], [(2, 9), (0, 60), (1, 1)], [(1, 22), (0, 1)], [(0, 9)]],
    slots=[5, 0, 3],
    blocks=[[9, 2], [0], [13]],
)


@pytest.mark.parametrize("mode", DTYPES)
def test_logits_on_two_threads(tiny_networks: dict[str, Network], mode: str) -> None:
    """F02: the same where two threads share the work."""
    with threads(2):
        check_mix(tiny_networks[mode], SHARED)


@pytest.mark.slow
@pytest.mark.parametrize("mode", DTYPES)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(mix=mixes())
def test_logits_of_any_mix_on_two_threads(
    tiny_networks: dict[str, Network], mode: str, mix: Mix
) -> None:
    """F02: as `test_logits_on_two_threads`, which is its sample."""
    with threads(2):
        check_mix(tiny_networks[mode], mix)
