"""The memory of sequences: sizes as the layout says, and what a store reads and writes."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.cache.layout import (
    SLACK_ROWS,
    block_parts,
    slot_parts,
    total_bytes,
)
from deepinfer.config.model import ModelConfig
from deepinfer.config.words import Storage
from deepinfer.worker.pools import PagedStore, Pools, make_pools
from deepinfer.worker.step_index import EntryIndex, StepIndex

NONE = torch.empty(0, dtype=torch.int64)


def all_tensors(pools: Pools) -> list[Tensor]:
    held = (pools.window, pools.draft_window, pools.pending, pools.entries, pools.keys)
    return [pool for layers in held for pool in layers.values()] + [pools.token_ids]


@pytest.mark.parametrize("storage", ["bfloat16", "float32"])
@pytest.mark.parametrize(("num_blocks", "num_slots"), [(1, 1), (5, 2), (64, 7)])
def test_bytes_are_as_planned(
    num_blocks: int, num_slots: int, storage: Storage, tiny_config: ModelConfig
) -> None:
    """A11: what is allocated is more, or less, than what the budget was divided by, and a block and
    a slot that are no sequence's."""
    pools = make_pools(tiny_config, num_blocks, num_slots, storage=storage)
    expected = (num_blocks + 1) * total_bytes(block_parts(tiny_config, storage))
    expected += (num_slots + 1) * total_bytes(slot_parts(tiny_config, storage))
    assert sum(pool.nbytes for pool in all_tensors(pools)) == expected


def test_zeroed(tiny_config: ModelConfig) -> None:
    """The first tenant reads whatever was in the machine's memory."""
    assert not any(pool.any() for pool in all_tensors(make_pools(tiny_config, 3, 2)))


def test_which_layers_have_what(tiny_config: ModelConfig) -> None:
    """A layer that reads another's entries has a pool of its own; one of ratio 1 pools nothing."""
    pools = make_pools(tiny_config, 3, 2)
    assert list(pools.window) == list(range(tiny_config.num_hidden_layers))
    assert list(pools.draft_window) == list(range(tiny_config.num_nextn_predict_layers))
    assert tuple(pools.entries) == tuple(pools.keys) == tiny_config.kv_source_layer_ids
    ratios = tiny_config.compress_ratios
    assert list(pools.pending) == [i for i in tiny_config.kv_source_layer_ids if ratios[i] > 1]
    for layer_id, pool in pools.entries.items():
        assert pool.shape == (4, 128 // ratios[layer_id], tiny_config.head_dim)
    assert pools.spare_block == 3
    assert pools.spare_slot == 2
    assert all(pool.dtype == torch.float32 for pool in pools.pending.values())


def index_of(**given: Any) -> StepIndex:
    """Nothing but what is given."""
    nothing = {one.name: NONE for one in fields(StepIndex)}
    return StepIndex(**{**nothing, "history": None, "entries": {}, **given})


def store_of(pools: Pools, **given: Any) -> PagedStore:
    return PagedStore(pools, index_of(**given), {2: 2, 4: 2})


def ids(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def test_a_short_step_reads_the_ring(tiny_config: ModelConfig) -> None:
    """A row is not found where the step has just written it."""
    pools = make_pools(tiny_config, 1, 2)
    store = store_of(pools, window_rows=ids(0, 1), window_write=ids(25, 24))
    into = store.target(3)
    assert into is not None
    assert into.rows.tolist() == [25, 24]
    assert into.store.shape[0] == (2 + 1) * (tiny_config.sliding_window + SLACK_ROWS)
    into.store[into.rows] = torch.tensor([[1.0], [2.0]]).to(into.store.dtype)
    assert pools.window[3][1, :2, 0].tolist() == [2, 1]
    assert not pools.window[2].any()


def test_a_long_step_reads_before_it_writes(tiny_config: ModelConfig) -> None:
    """A02: a chunk writes over the very positions that its first rows see."""
    pools = make_pools(tiny_config, 1, 1)
    pools.window[0][0] = 7
    rows = torch.full((3, tiny_config.head_dim), 9.0)
    store = store_of(pools, history=ids(1, 0), window_rows=ids(1, 2), window_write=ids(0, 1))
    assert store.target(0) is None
    found = store.window(0, rows)
    assert found[:, 0].tolist() == [7, 7, 9, 9, 9]
    assert found.dtype == rows.dtype
    assert pools.window[0][0, :3, 0].tolist() == [9, 9, 7]


def test_pending_reads_before_it_writes(tiny_config: ModelConfig) -> None:
    """A01: the first half of a pair is lost where the second writes at its place."""
    pools = make_pools(tiny_config, 1, 2)
    pools.pending[2][1, 0, 0], pools.pending[2][1, 0, 1] = 5, 6
    values = torch.full((2, tiny_config.head_dim), 1.5)
    store = store_of(pools, slack_rows=ids(0, 1), slack_write=ids(8, 9), slack_read=ids(8))
    all_values, all_scores = store.pending(2, values, values + 1)
    assert all_values[:, 0].tolist() == [1.5, 1.5, 5]
    assert all_scores[:, 0].tolist() == [2.5, 2.5, 6]
    assert pools.pending[2][1, :3, :, 0].tolist() == [[1.5, 2.5], [1.5, 2.5], [0, 0]]


def test_entries_go_to_their_blocks(tiny_config: ModelConfig) -> None:
    """An entry is written beside its key, or into another layer's pool."""
    pools = make_pools(tiny_config, 3, 1)
    new = EntryIndex(NONE, NONE, ids(130, 3), NONE, 64, NONE)
    entries = torch.tensor([[1.0], [2.0]]).expand(2, tiny_config.head_dim)
    keys = torch.tensor([[3.0], [4.0]]).expand(2, tiny_config.index_head_dim)
    entry_store, key_store = store_of(pools, entries={2: new}).entries(4, entries, keys)
    assert entry_store[[130, 3], 0].tolist() == [1, 2]
    assert key_store[[130, 3], 0].tolist() == [3, 4]
    assert pools.entries[4][2, 2, 0] == 1  # 64 entries a block at ratio 2
    assert not pools.entries[2].any()
