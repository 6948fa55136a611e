"""The host tier against a slow model of it: what stays, what goes, what is counted."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from hypothesis import given

from deepinfer.cache.host_tier import HostCounters, HostTier
from tests.unit.cache.blobs import blob_of, is_right, key_of, keys_of

CAPACITY = 10
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "get", "has", "remove"]), st.integers(0, 5), st.integers(1, 12)
    ),
    max_size=60,
)


class Model:
    """Keys with lengths in a list, the least recently used first."""

    def __init__(self) -> None:
        self.held: list[tuple[int, int]] = []
        self.hits = self.misses = self.stored = self.evicted = self.dropped = 0

    def take(self, number: int) -> int | None:
        for i, (key, length) in enumerate(self.held):
            if key == number:
                del self.held[i]
                return length
        return None

    def put(self, number: int, length: int) -> None:
        is_new = self.take(number) is None
        if length > CAPACITY:
            self.dropped += 1
            return
        self.held.append((number, length))
        self.stored += is_new
        while sum(length for _, length in self.held) > CAPACITY:
            del self.held[0]
            self.evicted += 1

    def get(self, number: int) -> int | None:
        length = self.take(number)
        if length is None:
            self.misses += 1
        else:
            self.hits += 1
            self.held.append((number, length))
        return length

    def counters(self) -> HostCounters:
        used = sum(length for _, length in self.held)
        return HostCounters(
            self.hits, self.misses, self.stored, self.evicted, self.dropped, used_bytes=used
        )


@given(OPERATIONS)
def test_as_the_model_says(operations: list[tuple[str, int, int]]) -> None:
    """The wrong blob goes, one more than needed goes, or bytes are lost in the account."""
    tier, model = HostTier(CAPACITY), Model()
    for name, number, length in operations:
        key = key_of(number)
        if name == "put":
            tier.put(key, blob_of(key, length))
            model.put(number, length)
        elif name == "get":
            blob, expected = tier.get(key), model.get(number)
            assert blob == (None if expected is None else blob_of(key, expected))
        elif name == "has":
            assert tier.has(key) == (number in dict(model.held))
        else:
            tier.remove(key)
            model.take(number)
        assert tier.counters() == model.counters()
        assert tier.counters().used_bytes <= CAPACITY


def test_a_get_keeps_a_blob_longer_and_a_look_does_not() -> None:
    """What is used all the time goes first, since it was put first."""
    tier = HostTier(3)
    a, b, c, d = keys_of(range(4))
    for key in (a, b, c):
        tier.put(key, b"x")
    assert tier.get(a) == b"x"
    assert tier.has(b)
    tier.put(d, b"x")
    assert [tier.has(key) for key in (a, b, c, d)] == [True, False, True, True]


def test_too_large_is_dropped_and_pushes_nobody_out() -> None:
    """One blob that can never fit empties the tier."""
    tier = HostTier(3)
    tier.put(key_of(0), b"xyz")
    tier.put(key_of(1), b"wxyz")
    assert tier.get(key_of(0)) == b"xyz"
    assert not tier.has(key_of(1))
    assert tier.counters() == HostCounters(1, 0, 1, 0, 1, used_bytes=3)


def test_a_buffer_is_refused() -> None:
    """A view of memory that the next block overwrites is kept, and becomes another block's."""
    with pytest.raises(AssertionError, match="may change"):
        HostTier(3).put(key_of(0), bytearray(b"x"))  # type: ignore[arg-type]


def test_threads() -> None:
    """Two threads push out at once, and bytes are counted twice or never."""
    tier = HostTier(50 * 100)

    def work(seed: int) -> None:
        for i in range(2000):
            key = key_of(i * (seed + 1) % 80)
            blob = tier.get(key)
            assert blob is None or is_right(key, blob)
            tier.put(key, blob_of(key, 100))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert tier.counters().used_bytes == 50 * 100 == 100 * sum(map(tier.has, keys_of(range(80))))


@pytest.mark.parametrize(
    "use",
    [
        lambda tier: tier.put(key_of(0), b"x"),
        lambda tier: tier.get(key_of(0)),
        lambda tier: tier.remove(key_of(0)),
        lambda tier: tier.counters(),
    ],
    ids=["put", "get", "remove", "counters"],
)
def test_one_thread_at_a_time(use: Callable[[HostTier], object]) -> None:
    """The same, where this Python happens never to switch threads in the middle."""
    tier = HostTier(3)
    with tier._lock:
        thread = threading.Thread(target=use, args=(tier,))
        thread.start()
        thread.join(0.02)
        assert thread.is_alive()
    thread.join(10.0)
    assert not thread.is_alive()
