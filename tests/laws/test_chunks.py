"""Laws of incremental work: cut as you like, batch as you like, the numbers stay.

On random tokens the caches round nothing and near ties of selections are left out (`margins.py`).
With roundings the golden prompts are run, where it is known how far a tie can move each position.
"""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.config.rope import rope_frequencies
from deepinfer.kernels.reference.index import entry_table
from deepinfer.model.batch import Batch, EntryRows, FreshStore, GrowingStore, make_batch
from deepinfer.model.network import Network
from tests.golden.goldens import assert_close, load_golden
from tests.laws.margins import CLEAR, smallest_margin
from tests.laws.networks import (
    every,
    golden_network,
    recording,
    run_in_chunks,
    run_recorded,
    run_whole,
)

TOLERANCE = 1e-4


def tokens(length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 500, (length,), generator=generator)


# ---- cuts ----------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None, derandomize=True)
@given(ids=st.lists(st.integers(0, 511), min_size=2, max_size=60), data=st.data())
def test_any_cuts(exact, ids, data):
    """Guards chunked prefill: a cut inside an entry, a window, an n-gram; chunks of one token."""
    cuts = data.draw(st.sets(st.integers(1, len(ids) - 1), max_size=8))
    token_ids = torch.tensor(ids)
    assume(smallest_margin(exact, token_ids) > CLEAR)
    whole = run_whole(exact, token_ids[None])
    assert_close(run_in_chunks(exact, token_ids[None], sorted(cuts)), whole, TOLERANCE)


def test_decode_is_prefill(exact):
    """Guards decoding: 60 given tokens one by one give what one forward gives. A02."""
    token_ids = tokens(60)[None]
    expected = run_whole(exact, token_ids)
    assert_close(run_in_chunks(exact, token_ids, every(1, 60)), expected, TOLERANCE)


@pytest.mark.parametrize(
    ("name", "prompt", "chunk"),
    [
        ("a", "p40", 1),
        ("a", "p200", 3),
        ("a", "p200", 7),
        ("a", "p200", 64),
        ("b", "p40", 3),
        ("b", "p200", 7),
        ("b", "p400", 64),
        pytest.param("a", "p200", 1, marks=pytest.mark.slow),
        pytest.param("b", "p200", 1, marks=pytest.mark.slow),
    ],
)
def test_chunks_with_round_trips(name, prompt, chunk):
    """Guards what the cache holds: a chunk must read what the cache's format made of a value."""
    golden = load_golden(name)
    token_ids = golden.tensors[f"{prompt}/input_ids"].long()[None]
    cuts = every(chunk, token_ids.shape[1])
    actual = run_in_chunks(golden_network(name), token_ids, cuts)[0]
    assert_close(actual, golden.tensors[f"{prompt}/logits.fp32"], golden.tolerance(prompt))


def test_chunks_of_a_batch(exact):
    """Guards a store of several sequences: each chunk appends to its own."""
    token_ids = torch.stack([tokens(40, seed) for seed in range(3)])
    whole = run_whole(exact, token_ids)
    assert_close(run_in_chunks(exact, token_ids, every(9, 40)), whole, TOLERANCE)


# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(data=st.data(), length=st.integers(1, 40), num_sequences=st.integers(2, 5))
def test_batch_is_alone(tiny_networks, mode, data, length, num_sequences):
    """Guards batching, to the bit: no sequence feels another, whatever both hold, ties or not."""
    one = st.lists(st.integers(0, 511), min_size=length, max_size=length)
    token_ids = torch.tensor([data.draw(one) for _ in range(num_sequences)])
    alone = torch.cat([run_whole(tiny_networks[mode], ids[None]) for ids in token_ids])
    assert torch.equal(run_whole(tiny_networks[mode], token_ids), alone)


def padded(parts: list[Tensor], value: int) -> Tensor:
    """2-d tensors below each other, filled up on the right with `value`."""
    width = max(part.shape[1] for part in parts)
    return torch.cat(
        [torch.nn.functional.pad(p, (0, width - p.shape[1]), value=value) for p in parts]
    )


def shifted(index: Tensor, by: int) -> Tensor:
    return torch.where(index < 0, index, index + by)


def ragged_batch(network: Network, sequences: list[Tensor]) -> Batch:
    """Whole sequences of different lengths in one Batch: their batches, one after the other."""
    config = network.setup.config
    alone = [make_batch(config, ids[None]) for ids in sequences]
    starts = [sum(len(ids) for ids in sequences[:i]) for i in range(len(sequences))]
    entries = {}
    for ratio in alone[0].entries:
        rows = [batch.entries[ratio] for batch in alone]
        firsts = [sum(len(r.positions) for r in rows[:i]) for i in range(len(rows))]
        pairs = list(zip(rows, firsts, strict=True))
        entries[ratio] = EntryRows(
            members=torch.cat([r.members + s for r, s in zip(rows, starts, strict=True)]),
            positions=torch.cat([r.positions for r in rows]),
            blocks=padded([entry_table(r.blocks, r.per_block) + first for r, first in pairs], 0),
            per_block=1,
            num_visible=torch.cat([r.num_visible for r in rows]),
        )
    windows = [shifted(b.window_index, s) for b, s in zip(alone, starts, strict=True)]
    rows = [b.groups[0] + s for b, s in zip(alone, starts, strict=True)]
    return Batch(
        token_ids=torch.cat(sequences),
        positions=torch.cat([b.positions for b in alone]),
        lookback=torch.cat([b.lookback for b in alone]),
        sequence_ids=torch.cat([b.sequence_ids + i for i, b in enumerate(alone)]),
        groups=(padded(rows, -1),),
        window_index=padded(windows, -1),
        decoder_window_index=padded(windows, -1),
        entries=entries,
    )


@pytest.mark.parametrize(
    "lengths",
    [(1, 40), (40, 1), (2, 3), (17, 30, 5), (1, 1, 25, 1), (25, 1, 1, 1, 1, 1), (1, 2, 1, 33)],
    ids=str,
)
def test_ragged_batch(exact, lengths):
    """Guards padding: sequences of other lengths, and single dummy rows anywhere. A01, A08."""
    sequences = [tokens(length, seed) for seed, length in enumerate(lengths)]
    with torch.no_grad():
        together = exact.run(ragged_batch(exact, sequences), FreshStore())
        parts = exact.head(together.final).split(list(lengths))
    for ids, actual in zip(sequences, parts, strict=True):
        assert_close(actual, run_whole(exact, ids[None])[0], TOLERANCE)


# ---- the indexer's choice ------------------------------------------------------------------------


def plain_rotate(vector: list[float], position: int, frequencies: list[float]) -> list[float]:
    result, first = list(vector), len(vector) - 2 * len(frequencies)
    for pair, frequency in enumerate(frequencies):
        c, angle = first + 2 * pair, position * frequency
        x, y = vector[c], vector[c + 1]
        result[c] = x * math.cos(angle) - y * math.sin(angle)
        result[c + 1] = x * math.sin(angle) + y * math.cos(angle)
    return result


def plain_scores(network: Network, layer: int, calls: dict, keys: Tensor) -> list[list[float]]:
    """Scores of all entries for every row, one head at a time, in float64."""
    config, indexer = network.setup.config, network.layers[layer].attn.indexer
    frequencies = rope_frequencies(config, 1).tolist()
    (call,) = calls[f"layers.{layer}.attn.indexer"]
    u, query_latent = (x.double() for x in call.inputs[:2])
    queries, weights = query_latent @ indexer.wq_b.weight.double().T, []
    weights = u @ indexer.weights_proj.weight.double().T
    size, rows = config.index_head_dim, []
    for position, (query, weight) in enumerate(zip(queries, weights, strict=True)):
        scores = torch.zeros(len(keys), dtype=torch.float64)
        for head in range(config.index_n_heads):
            part = query[head * size : (head + 1) * size].tolist()
            turned = torch.tensor(plain_rotate(part, position, frequencies)).double()
            scores += weight[head] * (keys.double() @ turned).clamp_min(0)
        rows.append((scores * (config.index_n_heads * size) ** -0.5).tolist())
    return rows


def plain_candidates(config, scores: list[float], num_visible: int) -> set[int]:
    size = config.candidate_block_size
    blocks = [range(b, min(b + size, num_visible)) for b in range(0, num_visible, size)]
    ranked = sorted(range(len(blocks)), key=lambda b: (-max(scores[j] for j in blocks[b]), b))
    newest = len(blocks) - 1
    kept = [newest, *[b for b in ranked if b != newest]][: config.candidate_topk_blocks]
    return {j for b in kept for j in blocks[b]} if blocks else set()


def plain_selections(network: Network, token_ids: Tensor) -> dict[int, list[set[int]]]:
    """By layer, the set that each row must select."""
    config = network.setup.config
    _, store, calls = run_recorded(network, token_ids)
    chosen: dict[int, list[set[int]]] = {}
    candidates: dict[int, list[set[int]]] = {}
    for plan in network.plans:
        if not plan.owns_index:
            continue
        layer = plan.layer_id
        all_scores = plain_scores(network, layer, calls, store.kept_keys[plan.kv_source])
        chosen[layer], candidates[layer] = [], []
        for position, scores in enumerate(all_scores):
            num_visible = (position + 1) // plan.ratio
            allowed = set(range(num_visible))
            candidates[layer].append(plain_candidates(config, scores, num_visible))
            if plan.candidate_source is not None:
                allowed &= candidates[plan.candidate_source][position]
            ranked = sorted(allowed, key=lambda j: (-scores[j], j))
            chosen[layer].append(set(ranked[: config.index_topk]))
    return chosen


@pytest.fixture(scope="module")
def expected_selections(exact):
    token_ids = tokens(80, seed=4)
    assert smallest_margin(exact, token_ids) > CLEAR
    return token_ids, plain_selections(exact, token_ids)


@pytest.mark.parametrize("chunk", [80, 3, 7, 1])
def test_selected_sets(exact, expected_selections, chunk):
    """Guards the indexer: heads, activation, and rows that are fewer than entries. A07."""
    token_ids, expected = expected_selections
    selected: dict[int, list[set[int]]] = {layer: [] for layer in expected}
    store, start = GrowingStore(1), 0
    for end in [*every(chunk, len(token_ids)), len(token_ids)]:
        with torch.no_grad(), recording(exact) as calls:
            exact.run(make_batch(exact.setup.config, token_ids[None, :end], start), store)
        for layer, rows in selected.items():
            (call,) = calls[f"layers.{layer}.attn.indexer"]
            rows.extend(set(row) - {-1} for row in call.output.selected.tolist())
        start = end
    assert selected == expected
