"""Batches by hand: what a row sees, and where it lies (spec 7.4, 9.2, 21)."""

import pytest
import torch

from deepinfer.kernels.reference.index import entry_table
from deepinfer.model.batch import FreshStore, GrowingStore, make_batch

NONE = -1


def test_worked_example(tiny_config):
    """Guards spec 21.1: five tokens at ratio 2 make two entries, the fifth token waits."""
    rows = make_batch(tiny_config, torch.tensor([[10, 11, 12, 13, 14]])).entries[2]
    assert rows.members.tolist() == [[0, 1], [2, 3]]
    assert rows.positions.tolist() == [0, 2]
    assert entry_table(rows.blocks, rows.per_block).tolist() == [[0, 1]]
    assert rows.num_visible.tolist() == [0, 1, 1, 2, 2]


def test_decode_after_the_worked_example(tiny_config):
    """Guards spec 21.1: position 5 completes entry 2 from a waiting token and sees it at once."""
    batch = make_batch(tiny_config, torch.tensor([[10, 11, 12, 13, 14, 15]]), 5)
    rows = batch.entries[2]
    assert rows.members.tolist() == [[4, 5]]
    assert rows.positions.tolist() == [4]
    assert entry_table(rows.blocks, rows.per_block).tolist() == [[0, 1, 2]]
    assert rows.num_visible.tolist() == [3]
    assert batch.positions.tolist() == [5]
    assert batch.token_ids.tolist() == [15]
    assert batch.window_index.tolist() == [[NONE] * 10 + [0, 1, 2, 3, 4, 5]]


def test_decode_that_completes_nothing(tiny_config):
    """Guards the other half of all decode steps: an even position adds no entry of ratio 2."""
    rows = make_batch(tiny_config, torch.tensor([[10, 11, 12, 13, 14]]), 4).entries
    assert rows[2].members.shape == (0, 2)
    assert rows[2].num_visible.tolist() == [2]
    assert rows[1].members.tolist() == [[4]]
    assert rows[1].num_visible.tolist() == [5]


def test_first_token(tiny_config):
    """Guards spec 18, check 5: a first token has one entry of ratio 1, none of 2. A01."""
    batch = make_batch(tiny_config, torch.tensor([[10]]))
    assert batch.window_index.tolist() == [[NONE] * 15 + [0]]
    assert batch.entries[1].num_visible.tolist() == [1]
    assert batch.entries[2].num_visible.tolist() == [0]
    assert batch.entries[2].blocks.shape == (1, 0)


@pytest.mark.parametrize(
    ("position", "window", "of_ratio_2", "of_ratio_1"),
    [(0, 1, 0, 1), (127, 128, 64, 128), (511, 128, 256, 512), (1023, 128, 512, 1024)],
)
def test_counts_of_the_released_model(released_config, position, window, of_ratio_2, of_ratio_1):
    """Guards spec 21.2, the table of key counts."""
    batch = make_batch(released_config, torch.zeros(1, 1024, dtype=torch.int64))
    assert int((batch.window_index[position] >= 0).sum()) == window
    assert int(batch.entries[2].num_visible[position]) == of_ratio_2
    assert int(batch.entries[1].num_visible[position]) == of_ratio_1


@pytest.mark.parametrize("start", [0, 7, 39])
def test_window(tiny_config, start):
    """Guards the window: the last 16 tokens, self included, in the row's own sequence."""
    length, window = 40, tiny_config.sliding_window
    batch = make_batch(tiny_config, torch.arange(3 * length).view(3, length), start)
    for row, index in enumerate(batch.window_index.tolist()):
        sequence, position = int(batch.sequence_ids[row]), int(batch.positions[row])
        seen = range(max(0, position - window + 1), position + 1)
        expected = [sequence * length + p for p in seen]
        assert index == [NONE] * (window - len(expected)) + expected


@pytest.mark.parametrize("start", [0, 7, 39])
@pytest.mark.parametrize("decoder_start", [0, 1, 30, 40])
def test_decoder_window(tiny_config, start, decoder_start):
    """Guards bounded replay: the decoder half sees the window from one position on, no other."""
    token_ids = torch.arange(80).view(2, 40)
    batch = make_batch(tiny_config, token_ids, start, decoder_start)
    hidden = batch.window_index % 40 < decoder_start
    assert torch.equal(batch.window_index, make_batch(tiny_config, token_ids, start).window_index)
    assert torch.equal(batch.decoder_window_index, batch.window_index.masked_fill(hidden, NONE))


@pytest.mark.parametrize("start", [0, 2, 5])
def test_lookback(tiny_config, start):
    """Guards Engram's n-grams: newest first, -1 before the start, also right after a cut."""
    token_ids = torch.tensor([[10, 11, 12, 13, 14, 15], [20, 21, 22, 23, 24, 25]])
    batch = make_batch(tiny_config, token_ids, start)
    expected = [
        [int(ids[p - back]) if p >= back else NONE for back in range(4)]
        for ids in token_ids
        for p in range(start, 6)
    ]
    assert batch.lookback.tolist() == expected


def test_rows_of_sequences(tiny_config):
    """Guards the two ways to say whose row it is: they must agree."""
    batch = make_batch(tiny_config, torch.arange(12).view(3, 4), 1)
    (rows,) = batch.groups
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert batch.sequence_ids[rows].tolist() == [[0] * 3, [1] * 3, [2] * 3]
    assert batch.token_ids.tolist() == [1, 2, 3, 5, 6, 7, 9, 10, 11]


def test_entries_of_sequences(tiny_config):
    """Guards the tables: each sequence finds its own entries in the store."""
    rows = make_batch(tiny_config, torch.zeros(3, 5, dtype=torch.int64)).entries[2]
    assert entry_table(rows.blocks, rows.per_block).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert rows.members.tolist() == [[0, 1], [2, 3], [5, 6], [7, 8], [10, 11], [12, 13]]
    assert rows.positions.tolist() == [0, 2] * 3


def test_growing_store():
    """Guards the order of what is kept: by sequence, then by time, each layer on its own."""
    store = GrowingStore(2)
    first = store.window(0, torch.tensor([[1.0], [2.0], [11.0], [12.0]]))
    assert first.flatten().tolist() == [1, 2, 11, 12]
    store.window(1, torch.tensor([[7.0], [8.0]]))
    later = store.window(0, torch.tensor([[3.0], [13.0]]))
    assert later.flatten().tolist() == [1, 2, 3, 11, 12, 13]


def test_growing_store_without_new_entries():
    """Guards a step that completes nothing: what was there is there."""
    store = GrowingStore(2)
    store.entries(4, torch.tensor([[1.0], [2.0]]), torch.tensor([[5.0], [6.0]]))
    entries, keys = store.entries(4, torch.empty(0, 1), torch.empty(0, 1))
    assert entries.flatten().tolist() == [1, 2]
    assert keys.flatten().tolist() == [5, 6]


def test_fresh_store():
    """Guards the store that keeps nothing: what is computed is all there is."""
    store, one, other = FreshStore(), torch.ones(2, 3), torch.zeros(2, 3)
    assert store.target(0) is None
    assert store.window(0, one) is one
    assert store.pending(0, one, other) == (one, other)
    assert store.entries(0, one, other) == (one, other)
