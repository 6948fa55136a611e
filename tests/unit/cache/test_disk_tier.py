"""The disk tier in one process: found again, within its bytes, and never wrong."""

import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.cache import disk_folder, disk_tier
from deepinfer.cache.disk_file import HEADER_BYTES, digest_of
from deepinfer.cache.disk_folder import blob_path, scan
from deepinfer.cache.disk_tier import DiskTier
from tests.unit.cache.blobs import (
    BLOB_BYTES,
    IDENTITY,
    blob_of,
    is_right,
    key_of,
    keys_of,
    store,
    stored_bytes,
)

FILE_BYTES = HEADER_BYTES + BLOB_BYTES
ROOM = 1 << 30


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    tier = DiskTier(tmp_path, ROOM, IDENTITY)
    yield tier
    tier.close()


def path_of(tier: DiskTier, key: bytes, identity: bytes = IDENTITY) -> Path:
    return Path(blob_path(tier.folder, digest_of(identity), key))


def test_there_again_after_a_restart(tmp_path: Path) -> None:
    """B09: blobs are written for ever, and none of them is found again."""
    keys = keys_of(range(20))
    first = DiskTier(tmp_path, ROOM, IDENTITY)
    for key in keys:
        first.put(key, blob_of(key))
        assert first.has(key)
        assert first.get(key) == blob_of(key)  # from the queue or from the disk
    first.close()
    assert first.counters().num_stored == first.counters().num_hits == 20
    second = DiskTier(str(tmp_path), ROOM, IDENTITY)
    assert second.flush(10.0)
    assert second.counters().used_bytes == 20 * FILE_BYTES == stored_bytes(tmp_path)
    for key in keys:
        assert second.has(key)
        assert second.get(key) == blob_of(key)
    assert not second.has(key_of(99))
    assert second.get(key_of(99)) is None
    assert (second.counters().num_hits, second.counters().num_misses) == (20, 1)
    second.close()


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    """The last answers before a restart are forgotten."""
    tier = DiskTier(tmp_path, ROOM, IDENTITY)
    for key in keys_of(range(50)):
        tier.put(key, blob_of(key))
    tier.close()
    assert stored_bytes(tmp_path) == 50 * FILE_BYTES
    tier.put(key_of(50), b"late")
    assert tier.get(key_of(0)) is None
    assert not tier.has(key_of(0))
    tier.remove(key_of(0))
    tier.prefetch([key_of(0)])
    tier.close()
    assert stored_bytes(tmp_path) == 50 * FILE_BYTES
    counters = tier.counters()
    assert (counters.num_dropped, counters.num_misses, counters.is_on) == (1, 1, False)


def test_closing_ends_the_threads(tmp_path: Path) -> None:
    """Each engine that was made and closed leaves two threads and their buffers behind."""
    before = set(threading.enumerate())
    tier = DiskTier(tmp_path, ROOM, IDENTITY)
    threads = set(threading.enumerate()) - before
    assert {thread.name for thread in threads} == {"kv-write-behind", "kv-read-ahead"}
    tier.close()
    for thread in threads:
        thread.join(10.0)
        assert not thread.is_alive()


def test_put_twice_is_written_once(tier: DiskTier) -> None:
    """Every turn of a conversation writes its whole beginning anew, and the disk wears out."""
    store(tier, [key_of(0)])
    inode = path_of(tier, key_of(0)).stat().st_ino
    store(tier, [key_of(0)])
    assert path_of(tier, key_of(0)).stat().st_ino == inode
    assert tier.counters().num_stored == 1
    assert tier.counters().used_bytes == FILE_BYTES


def test_removed(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed blob is found all the same: on disk, in what was read ahead, or in the queue."""
    on_disk, ahead, in_queue, being_written = keys = keys_of(range(4))
    store(tier, [on_disk, ahead])
    tier.prefetch([ahead])
    may_go_on, has_begun = threading.Event(), threading.Event()

    def wait(_: str) -> bool:
        has_begun.set()
        return not may_go_on.wait(10.0)

    monkeypatch.setattr(disk_tier, "touch_file", wait)
    for key in (being_written, in_queue):
        tier.put(key, blob_of(key))
    assert has_begun.wait(10.0)
    for key in (in_queue, on_disk, ahead):
        tier.remove(key)
        assert not tier.has(key)
        assert tier.get(key) is None
    threading.Timer(0.05, may_go_on.set).start()
    tier.remove(being_written)
    assert tier.flush(10.0)
    tier.remove(on_disk)
    assert not any(map(tier.has, keys))
    assert not list(scan(tier.folder))


def test_another_identity_is_never_found(tmp_path: Path, tier: DiskTier) -> None:
    """A block of another model, or in another format, is taken for one of ours."""
    key = key_of(0)
    store(tier, [key])
    other = DiskTier(tmp_path, ROOM, b"model b, packed")
    assert not other.has(key)
    assert other.get(key) is None
    assert other.counters().num_foreign == 0
    target = path_of(other, key, b"model b, packed")
    shutil.copy(path_of(tier, key), target)
    assert other.get(key) is None
    assert other.counters().num_foreign == 1
    assert not target.exists()
    shutil.copy(path_of(tier, key), path_of(tier, key_of(1)))
    assert tier.get(key_of(1)) is None
    assert tier.counters().num_foreign == 1
    assert tier.get(key) == blob_of(key)
    other.close()


def test_a_thousand_flipped_bits(tier: DiskTier) -> None:
    """A bit that fell over on the disk becomes a token of somebody's answer."""
    rng = random.Random(1)
    keys = keys_of(range(20))
    store(tier, keys)
    contents = {key: path_of(tier, key).read_bytes() for key in keys}
    for num_found in range(1000):
        key = rng.choice(keys)
        assert tier.counters().num_corrupt == num_found
        damaged = bytearray(contents[key])
        bit = rng.randrange(8 * len(damaged))
        damaged[bit // 8] ^= 1 << bit % 8
        path_of(tier, key).write_bytes(damaged)
        assert tier.get(key) is None
        assert not tier.has(key)
        path_of(tier, key).write_bytes(contents[key])
        assert tier.get(key) == blob_of(key)
    counters = tier.counters()
    assert (counters.num_corrupt, counters.num_misses, counters.num_hits) == (1000, 1000, 1000)
    assert (counters.num_errors, counters.is_on) == (0, True)


def test_damage_read_ahead(tier: DiskTier) -> None:
    """What is read ahead is believed without a look at its checksum."""
    key = key_of(0)
    store(tier, [key])
    content = bytearray(path_of(tier, key).read_bytes())
    content[-1] ^= 1
    path_of(tier, key).write_bytes(content)
    tier.prefetch([key])
    assert tier.get(key) is None
    assert tier.counters().num_corrupt == 1
    store(tier, [key])
    assert tier.get(key) == blob_of(key)


def test_read_ahead_is_what_a_get_takes(tier: DiskTier) -> None:
    """Blobs are read ahead and then read again."""
    keys = keys_of(range(30))
    store(tier, keys)
    tier.prefetch([*keys, key_of(99)])
    end_s = time.monotonic() + 10.0
    while len(tier._reader._ready) < 30 and time.monotonic() < end_s:
        time.sleep(0.001)
    for key in keys:
        path_of(tier, key).unlink()
    assert [tier.get(key) for key in keys] == [blob_of(key) for key in keys]
    assert tier.get(keys[0]) is None
    assert tier.get(key_of(99)) is None


def test_never_above_the_capacity(tmp_path: Path) -> None:
    """The tier fills the disk, or holds far less than it may; eviction takes what is in use."""
    capacity = 40 * FILE_BYTES + 1
    tier = DiskTier(tmp_path, capacity, IDENTITY)
    keys, used = keys_of(range(120)), key_of(0)
    peak_bytes = 0
    for number, key in enumerate(keys):
        store(tier, [key])
        age_s = 10_000 - 20 * number  # long before the one that is used
        os.utime(path_of(tier, key), (time.time() - age_s,) * 2)
        assert tier.get(used) == blob_of(used)
        assert tier.counters().used_bytes == stored_bytes(tmp_path) <= capacity
        peak_bytes = max(peak_bytes, stored_bytes(tmp_path))
    assert peak_bytes == 40 * FILE_BYTES
    assert [tier.has(key) for key in keys[-37:]] == [True] * 37
    counters = tier.counters()
    assert counters.num_evicted == 120 - stored_bytes(tmp_path) // FILE_BYTES
    assert counters.num_dropped == 0
    tier.close()


def test_eviction_while_others_read(tmp_path: Path) -> None:
    """A blob goes while it is read, and the reader gets a half, or an error."""
    tier = DiskTier(tmp_path, 10 * FILE_BYTES, IDENTITY)
    wrong: list[bytes] = []
    is_over = threading.Event()

    def read(seed: int) -> None:
        rng = random.Random(seed)
        while not is_over.is_set():
            key = key_of(rng.randrange(50))
            if rng.random() < 0.3:
                tier.prefetch([key])
            blob = tier.get(key)
            if blob is not None and not is_right(key, blob):
                wrong.append(key)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    for number in range(150):
        tier.put(key_of(number % 50), blob_of(key_of(number % 50)))
        if number % 5 == 0:
            tier.flush(10.0)
    is_over.set()
    for reader in readers:
        reader.join()
    counters = tier.counters()
    assert not wrong
    assert counters.num_evicted > 0
    assert counters.num_hits > 0
    assert (counters.num_corrupt, counters.num_errors, counters.is_on) == (0, 0, True)
    tier.close()


def test_what_does_not_fit_is_dropped(tmp_path: Path) -> None:
    """A blob that can never fit empties the folder; one that finds no room in the queue waits."""
    tier = DiskTier(tmp_path, 2 * FILE_BYTES, IDENTITY, queue_bytes=3 * BLOB_BYTES)
    store(tier, [key_of(0)])
    tier.put(key_of(1), bytes(2 * FILE_BYTES))
    tier.put(key_of(2), bytes(3 * BLOB_BYTES + 1))
    assert tier.flush(10.0)
    assert tier.counters().num_dropped == 2
    assert tier.get(key_of(0)) == blob_of(key_of(0))
    tier.close()


def test_somebody_else_reclaims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes free the same room twice; or one writes on while the other one has not yet."""
    tier = DiskTier(tmp_path, 4 * FILE_BYTES, IDENTITY)
    store(tier, keys_of(range(4)))
    with monkeypatch.context() as patch:
        patch.setattr(disk_folder, "try_lock", lambda _: False)
        store(tier, [key_of(4)])
    assert (tier.counters().num_dropped, tier.counters().num_evicted) == (1, 0)
    store(tier, [key_of(4)])
    assert (tier.counters().num_dropped, tier.counters().num_evicted) == (1, 2)
    assert tier.has(key_of(4))
    tier.close()


def test_others_files_are_noticed(tmp_path: Path) -> None:
    """Each process fills the folder to its capacity, and all together fill the disk."""
    tiers = [DiskTier(tmp_path, 32 * FILE_BYTES, IDENTITY) for _ in range(3)]
    for number in range(50):
        for place, tier in enumerate(tiers):
            store(tier, [key_of(1000 * place + number)])
            assert stored_bytes(tmp_path) <= (32 + 2 * 2) * FILE_BYTES
    for tier in tiers:
        tier.close()


def test_old_blobs_go_while_it_runs(tmp_path: Path) -> None:
    """Old conversations go at a restart only, and an engine runs for months."""
    tier = DiskTier(tmp_path, ROOM, IDENTITY, max_age_s=0.4)
    store(tier, [key_of(0)])
    end_s = time.monotonic() + 10.0
    while tier.has(key_of(0)) and time.monotonic() < end_s:
        time.sleep(0.01)
    assert tier.get(key_of(0)) is None
    assert tier.flush(10.0)
    assert tier.counters().num_evicted == 1
    tier.close()


def test_wrong_use_is_noticed(tier: DiskTier) -> None:
    """A view of memory that the next block overwrites is queued, and another's block written."""
    for key, blob in ((b"short", b"x"), (bytes(33), b"x"), (bytes(16), b"")):
        with pytest.raises(AssertionError):
            tier.put(key, blob)
    with pytest.raises(AssertionError, match="may change"):
        tier.put(bytes(16), memoryview(b"x"))  # type: ignore[arg-type]
