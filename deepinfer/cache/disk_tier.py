"""`DiskTier`: blobs in a folder that outlive the process and are shared by all that use the folder.

A blob is the content of one block; somebody else makes keys and blobs. Equal keys mean equal blobs,
so a blob is never changed, and of two writers it does not matter who is first. No reader takes a
lock. `disk_file` says what a file is, `disk_folder` where files lie and which go, `disk_queues`
what runs in the background. This file puts them together, counts, and gives up when a disk fails.
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deepinfer.cache.disk_file import (
    HEADER_BYTES,
    CorruptFileError,
    ForeignFileError,
    digest_of,
    read_file,
    touch_file,
    write_file,
)
from deepinfer.cache.disk_folder import SPARE, blob_path, prepare, reclaim, way_out
from deepinfer.cache.disk_queues import ReadAhead, WriteBehind
from deepinfer.errors import ConfigError

logger = logging.getLogger(__name__)

QUEUE_BYTES = 64 << 20
KEY_BYTES = range(16, 33)

_CLOSE_S = 10.0
_TEND_S = 3600.0


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """What a disk tier did since it was made, and what it knows of its folder.

    num_corrupt, num_foreign: files found torn or damaged, and whole ones of another identity or
    key. num_stored: files written. num_dropped: blobs put and never written, for want of room in
    the queue or the folder, or since the tier is off. num_evicted: files that this process removed,
    for their age or for room. num_errors: errors of the file system. used_bytes: of all files,
    those of other identities too, as listed last, and what this process wrote since.
    """

    num_hits: int
    num_misses: int
    num_corrupt: int
    num_foreign: int
    num_stored: int
    num_dropped: int
    num_evicted: int
    num_errors: int
    used_bytes: int
    is_on: bool


class DiskTier:
    """At most `capacity_bytes` of files in a folder, of all processes. Any thread may call.

    Least recently used files go first, to within a minute: a hit sets a file's time at most so
    often. Each process lists the folder when it starts, every hour, and before it has written a
    sixteenth of the capacity; so n processes may be above it by n - 1 sixteenths for a while (by
    n - 1 blobs, if those are larger). If they are given different capacities, the smallest holds.

    If the disk is full, read-only, broken or gone, the tier turns itself off for good, with one
    line in the log: then nothing is stored and nothing found.
    """

    def __init__(
        self,
        folder: str | Path,
        capacity_bytes: int,
        identity: bytes,
        max_age_s: float | None = None,
        *,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        """identity: names the model and its cache format; blobs of another one are never found.

        max_age_s: blobs that nobody used for so long are removed, up to an eighth of it later, an
        hour at most. queue_bytes: bounds what waits to be written, and what was read ahead.

        Raises ConfigError if the folder cannot be made, written or locked, or its disk is full.
        """
        assert capacity_bytes > 0, "a tier without room"
        self.folder = os.path.abspath(folder)
        self.capacity_bytes = capacity_bytes
        self._digest = digest_of(identity)
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._is_on = True
        # Only the writing thread changes these two.
        self._used_bytes = 0
        self._unlisted_bytes = 0
        try:
            prepare(self.folder, self._digest)
        except OSError as error:
            raise ConfigError(
                f"{self.folder} cannot be used: {error.strerror}",
                where="kv_disk_dir",
                hint=way_out(error) or "try again",
            ) from error
        self._reader = ReadAhead(self._read, capacity_bytes=queue_bytes)
        self._writer = WriteBehind(
            self._write,
            self._tend,
            tend_every_s=_TEND_S if max_age_s is None else min(_TEND_S, max_age_s / 8),
            capacity_bytes=queue_bytes,
        )
        self._writer.start()

    def put(self, key: bytes, blob: bytes) -> None:
        """Queue a blob to be written. Never waits: without room in the queue it is dropped."""
        assert len(key) in KEY_BYTES, f"a key of {len(key)} bytes"
        assert blob, "a blob of nothing"
        assert isinstance(blob, bytes), "a blob that may change before it is written"
        fits = HEADER_BYTES + len(blob) <= self.capacity_bytes
        if not (fits and self._is_on and self._writer.put(key, blob)):
            self._count("dropped")

    def get(self, key: bytes) -> bytes | None:
        """The blob, from the queues or read at once; None, and a miss, if there is no good one."""
        blob = None
        if self._is_on:
            blob = self._writer.get(key) or self._reader.take(key) or self._read(key)
        self._count("misses" if blob is None else "hits")
        return blob

    def has(self, key: bytes) -> bool:
        """Whether a get is likely to hit. Reads no file, so a bad one counts as there."""
        return self._is_on and (
            self._writer.get(key) is not None or os.path.exists(self._path(key))
        )

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Read these in the background, in this order, for gets soon and in the same order."""
        if self._is_on:
            self._reader.want(keys)

    def remove(self, key: bytes) -> None:
        """Remove a blob, for all processes. One that is just being written is waited for."""
        if self._is_on:
            self._writer.remove(key)
            self._reader.take(key)
            try:
                Path(self._path(key)).unlink(missing_ok=True)
            except OSError as error:
                self._failed(error)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was put is written or dropped; False if that took too long."""
        return self._writer.flush(timeout_s)

    def close(self) -> None:
        """Write what waits, for at most ten seconds, and end. After that the tier is off."""
        self.flush(_CLOSE_S)
        self._turn_off()

    def counters(self) -> DiskCounters:
        """A snapshot."""
        with self._lock:
            return DiskCounters(
                num_hits=self._counts["hits"],
                num_misses=self._counts["misses"],
                num_corrupt=self._counts["corrupt"],
                num_foreign=self._counts["foreign"],
                num_stored=self._counts["stored"],
                num_dropped=self._counts["dropped"],
                num_evicted=self._counts["evicted"],
                num_errors=self._counts["errors"],
                used_bytes=self._used_bytes,
                is_on=self._is_on,
            )

    def _read(self, key: bytes) -> bytes | None:
        try:
            return read_file(self._path(key), self._digest, key)
        except CorruptFileError:
            self._count("corrupt")
        except ForeignFileError:
            self._count("foreign")
        except OSError as error:
            self._failed(error)
        return None

    def _write(self, key: bytes, blob: bytes) -> None:
        path, num_bytes = self._path(key), HEADER_BYTES + len(blob)
        try:
            if touch_file(path):
                return  # another process has written it, or this one before a restart
            if not self._has_room(num_bytes):
                self._count("dropped")
                return
            write_file(path, self._digest, key, blob)
        except OSError as error:
            self._count("dropped")
            self._failed(error)
            return
        self._used_bytes += num_bytes
        self._unlisted_bytes += num_bytes
        self._count("stored")

    def _has_room(self, num_bytes: int) -> bool:
        """Whether so much may be written, after others made room for it."""
        due = self._unlisted_bytes + num_bytes > self.capacity_bytes // SPARE
        if due or self._used_bytes + num_bytes > self.capacity_bytes:
            self._reclaim(num_bytes)
        return self._used_bytes + num_bytes <= self.capacity_bytes

    def _tend(self) -> None:
        try:
            self._reclaim(0)
        except OSError as error:
            self._failed(error)

    def _reclaim(self, room_bytes: int) -> None:
        found = reclaim(self.folder, self.capacity_bytes, room_bytes, self._max_age_s)
        self._used_bytes, self._unlisted_bytes = found.used_bytes, 0
        self._count("evicted", found.num_evicted)

    def _failed(self, error: OSError) -> None:
        """Count an error, and turn the tier off unless the error passes by itself."""
        self._count("errors")
        hint = way_out(error)
        if hint and self._turn_off():
            logger.error(
                "the disk tier in %s is off, nothing is lost but its hits: %s; %s",
                *(self.folder, error.strerror, hint),
            )

    def _turn_off(self) -> bool:
        """Whether it was on."""
        with self._lock:
            was_on, self._is_on = self._is_on, False
        self._count("dropped", self._writer.close())
        self._reader.close()
        return was_on

    def _count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._counts[name] += number

    def _path(self, key: bytes) -> str:
        return blob_path(self.folder, self._digest, key)
