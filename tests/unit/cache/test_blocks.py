"""Ids go out and come back, and nobody gets what another one has."""

import random
from collections import Counter
from collections.abc import Iterable
from itertools import takewhile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

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


# -- What is kept ----------------------------------------------------------------------------------


def kept_pool(*keys: bytes) -> tuple[BlockPool, list[tuple[int, bytes]]]:
    """A pool of kept blocks 0, 1, ... with these keys, of one sequence; and its evictions."""
    evicted: list[tuple[int, bytes]] = []
    pool = BlockPool(len(keys), lambda block_id, key: evicted.append((block_id, key)))
    block_ids = pool.allocate(len(keys)) or []
    assert list(map(pool.register, block_ids, keys)) == block_ids
    pool.free(block_ids)
    return pool, evicted


def test_kept_until_it_is_overwritten() -> None:
    """What a sequence left behind is not found; or it is found after it was overwritten, and a
    tenant reads another one's tokens."""
    pool, evicted = kept_pool(b"a", b"b")
    assert (pool.num_free, pool.num_kept) == (2, 2)
    assert [pool.find(key) for key in (b"a", b"b", b"c")] == [0, 1, None]
    assert [pool.key(block_id) for block_id in (0, 1)] == [b"a", b"b"]
    assert pool.allocate(1) == [1]
    assert evicted == [(1, b"b")]
    assert [pool.find(key) for key in (b"a", b"b")] == [0, None]
    assert (pool.key(1), pool.num_evicted, pool.num_registered) == (None, 1, 2)
    pool.free([1])
    assert (pool.num_free, pool.num_kept) == (2, 1)


def test_a_block_comes_back() -> None:
    """A hit on a block without an owner leaves it in the queue, to be overwritten while in use."""
    pool, evicted = kept_pool(b"a", b"b")
    pool.share([0])
    assert (pool.num_owners(0), pool.num_free, pool.num_kept) == (1, 1, 1)
    assert pool.allocate(2) is None
    assert (pool.num_kept, evicted) == (1, [])
    assert pool.allocate(1) == [1]
    pool.free([0])
    assert (pool.find(b"a"), pool.num_kept, evicted) == (0, 1, [(1, b"b")])


def test_order_of_eviction() -> None:
    """What was in use a moment ago, or the start of a sequence, goes before what is old, or its
    end; or content is lost while empty blocks lie idle."""
    pool, evicted = kept_pool(*(b"%d" % number for number in range(6)))
    pool.forget([b"3"])
    pool.share([4, 5])
    pool.free([4, 5])
    assert pool.allocate(6) == [3, 2, 1, 0, 5, 4]
    assert evicted == [(block_id, b"%d" % block_id) for block_id in (2, 1, 0, 5, 4)]


def test_registering_twice() -> None:
    """The same text from two requests: one key leads to two blocks, and freeing one leaves it
    leading to what another tenant writes."""
    pool = BlockPool(3)
    assert pool.allocate(3) == [0, 1, 2]
    assert [pool.register(0, b"a"), pool.register(1, b"a"), pool.register(0, b"a")] == [0, 0, 0]
    assert (pool.num_registered, pool.num_duplicates) == (1, 1)
    assert [pool.key(0), pool.key(1)] == [b"a", None]
    for block_id, num_kept in ((1, 0), (0, 1)):
        pool.free([block_id])
        assert (pool.num_kept, pool.find(b"a")) == (num_kept, 0)
    with pytest.raises(AssertionError, match="block 0 is free already"):
        pool.register(0, b"a")
    pool.register(2, b"b")
    with pytest.raises(AssertionError, match="block 2 has another key"):
        pool.register(2, b"a")


def test_forgotten() -> None:
    """After new weights came, the cache still answers from the old ones; or blocks are lost."""
    pool, evicted = kept_pool(b"a", b"b", b"c")
    pool.share([0])
    pool.forget([b"b", b"unknown", b"b"])
    assert [pool.find(key) for key in (b"a", b"b", b"c")] == [0, None, 2]
    assert (pool.num_free, pool.num_kept) == (2, 1)
    pool.clear()
    assert [pool.find(key) for key in (b"a", b"b", b"c")] == [None] * 3
    pool.free([0])
    assert (pool.num_free, pool.num_kept) == (3, 0)
    assert len(pool.allocate(3) or []) == 3
    assert (evicted, pool.num_evicted) == ([], 0)


def test_what_was_hit_is_evicted_last() -> None:
    """B08: A, B, A, C and A again in a pool for two; C overwrites A, which was hit a moment ago,
    and so the last A finds nothing."""
    pool = BlockPool(6)
    for name in (b"A", b"B", b"A", b"C", b"A"):
        keys = [b"%s%d" % (name, number) for number in range(3)]
        hit = [block_id for block_id in map(pool.find, keys) if block_id is not None]
        pool.share(hit)
        block_ids = hit + (pool.allocate(3 - len(hit)) or [])
        assert list(map(pool.register, block_ids, keys)) == block_ids
        pool.free(block_ids)
    assert (pool.num_registered, pool.num_evicted) == (9, 3)  # of B


KEYS = [b"%d" % number for number in range(5)]


class PoolMachine(RuleBasedStateMachine):
    """The pool beside plain lists that are searched whole, for every answer."""

    @initialize(num_blocks=st.integers(0, 6))
    def start(self, num_blocks: int) -> None:
        self.log: list[tuple[int, bytes]] = []
        self.pool = BlockPool(num_blocks, lambda *pair: self.log.append(pair))
        self.all = range(num_blocks)
        self.owners = [0] * num_blocks
        self.keys: list[bytes | None] = [None] * num_blocks
        self.order = list(self.all)  # the free ones, those that became free first first
        self.known: list[bytes] = []  # keys in the order of their registering
        self.evicted: list[tuple[int, bytes]] = []
        self.num_registered = self.num_duplicates = 0

    def some(self, data: st.DataObject, block_ids: Iterable[int]) -> list[int]:
        return data.draw(st.permutations(list(block_ids)))[: data.draw(st.integers(1, 4))]

    @rule(num_blocks=st.integers(0, 4))
    def allocate(self, num_blocks: int) -> None:
        queue = sorted(self.order, key=lambda i: self.keys[i] is not None)
        taken = queue[:num_blocks] if num_blocks <= len(queue) else None
        assert self.pool.allocate(num_blocks) == taken
        for block_id in taken or []:
            key, self.keys[block_id] = self.keys[block_id], None
            self.evicted += [] if key is None else [(block_id, key)]
            self.owners[block_id] = 1
            self.order.remove(block_id)

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block_ids = self.some(data, [i for i in self.all if self.owners[i] or self.keys[i]])
        self.pool.share(block_ids)
        for block_id in block_ids:
            self.owners[block_id] += 1
            self.order = [i for i in self.order if i != block_id]

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        block_ids = self.some(data, filter(self.owners.__getitem__, self.all))
        self.pool.free(block_ids)
        for block_id in reversed(block_ids):
            self.owners[block_id] -= 1
            self.order += [] if self.owners[block_id] else [block_id]

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def register(self, data: st.DataObject, key: bytes) -> None:
        for block_id in self.some(data, filter(self.owners.__getitem__, self.all)):
            own_key = self.keys[block_id] or key
            found = self.keys.index(own_key) if own_key in self.keys else block_id
            if own_key not in self.keys:
                self.num_registered += 1
                self.known = [k for k in self.known if k != own_key] + [own_key]
            self.num_duplicates += found != block_id
            self.keys[found] = own_key
            assert self.pool.register(block_id, own_key) == found

    @rule(keys=st.none() | st.lists(st.sampled_from(KEYS), max_size=3))
    def forget(self, keys: list[bytes] | None) -> None:
        if keys is None:
            self.pool.clear()
            keys = [key for key in self.known if key in self.keys]
        else:
            self.pool.forget(keys)
        for block_id in [self.keys.index(key) for key in dict.fromkeys(keys) if key in self.keys]:
            self.keys[block_id] = None
            if block_id in self.order:
                self.order.remove(block_id)
                self.order.append(block_id)

    @invariant()
    def same(self) -> None:
        pool = self.pool
        assert [pool.num_owners(i) for i in self.all] == self.owners
        assert [pool.key(i) for i in self.all] == self.keys
        found = [pool.find(key) for key in KEYS]
        assert found == [self.keys.index(key) if key in self.keys else None for key in KEYS]
        assert pool.num_free == len(self.order)
        assert pool.num_kept == len([i for i in self.order if self.keys[i]])
        assert self.log == self.evicted
        counts = (pool.num_registered, pool.num_duplicates, pool.num_evicted)
        assert counts == (self.num_registered, self.num_duplicates, len(self.evicted))


PoolMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True
)
TestPool = PoolMachine.TestCase


class Users:
    """They come with prompts that begin alike, find, compute, register and leave, in any order."""

    def __init__(self, num_blocks: int) -> None:
        self.rng = random.Random(8)
        self.content = [b""] * num_blocks
        self.pool = BlockPool(num_blocks, self.evicted)
        self.held: list[tuple[list[int], list[bytes]]] = []  # blocks, and the keys they will have
        self.num_hits = 0

    def evicted(self, block_id: int, key: bytes) -> None:
        assert self.content[block_id] == key, "overwritten before it was reported"

    def come(self) -> None:
        text = bytes(self.rng.choices(b"ab", k=self.rng.randint(1, 9)))
        keys = [text[:end] for end in range(1, len(text) + 1)]
        hit = list(takewhile(lambda found: found is not None, map(self.pool.find, keys)))
        assert [self.content[block_id] for block_id in hit] == keys[: len(hit)]
        self.pool.share(hit)
        more = self.pool.allocate(len(keys) - len(hit))
        if more is None:
            return self.pool.free(hit)
        for block_id in more:
            self.content[block_id] = b"half"
        self.num_hits += len(hit)
        return self.held.append((hit + more, keys))

    def compute(self) -> None:
        for block_id, key in zip(*self.rng.choice(self.held), strict=True):
            self.content[block_id] = key
            self.pool.register(block_id, key)

    def leave(self) -> None:
        self.pool.free(self.held.pop(self.rng.randrange(len(self.held)))[0])

    def check(self) -> None:
        owners = Counter(block_id for block_ids, _ in self.held for block_id in block_ids)
        everyone = range(self.pool.num_blocks)
        assert [self.pool.num_owners(i) for i in everyone] == [owners[i] for i in everyone]
        assert self.pool.num_free == len(everyone) - len(owners)


def test_two_hundred_thousand_operations() -> None:
    """A12, A13: after many operations a block is missing, has two owners unknown to each other, or
    is found by the key of what it held before."""
    pool = (users := Users(60)).pool
    for number, chance in enumerate(users.rng.random() for _ in range(200_000)):
        if chance < 0.4 or not users.held:
            users.come()
        elif chance < 0.6:
            users.compute()
        elif chance < 0.98:
            users.leave()
        else:
            pool.forget([users.rng.choice([b"a", b"b", b"ab", b"aba"])])
        if number % 100 == 0:
            users.check()
        if number % 20_000 == 0:
            pool.clear()
    while users.held:
        users.leave()
    users.check()
    assert min(users.num_hits, pool.num_evicted, pool.num_duplicates) > 5_000
    pool.clear()
    assert sorted(pool.allocate(60) or []) == list(range(60))


# -- Slots -----------------------------------------------------------------------------------------


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
