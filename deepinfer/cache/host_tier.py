"""`HostTier`: blobs in host memory, the least recently used out first.

Knows keys and bytes only: neither what a blob holds nor where it goes when it is pushed out. A blob
is the content of one block.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostCounters:
    """What a host tier did since it was made, and what it holds.

    num_stored: keys that were new. num_evicted: pushed out to make room. num_dropped: larger than
    the whole tier. used_bytes: of the blobs that are there, without what Python adds to each.
    """

    num_hits: int
    num_misses: int
    num_stored: int
    num_evicted: int
    num_dropped: int
    used_bytes: int


class HostTier:
    """At most `capacity_bytes` of blobs. Every operation takes constant time, on average.

    (A put may push out several blobs, but none of them twice.) Any thread may call.
    """

    def __init__(self, capacity_bytes: int) -> None:
        assert capacity_bytes > 0, "a tier without room"
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._blobs: OrderedDict[bytes, bytes] = OrderedDict()  # the next to go is the first
        self._num_hits = self._num_misses = self._num_stored = self._num_evicted = 0
        self._num_dropped = self._used_bytes = 0

    def put(self, key: bytes, blob: bytes) -> None:
        """Keep a blob, now the most recently used. One of the same key is replaced."""
        assert isinstance(blob, bytes), "a blob that may change later"
        with self._lock:
            is_new = self._pop(key) is None
            if len(blob) > self.capacity_bytes:
                self._num_dropped += 1
                return
            while self._used_bytes + len(blob) > self.capacity_bytes:
                self._pop(next(iter(self._blobs)))
                self._num_evicted += 1
            self._blobs[key] = blob
            self._used_bytes += len(blob)
            self._num_stored += is_new

    def get(self, key: bytes) -> bytes | None:
        """The blob, now the most recently used; None, and a miss, if it is not there."""
        with self._lock:
            blob = self._blobs.get(key)
            if blob is None:
                self._num_misses += 1
                return None
            self._blobs.move_to_end(key)
            self._num_hits += 1
            return blob

    def has(self, key: bytes) -> bool:
        """Whether a get would hit. Counts nothing and moves nothing."""
        return key in self._blobs

    def remove(self, key: bytes) -> None:
        """Forget a blob, if it is there."""
        with self._lock:
            self._pop(key)

    def counters(self) -> HostCounters:
        """A snapshot."""
        with self._lock:
            return HostCounters(
                self._num_hits,
                self._num_misses,
                self._num_stored,
                self._num_evicted,
                self._num_dropped,
                self._used_bytes,
            )

    def _pop(self, key: bytes) -> bytes | None:
        blob = self._blobs.pop(key, None)
        if blob is not None:
            self._used_bytes -= len(blob)
        return blob
