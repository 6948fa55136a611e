"""A sequence moved to other slots and blocks, of other pools, goes on as if it had stayed."""

from itertools import product

import pytest
import torch
from torch import Tensor

from deepinfer.cache.layout import (
    BLOCK_TOKENS,
    SLACK_ROWS,
    block_parts,
    blocks_for,
    slot_parts,
    total_bytes,
)
from deepinfer.config.model import ModelConfig
from deepinfer.model.network import Network
from deepinfer.worker.pools import Pools, make_pools
from deepinfer.worker.transfer import SequenceState, export_sequence, import_sequence
from deepinfer.worker.worker import Worker
from tests.laws.engines import poison, run_logits
from tests.laws.networks import DTYPES, open_source


@pytest.fixture(scope="module")
def networks(tiny_dir) -> dict[str, Network]:
    source = open_source(tiny_dir)
    return {mode: source.network(mode) for mode in ("fp32", "bf16")}


def tensors(pools: Pools) -> list[tuple[str, Tensor]]:
    """All of them; the name says whether slots or blocks come first."""
    slots = [*pools.window.values(), *pools.draft_window.values(), *pools.pending.values()]
    blocks = [*pools.entries.values(), *pools.keys.values()]
    return [("slot", one) for one in (*slots, pools.token_ids)] + [("block", o) for o in blocks]


def fill(pools: Pools, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _, pool in tensors(pools):
        pool.copy_(torch.randint(-99, 99, pool.shape, generator=generator))


def snapshot(pools: Pools) -> list[Tensor]:
    return [pool.clone() for _, pool in tensors(pools)]


def some_ids(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 500, (length,), generator=generator).tolist()


# ---- the copy ------------------------------------------------------------------------------------


def test_every_tensor_comes_back(tiny_config: ModelConfig) -> None:
    """B10: one of the tensors is left out, or a slot's is taken for a block's."""
    source, target = make_pools(tiny_config, 5, 3), make_pools(tiny_config, 7, 4)
    fill(source, 0)
    fill(target, 1)
    before = snapshot(target)
    import_sequence(target, 2, [6, 1, 3], export_sequence(source, 1, [4, 0, 2]))
    moves = {"slot": ([1], [2]), "block": ([4, 0, 2], [6, 1, 3])}
    for (kind, pool), (_, original), old in zip(
        tensors(target), tensors(source), before, strict=True
    ):
        places, new_places = moves[kind]
        assert torch.equal(pool[new_places], original[places])
        others = [place for place in range(len(pool)) if place not in new_places]
        assert torch.equal(pool[others], old[others])


def test_the_copy_is_a_copy(tiny_config: ModelConfig) -> None:
    """M10: the sequence goes on, or its memory is handed out, while the copy is on its way."""
    pools = make_pools(tiny_config, 3, 2)
    fill(pools, 0)
    state = export_sequence(pools, 0, [2, 0])
    expected = {part: tensor.clone() for part, tensor in state.slot.items()}
    expected_blocks = {part: tensor.clone() for part, tensor in state.blocks.items()}
    poison(pools, range(2), range(3))
    assert all(torch.equal(state.slot[part], one) for part, one in expected.items())
    assert all(torch.equal(state.blocks[part], one) for part, one in expected_blocks.items())


def test_positions_are_where_they_were(tiny_config: ModelConfig) -> None:
    """A14: window KV comes back a few rows off: every row is tagged with its position."""
    source, target = make_pools(tiny_config, 4, 2), make_pools(tiny_config, 9, 3)
    ring = tiny_config.sliding_window + SLACK_ROWS
    blocks, new_blocks, length = [3, 1], [8, 0], 200
    for position in range(length):
        for pool in (*source.window.values(), *source.draft_window.values()):
            pool[1, position % ring] = position
        source.token_ids[1, position % SLACK_ROWS] = position
        for pool in (*source.entries.values(), *source.keys.values()):
            ratio = BLOCK_TOKENS // pool.shape[1]
            pool[blocks[position // BLOCK_TOKENS], position % BLOCK_TOKENS // ratio] = position
    import_sequence(target, 0, new_blocks, export_sequence(source, 1, blocks))
    for position in range(length - tiny_config.sliding_window, length):
        for pool in (*target.window.values(), *target.draft_window.values()):
            assert (pool[0, position % ring] == position).all()
    assert target.token_ids[0, (length - 1) % SLACK_ROWS] == length - 1
    for pool in (*target.entries.values(), *target.keys.values()):
        ratio = BLOCK_TOKENS // pool.shape[1]
        for last in range(ratio - 1, length, ratio):
            block = new_blocks[last // BLOCK_TOKENS]
            assert (pool[block, last % BLOCK_TOKENS // ratio] == last).all()


def test_bytes(tiny_config: ModelConfig) -> None:
    """B09: what a move costs is not what the layout says a sequence holds."""
    pools = make_pools(tiny_config, 4, 2)
    slot = total_bytes(slot_parts(tiny_config, "bfloat16"))
    block = total_bytes(block_parts(tiny_config, "bfloat16"))
    for num_blocks in (1, 2, 4):
        state = export_sequence(pools, 0, range(num_blocks))
        assert state.num_bytes == slot + num_blocks * block


# ---- going on ------------------------------------------------------------------------------------


def moved(network: Network, ids: list[int], cut: int) -> Tensor:
    """Logits of a sequence that moves after `cut` rows, into poisoned memory of another size."""
    first = Worker(network, make_pools(network.setup.config, 3, 2))
    poison(first.pools, range(2), range(3))
    blocks = [2, 0][: blocks_for(cut)]
    (begun,) = run_logits(first, [ids[:cut]], [[(0, cut)]], slots=[1], blocks=[blocks])
    state: SequenceState = export_sequence(first.pools, 1, blocks)
    poison(first.pools, range(2), range(3))

    second = Worker(network, make_pools(network.setup.config, 8, 5))
    poison(second.pools, range(5), range(8))
    blocks = [7, 3][: len(blocks)]
    import_sequence(second.pools, 4, blocks, state)
    blocks += [5][: blocks_for(len(ids)) - len(blocks)]
    rest = len(ids) - cut
    steps = [[(0, min(2, rest))]] + [[(0, 1)]] * (rest - 2)
    (ended,) = run_logits(second, [ids], steps, slots=[4], blocks=[blocks], done=[cut])
    return torch.cat((begun, ended))


@pytest.mark.parametrize(
    ("mode", "cut"),
    [*product(["fp32"], [*range(1, 27), 127, 128, 129]), ("bf16", 7), ("bf16", 128)],
)
def test_goes_on_to_the_bit(mode: str, cut: int, networks: dict[str, Network]) -> None:
    """A14, B10, M10: moved at any place, half an entry and a turned ring included."""
    assert networks[mode].setup.dtype == DTYPES[mode]
    ids = some_ids(cut + 4)
    worker = Worker(networks[mode], make_pools(networks[mode].setup.config, 2, 1))
    (stayed,) = run_logits(worker, [ids], [[(0, len(ids))]], slots=[0], blocks=[[0, 1]])
    assert torch.equal(moved(networks[mode], ids, cut), stayed)
