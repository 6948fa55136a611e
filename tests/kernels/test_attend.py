"""Core attention against one row and one head at a time in float64 (spec 7.6)."""

import math

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.reference import attend

KERNELS = load_kernels()
H, C = 3, 4
SCALE = C**-0.5


def attended(query: Tensor, sink: Tensor, vectors: list[Tensor]) -> Tensor:
    """One row [H, C] over a list of vectors [C], each both key and value."""
    out = torch.zeros(H, C, dtype=torch.float64)
    for head in range(H):
        logits = [float(query[head].double() @ v.double()) * SCALE for v in vectors]
        top = max([*logits, float(sink[head])])
        shares = [math.exp(logit - top) for logit in logits]
        total = sum(shares) + math.exp(float(sink[head]) - top)
        for share, vector in zip(shares, vectors, strict=True):
            out[head] += share / total * vector.double()
    return out.float()


def case(seed: int) -> tuple[Tensor, ...]:
    """query [5, H, C], sink, window store [9, C], window index, entry store [6, C], entry index."""
    generator = torch.Generator().manual_seed(seed)
    query, window = (torch.randn(n, generator=generator) for n in ((5, H, C), (9, C)))
    entries, sink = (torch.randn(n, generator=generator) for n in ((6, C), (H,)))
    window_index = torch.randint(-1, 9, (5, 4), generator=generator)
    entry_index = torch.randint(-1, 6, (5, 3), generator=generator)
    return query, sink, window, window_index, entries, entry_index


def one_by_one(query, sink, window, window_index, entries, entry_index) -> Tensor:
    rows = []
    for row in range(len(query)):
        vectors = [window[i] for i in window_index[row].tolist() if i >= 0]
        vectors += [entries[i] for i in entry_index[row].tolist() if i >= 0]
        rows.append(attended(query[row], sink, vectors))
    return torch.stack(rows)


@pytest.mark.parametrize("chunk", [1 << 24, 1])
@pytest.mark.parametrize("seed", range(5))
def test_attend(seed, chunk, monkeypatch):
    """Guards the whole op: gaps (-1), repeats, the sink. With `chunk` 1 row by row."""
    monkeypatch.setattr(attend, "_CHUNK_ELEMENTS", chunk)
    query, sink, *stores = case(seed)
    actual = KERNELS.attend(query, sink, SCALE, *stores)
    torch.testing.assert_close(actual, one_by_one(query, sink, *stores))


def test_without_entries():
    """Guards window layers, and a ratio-2 layer before its first entry: both see the window."""
    query, sink, window, window_index, entries, entry_index = case(7)
    no_index = torch.empty(5, 0, dtype=torch.int64)
    expected = one_by_one(query, sink, window, window_index, entries, torch.full((5, 1), -1))
    for rest in ((), (entries, no_index), (entries[:0], no_index), (None, entry_index)):
        actual = KERNELS.attend(query, sink, SCALE, window, window_index, *rest)
        torch.testing.assert_close(actual, expected)


def test_empty_entry_store():
    """Guards a list that names nothing in a store that has nothing. A01."""
    query, sink, window, window_index, entries, _ = case(8)
    nothing = torch.full((5, 2), -1)
    expected = one_by_one(query, sink, window, window_index, entries, nothing)
    actual = KERNELS.attend(query, sink, SCALE, window, window_index, entries[:0], nothing)
    torch.testing.assert_close(actual, expected)


def test_a_token_met_twice_counts_twice():
    """Guards spec 7.6: a token in the window and in an entry is two summands, not one."""
    torch.manual_seed(0)
    query, store, sink = torch.randn(1, H, C), torch.randn(2, C), torch.randn(H)
    lists = torch.tensor([[0, 1]])
    twice = KERNELS.attend(query, sink, SCALE, store, lists, store, torch.tensor([[1]]))
    expected = attended(query[0], sink, [store[0], store[1], store[1]])
    torch.testing.assert_close(twice[0], expected)
    once = KERNELS.attend(query, sink, SCALE, store, lists)
    assert (twice - once).abs().max() > 1e-2


def test_nothing_to_attend_to():
    """Guards an empty row: its output is 0, not NaN."""
    query, sink, window, _, entries, _ = case(9)
    for width in (0, 3):
        nothing = torch.full((5, width), -1)
        actual = KERNELS.attend(query, sink, SCALE, window, nothing, entries, nothing)
        assert torch.equal(actual, torch.zeros(5, H, C))


def test_no_rows():
    """Guards a forward that has rows for some layers only."""
    query, sink, window, window_index, *_ = case(10)
    assert KERNELS.attend(query[:0], sink, SCALE, window, window_index[:0]).shape == (0, H, C)


@pytest.mark.parametrize("sink", [-300.0, 0.0, 300.0])
def test_large_logits(sink):
    """Guards against overflow: exp of the raw logits is infinite, and so is exp of the sink."""
    query, _, *stores = case(11)
    sinks = torch.full((H,), sink)
    query = query * 500
    actual = KERNELS.attend(query, sinks, SCALE, *stores)
    assert actual.isfinite().all()
    torch.testing.assert_close(actual, one_by_one(query, sinks, *stores), rtol=1e-4, atol=1e-4)


def test_rows_that_nobody_lists_do_not_matter():
    """Guards reused memory: NaN in a store row that is not listed must not reach any output."""
    query, sink, window, window_index, entries, entry_index = case(12)
    window_index[window_index == 5], entry_index[entry_index == 2] = 6, 3
    clean = KERNELS.attend(query, sink, SCALE, window, window_index, entries, entry_index)
    for store, lists in ((window, window_index), (entries, entry_index)):
        store[sorted(set(range(len(store))) - set(lists.flatten().tolist()))] = torch.nan
        assert store.isnan().any()
    dirty = KERNELS.attend(query, sink, SCALE, window, window_index, entries, entry_index)
    assert torch.equal(dirty, clean)


def test_first_row_of_a_store_may_be_dirty_too():
    """Guards the stand-in for "none": -1 must not read a NaN, whichever row it reads instead."""
    query, sink, window, _, entries, _ = case(13)
    window[0], entries[0] = torch.nan, torch.nan
    lists = torch.tensor([[-1, 3]] * 5)
    actual = KERNELS.attend(query, sink, SCALE, window, lists, entries, lists)
    assert actual.isfinite().all()


def test_one_rounding():
    """Guards bf16: float32 inside, rounded at the end."""
    query, sink, window, window_index, entries, entry_index = case(14)
    query, window, entries = (x.bfloat16() for x in (query, window, entries))
    actual = KERNELS.attend(query, sink, SCALE, window, window_index, entries, entry_index)
    wide = one_by_one(query, sink, window, window_index, entries, entry_index)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), wide, rtol=2**-8, atol=1e-6)
