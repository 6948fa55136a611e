"""Ids go out and come back, and nobody gets what another one has."""

import random
from collections import Counter

import pytest

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.slots import SlotPool


def test_all_or_nothing() -> None:
    """A request is given half of its blocks and keeps them while it waits for the rest."""
    pool = BlockPool(4)
    first = pool.allocate(3)
    assert first is not None
    assert len(set(first)) == 3
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(1) == [3]
    assert pool.allocate(0) == []


def test_freed_first_goes_first() -> None:
    """A block that was freed a moment ago is overwritten while older ones lie idle."""
    pool = BlockPool(4)
    assert pool.allocate(4) == [0, 1, 2, 3]
    pool.free([2])
    pool.free([0])
    pool.free([3])
    assert pool.allocate(2) == [2, 0]


def test_the_end_of_a_sequence_goes_before_its_start() -> None:
    """The start of a sequence, which others may have in common, is overwritten first."""
    pool = BlockPool(3)
    pool.free(pool.allocate(3) or [])
    assert pool.allocate(3) == [2, 1, 0]


def test_shared_blocks_stay_until_the_last_owner() -> None:
    """One owner's end frees what another one still reads."""
    pool = BlockPool(2)
    block_ids = pool.allocate(2)
    assert block_ids is not None
    pool.share(block_ids[:1])
    assert [pool.num_owners(i) for i in block_ids] == [2, 1]
    pool.free(block_ids)
    assert pool.num_free == 1
    assert pool.num_owners(block_ids[0]) == 1
    pool.free(block_ids[:1])
    assert pool.num_free == 2


def test_mistakes_are_noticed() -> None:
    """A13: a block is freed through an old id and taken from its new owner."""
    pool = BlockPool(2)
    block_ids = pool.allocate(1)
    assert block_ids is not None
    pool.free(block_ids)
    with pytest.raises(AssertionError, match="block 0 is free already"):
        pool.free(block_ids)
    with pytest.raises(AssertionError, match="block 0 is free already"):
        pool.share(block_ids)
    for unknown in (-1, 2):
        with pytest.raises(AssertionError, match=f"no block {unknown}"):
            pool.free([unknown])


def test_random_owners_add_up() -> None:
    """A12: after thousands of operations a block is missing, or has two owners unknown to each
    other."""
    rng, pool = random.Random(12), BlockPool(20)
    held: list[list[int]] = []
    for _ in range(5000):
        choice = rng.random()
        if choice < 0.4:
            block_ids = pool.allocate(rng.randrange(6))
            held += [] if block_ids is None else [block_ids]
        elif choice < 0.55 and held:
            shared = rng.choice(held)[: rng.randrange(6)]
            pool.share(shared)
            held.append(list(shared))
        elif held:
            pool.free(held.pop(rng.randrange(len(held))))
        owners = Counter(block_id for block_ids in held for block_id in block_ids)
        assert [pool.num_owners(i) for i in range(20)] == [owners[i] for i in range(20)]
        assert pool.num_free == 20 - len(owners)


def test_slots() -> None:
    """A13: two sequences write into one slot, or a slot is given back twice and then to two."""
    pool = SlotPool(2)
    taken = {pool.allocate(), pool.allocate()}
    assert taken == {0, 1}
    assert pool.allocate() is None
    pool.free(1)
    assert pool.num_free == 1
    assert pool.allocate() == 1
    pool.free(0)
    with pytest.raises(AssertionError, match="slot 0 is free already"):
        pool.free(0)
    for unknown in (-1, 2):
        with pytest.raises(AssertionError, match=f"no slot {unknown}"):
            pool.free(unknown)
