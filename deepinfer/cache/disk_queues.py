"""The two threads of the disk tier: one writes behind what was put, one reads ahead what is wanted.

Both queues are bounded in bytes, and nobody ever waits for room in them. They know nothing of
files: they are given a function that writes a blob and one that reads it. Those deal with errors
themselves; if one raises all the same, its thread ends and its queue is closed, so that nobody
waits for it.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

# A blob that was read ahead and that nobody took for so long gives way to what is wanted now.
_STALE_S = 30.0
# Keys that wait to be read ahead; beyond, those wanted first are forgotten.
_MAX_WANTED = 65_536


class WriteBehind:
    """Blobs that wait to be written, in the order in which they were put."""

    def __init__(
        self,
        write: Callable[[bytes, bytes], None],
        tend: Callable[[], None],
        *,
        tend_every_s: float,
        capacity_bytes: int,
    ) -> None:
        """write(key, blob): stores one. tend(): called first, and again every `tend_every_s`.

        Both are called by the one thread alone, after `start`.
        """
        self._write = write
        self._tend = tend
        self._tend_every_s = tend_every_s
        self._capacity_bytes = capacity_bytes
        self._changed = threading.Condition()
        self._blobs: OrderedDict[bytes, bytes] = OrderedDict()
        self._writing: tuple[bytes, bytes] | None = None
        self._num_bytes = 0  # with those of the one that is just being written
        self._next_tend_s = 0.0  # by the monotonic clock
        self._is_busy = True
        self._is_closed = False

    def start(self) -> None:
        """Begin to write."""
        threading.Thread(target=self._run, name="kv-write-behind", daemon=True).start()

    def put(self, key: bytes, blob: bytes) -> bool:
        """Queue a blob; False if there is no room or it is closed. One that waits stays once."""
        with self._changed:
            if key in self._blobs:
                return True
            if self._is_closed or self._num_bytes + len(blob) > self._capacity_bytes:
                return False
            self._blobs[key] = blob
            self._num_bytes += len(blob)
            self._changed.notify_all()
            return True

    def get(self, key: bytes) -> bytes | None:
        """A blob that still waits, or is just being written."""
        with self._changed:
            if self._writing and self._writing[0] == key:
                return self._writing[1]
            return self._blobs.get(key)

    def remove(self, key: bytes) -> None:
        """Forget a blob; if it is just being written, return when it is."""
        with self._changed:
            self._num_bytes -= len(self._blobs.pop(key, b""))
            self._changed.wait_for(lambda: not self._writing or self._writing[0] != key)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all is written and the thread rests; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._blobs or self._is_busy), timeout_s)

    def close(self) -> int:
        """Take nothing more, forget what waits, let the thread end; the number of those forgotten.

        Does not wait for a write that has begun.
        """
        with self._changed:
            num_forgotten = len(self._blobs)
            self._is_closed = True
            self._blobs.clear()
            self._changed.notify_all()
            return num_forgotten

    def _run(self) -> None:
        try:
            while not self._is_closed:
                if time.monotonic() >= self._next_tend_s:
                    self._tend()
                    self._next_tend_s = time.monotonic() + self._tend_every_s
                if item := self._next():
                    self._write(*item)
        finally:
            self.close()
            self._rest()

    def _next(self) -> tuple[bytes, bytes] | None:
        """The blob to write now; None when it is time to tend, and when it is closed."""
        with self._changed:
            self._rest()
            self._changed.wait_for(
                lambda: self._blobs or self._is_closed, self._next_tend_s - time.monotonic()
            )
            self._is_busy = True
            if self._blobs:
                self._writing = self._blobs.popitem(last=False)
            return self._writing

    def _rest(self) -> None:
        with self._changed:
            if self._writing:
                self._num_bytes -= len(self._writing[1])
            self._writing = None
            self._is_busy = False
            self._changed.notify_all()


class ReadAhead:
    """Blobs that were read before anybody asked, each to be taken once.

    When the buffer is full, the thread stops until something is taken: what is wanted first is
    taken first. (It may hold one blob more than its capacity.)
    """

    def __init__(self, read: Callable[[bytes], bytes | None], *, capacity_bytes: int) -> None:
        """read(key): the blob, or None; called by the one thread alone."""
        self._read = read
        self._capacity_bytes = capacity_bytes
        self._changed = threading.Condition()
        self._wanted: OrderedDict[bytes, None] = OrderedDict()
        self._reading: bytes | None = None
        # With the time at which each was read; the oldest first.
        self._ready: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self._num_bytes = 0
        self._is_closed = False
        threading.Thread(target=self._run, name="kv-read-ahead", daemon=True).start()

    def want(self, keys: Iterable[bytes]) -> None:
        """Read these in the background, in this order, after what was wanted before."""
        with self._changed:
            self._forget_stale()
            for key in keys:
                if key not in self._ready and key != self._reading:
                    self._wanted[key] = None
            while len(self._wanted) > _MAX_WANTED:
                self._wanted.popitem(last=False)
            self._changed.notify_all()

    def take(self, key: bytes) -> bytes | None:
        """The blob if it was read ahead, or is just being read; else it is wanted no more."""
        with self._changed:
            self._wanted.pop(key, None)
            self._changed.wait_for(lambda: self._reading != key)
            return self._pop(key)

    def close(self) -> None:
        """Want nothing more, forget what was read, let the thread end."""
        with self._changed:
            self._is_closed = True
            self._wanted.clear()
            self._ready.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while (key := self._next()) is not None:
                self._keep(key, self._read(key))
        finally:
            self.close()
            self._keep(b"", None)

    def _next(self) -> bytes | None:
        """The key to read now; None when it is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or (self._wanted and self._num_bytes < self._capacity_bytes)
            )
            self._reading = None if self._is_closed else self._wanted.popitem(last=False)[0]
            return self._reading

    def _keep(self, key: bytes, blob: bytes | None) -> None:
        with self._changed:
            self._reading = None
            if blob is not None and not self._is_closed:
                self._ready[key] = blob, time.monotonic()
                self._num_bytes += len(blob)
            self._changed.notify_all()

    def _forget_stale(self) -> None:
        now = time.monotonic()
        while self._ready:
            key = next(iter(self._ready))
            if now - self._ready[key][1] < _STALE_S:
                return
            self._pop(key)

    def _pop(self, key: bytes) -> bytes | None:
        blob, _ = self._ready.pop(key, (None, 0.0))
        if blob is not None:
            self._num_bytes -= len(blob)
            self._changed.notify_all()
        return blob
