"""The folder of the disk tier: where files lie, which there are, which go when room is needed.

    <folder>/lock                                   held by whoever reclaims
    <folder>/kv-<identity, 64 hex>/<2 hex>/<key>.kv a blob; the 2 are the first of its key
    <the same>.<16 hex>.tmp                         a blob that is just written, or removed

A file's time of change says when it was last used. Names of any other form are not ours and stay.
The folder itself is the index: it is listed when a process starts and when room is needed, and no
server or shared memory tells one process of another's files.

Knows names, sizes and times: nothing of what is in a file.
"""

import errno
import os
import re
import secrets
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepinfer.cache.disk_file import TOUCH_S, remove_orphan, try_lock, write_file

# More than so much is freed at once, as a part of the capacity, so that room is seldom needed.
SPARE = 16
# A time in the future says that the clock went back since. Such a file then counts as used so
# long ago: before what is written from now on, and after what lies here from last week.
_UNKNOWN_AGE_S = 600

# The process has too much open or too little memory just now; the disk is well.
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_FULL = "free some space there or lower kv_disk_bytes, then start again"
_CLOSED = "let this user write there, then start again"
_WAYS_OUT = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _CLOSED,
    errno.EACCES: _CLOSED,
    errno.EPERM: _CLOSED,
    errno.ENOENT: "somebody removed the folder; start again to make it anew",
}
_WAY_OUT = "look after the disk, or choose another kv_disk_dir, then start again"

_IDENTITY = re.compile(r"kv-[0-9a-f]{64}")
_PART = re.compile(r"[0-9a-f]{2}")
_FILE = re.compile(r"(?:[0-9a-f]{2}){16,32}\.kv(\.[0-9a-f]{16}\.tmp)?")


class StoredFile(NamedTuple):
    """A file of ours. used_s: when it was last used, unix seconds."""

    path: str
    num_bytes: int
    used_s: float
    is_temporary: bool


class Reclaimed(NamedTuple):
    """used_bytes: of all blobs that are left, of any identity. num_evicted: those removed."""

    used_bytes: int
    num_evicted: int


def prepare(folder: str, digest: bytes) -> None:
    """Make what is missing, for nobody else to read: blobs tell what users wrote.

    Then try all that will be needed: a lock, and to write a file. Raises OSError.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    own = os.path.join(folder, f"kv-{digest.hex()}")
    for path in (own, *(os.path.join(own, f"{part:02x}") for part in range(256))):
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
    with _alone(folder):
        pass
    key = secrets.token_bytes(16)
    path = blob_path(folder, digest, key)
    write_file(path, digest, key, b"trial")
    os.unlink(path)


def blob_path(folder: str, digest: bytes, key: bytes) -> str:
    """Where the blob of a key lies. Only hex digits of the key get into the name."""
    name = key.hex()
    return f"{folder}/kv-{digest.hex()}/{name[:2]}/{name}.kv"


def scan(folder: str) -> Iterator[StoredFile]:
    """All files of ours, of every identity, in no order. What vanishes meanwhile is left out."""
    for own in _folders(folder, _IDENTITY):
        for part in _folders(own, _PART):
            for entry in _entries(part):
                name = _FILE.fullmatch(entry.name)
                if not name or not entry.is_file(follow_symlinks=False):
                    continue
                try:
                    stat = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield StoredFile(entry.path, stat.st_size, stat.st_mtime, name[1] is not None)


def reclaim(
    folder: str, capacity_bytes: int, room_bytes: int, max_age_s: float | None
) -> Reclaimed:
    """Remove blobs that nobody used for `max_age_s`, and the least recently used for room.

    room_bytes: what is to be written next. If all would then be more than `capacity_bytes`, so many
    go that a part of 1 / SPARE is free afterwards. Left-over temporary files go, too.

    One process at a time removes; if another one is at it, this one only looks. Raises OSError.
    """
    with _alone(folder) as alone:
        now = time.time()
        found = _look(folder, now)
        used_bytes = int(found.sizes.sum())
        if not alone:
            return Reclaimed(used_bytes, 0)
        for path in found.temporaries:
            remove_orphan(path)
        excess = used_bytes + room_bytes - capacity_bytes
        if excess > 0:
            excess += capacity_bytes // SPARE
        too_old_s = -np.inf if max_age_s is None else now - max_age_s
        if excess <= 0 and not (found.used_s < too_old_s).any():
            return Reclaimed(used_bytes, 0)
        removed = _remove(folder, too_old_s, _last_to_go(found, excess), excess)
        return Reclaimed(used_bytes - sum(removed), len(removed))


def way_out(error: OSError) -> str | None:
    """What a user can do about an error of the disk; None if it passes by itself."""
    return None if error.errno in _PASSING else _WAYS_OUT.get(error.errno or 0, _WAY_OUT)


class _Found(NamedTuple):
    """Of each blob's file when it was last used, and its bytes; the paths of temporary files.

    Arrays without the blobs' paths: a folder may hold millions.
    """

    used_s: NDArray[np.float64]
    sizes: NDArray[np.int64]
    temporaries: list[str]


def _look(folder: str, now: float) -> _Found:
    used_s, sizes, temporaries = array("d"), array("q"), []
    for file in scan(folder):
        if file.is_temporary:
            temporaries.append(file.path)
            continue
        sizes.append(file.num_bytes)
        used_s.append(_believable(file, now))
    return _Found(np.array(used_s), np.array(sizes, np.int64), temporaries)


def _believable(file: StoredFile, now: float) -> float:
    """When a file was last used; a time in the future is corrected, in the file too."""
    if file.used_s <= now + TOUCH_S:
        return file.used_s
    used_s = float(int(now) - _UNKNOWN_AGE_S)  # whole, so that it is read as it was written
    with suppress(FileNotFoundError):
        os.utime(file.path, (used_s, used_s))
    return used_s


def _last_to_go(found: _Found, excess: int) -> float:
    """The time of use up to which files must go, the oldest first, to free `excess` bytes."""
    if excess <= 0 or not len(found.sizes):
        return -np.inf
    oldest_first = np.argsort(found.used_s)
    freed = np.cumsum(found.sizes[oldest_first])
    last = min(int(np.searchsorted(freed, excess)), len(freed) - 1)
    return float(found.used_s[oldest_first[last]])


def _remove(folder: str, too_old_s: float, last_to_go_s: float, excess: int) -> list[int]:
    """Remove files used before `too_old_s`, and up to `last_to_go_s` until `excess` is freed.

    Returns their sizes. Files are looked at anew: who was used in the meantime stays.
    """
    removed: list[int] = []
    freed = 0
    for file in scan(folder):
        for_room = freed < excess and file.used_s <= last_to_go_s
        if not file.is_temporary and (for_room or file.used_s < too_old_s):
            with suppress(FileNotFoundError):
                os.unlink(file.path)
                removed.append(file.num_bytes)
                freed += file.num_bytes
    return removed


@contextmanager
def _alone(folder: str) -> Iterator[bool]:
    """Whether this process is the only one that reclaims, as long as the block runs."""
    fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield try_lock(fd)
    finally:
        os.close(fd)


def _folders(path: str, pattern: re.Pattern[str]) -> Iterator[str]:
    for entry in _entries(path):
        if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            yield entry.path


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    """What a folder holds: nothing if somebody removed it, as one may with an old model's."""
    with suppress(FileNotFoundError), os.scandir(path) as entries:
        yield from entries
