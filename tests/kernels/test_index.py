"""Indexer ops against one row and one entry at a time; ties included (spec 7.4, 7.5)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.reference import index

KERNELS = load_kernels()


def best(scores: list[float], allowed: list[int], count: int) -> list[int]:
    """The `count` best of `allowed`, ties to the lowest, ascending."""
    return sorted(sorted(allowed, key=lambda j: (-scores[j], j))[:count])


def selected_one_by_one(scores: Tensor, allowed: Tensor, topk: int) -> Tensor:
    rows = []
    for row, mask in zip(scores.tolist(), allowed.tolist(), strict=True):
        chosen = best(row, [j for j, ok in enumerate(mask) if ok], topk)
        rows.append(chosen + [-1] * (topk - len(chosen)))
    return torch.tensor(rows, dtype=torch.int64).view(len(scores), topk)


def candidates_one_by_one(
    scores: Tensor, num_visible: Tensor, block_size: int, topk_blocks: int
) -> Tensor:
    kept = torch.zeros(scores.shape, dtype=torch.bool)
    for row, visible in enumerate(num_visible.tolist()):
        blocks = [range(b, min(b + block_size, visible)) for b in range(0, visible, block_size)]
        block_scores = [max(float(scores[row, j]) for j in block) for block in blocks]
        if blocks:
            block_scores[-1] = float("inf")  # the newest visible entry's block
        for b in best(block_scores, list(range(len(blocks))), topk_blocks):
            for j in blocks[b]:
                kept[row, j] = True
    return kept


# Few distinct values, so that ties are the rule.
SCORES = st.integers(-2, 2).map(float)


@st.composite
def scored_rows(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """scores float32 [T, N] and how many entries each row sees; N may be 0."""
    num_rows, num_entries = draw(st.integers(1, 4)), draw(st.integers(0, 13))
    flat = draw(st.lists(SCORES, min_size=num_rows * num_entries, max_size=num_rows * num_entries))
    visible = draw(st.lists(st.integers(0, num_entries), min_size=num_rows, max_size=num_rows))
    return torch.tensor(flat).view(num_rows, num_entries), torch.tensor(visible)


def mask_of(scores: Tensor, num_visible: Tensor) -> Tensor:
    return torch.arange(scores.shape[1]) < num_visible[:, None]


@given(scored_rows(), st.integers(1, 15), st.lists(st.booleans(), min_size=13, max_size=13))
def test_select_entries(rows, topk, holes):
    """Guards the selection: ties to the lowest, -1 at the end, nothing that is not allowed. A07."""
    scores, num_visible = rows
    visible = mask_of(scores, num_visible)
    allowed = visible & torch.tensor(holes)[: scores.shape[1]]
    scores = scores.masked_fill(~visible, -torch.inf)
    actual = KERNELS.select_entries(scores, allowed, topk)
    assert torch.equal(actual, selected_one_by_one(scores, allowed, topk))


def test_select_entries_of_nothing():
    """Guards the shortest prompts: no entry at all, and entries that nobody may take. A01."""
    none = KERNELS.select_entries(torch.zeros(3, 0), torch.zeros(3, 0, dtype=torch.bool), 8)
    assert torch.equal(none, torch.full((3, 8), -1))
    barred = KERNELS.select_entries(torch.randn(2, 9), torch.zeros(2, 9, dtype=torch.bool), 4)
    assert torch.equal(barred, torch.full((2, 4), -1))


@pytest.mark.parametrize("num_entries", [7, 8, 9, 16])
def test_select_entries_at_the_limit(num_entries):
    """Guards the switch from "all" to "the best": both must mean the same. A06."""
    torch.manual_seed(0)
    scores = torch.randn(20, num_entries)
    num_visible = torch.randint(0, num_entries + 1, (20,))
    allowed = mask_of(scores, num_visible)
    expected = selected_one_by_one(scores, allowed, 8)
    assert torch.equal(KERNELS.select_entries(scores, allowed, 8), expected)


@given(scored_rows(), st.integers(1, 4), st.integers(1, 5))
def test_candidate_entries(rows, block_size, topk_blocks):
    """Guards candidates: the newest block stays, blocks count as their best, ties to the lowest."""
    scores, num_visible = rows
    scores = scores.masked_fill(~mask_of(scores, num_visible), -torch.inf)
    actual = KERNELS.candidate_entries(scores, num_visible, block_size, topk_blocks)
    expected = candidates_one_by_one(scores, num_visible, block_size, topk_blocks)
    assert torch.equal(actual, expected)


def test_newest_block_is_kept():
    """Guards spec 7.5 by an example: entry 5 is the worst of all and the newest."""
    scores = torch.tensor([[5.0, 4.0, 3.0, 2.0, -8.0, -9.0, -torch.inf, -torch.inf]])
    kept = KERNELS.candidate_entries(scores, torch.tensor([6]), 2, 2)
    assert kept.tolist() == [[True, True, False, False, True, True, False, False]]


def scores_of(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """`index_scores` with the keys [B, N, Ci] laid out backwards in a store."""
    table = torch.arange(keys.shape[0] * keys.shape[1]).flip(0).view(keys.shape[:2])
    store = torch.empty(keys.shape[0] * keys.shape[1] + 1, keys.shape[2], dtype=keys.dtype)
    store[-1] = torch.nan
    store[table] = keys
    return KERNELS.index_scores(query, weights, store, table)


@pytest.mark.parametrize("chunk", [1 << 24, 1])
def test_index_scores(chunk, monkeypatch):
    """Guards the formula: relu per head, then the weights, then the sum over heads. A07.

    With `chunk` 1 every row is a chunk of its own.
    """
    monkeypatch.setattr(index, "_CHUNK_ELEMENTS", chunk)
    torch.manual_seed(1)
    query, weights, keys = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 4), torch.randn(2, 5, 6)
    expected = torch.zeros(2, 3, 5)
    for b in range(2):
        for row in range(3):
            for j in range(5):
                for head in range(4):
                    match = float(query[b, row, head] @ keys[b, j])
                    expected[b, row, j] += float(weights[b, row, head]) * max(0.0, match)
    torch.testing.assert_close(scores_of(query, weights, keys), expected)


def test_index_scores_without_keys():
    """Guards a row before the first entry is complete. A01."""
    scores = scores_of(torch.randn(1, 2, 4, 6), torch.randn(1, 2, 4), torch.empty(1, 0, 6))
    assert scores.shape == (1, 2, 0)


def test_index_scores_are_ranked_as_rounded():
    """Guards bf16: one rounding of the whole sum, kept in float32."""
    torch.manual_seed(2)
    query, weights, keys = torch.randn(1, 8, 4, 6), torch.randn(1, 8, 4), torch.randn(1, 9, 6)
    query, weights, keys = (x.bfloat16() for x in (query, weights, keys))
    actual = scores_of(query, weights, keys)
    wide = scores_of(query.float(), weights.float(), keys.float())
    assert actual.dtype == torch.float32
    assert torch.equal(actual, wide.bfloat16().float())


def test_pool_pairs():
    """Guards the pooling: a softmax over the two members, channel by channel."""
    torch.manual_seed(3)
    values, scores = torch.randn(3, 2, 5), torch.randn(3, 2, 5) * 3
    expected = torch.zeros(3, 5)
    for entry in range(3):
        for channel in range(5):
            shares = scores[entry, :, channel].double().exp()
            expected[entry, channel] = (
                shares / shares.sum() * values[entry, :, channel].double()
            ).sum()
    torch.testing.assert_close(KERNELS.pool_pairs(values, scores), expected)
    assert KERNELS.pool_pairs(torch.empty(0, 2, 5), torch.empty(0, 2, 5)).shape == (0, 5)


def test_pool_pairs_of_large_scores():
    """Guards against overflow: scores beyond what exp can hold choose one member."""
    values = torch.tensor([[[1.0], [2.0]]])
    pooled = KERNELS.pool_pairs(values, torch.tensor([[[1000.0], [-1000.0]]]))
    assert pooled.tolist() == [[1.0]]
