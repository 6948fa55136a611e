"""One blob's file: any damage is found, and a file is whole, or not there."""

import errno
import fcntl
import os
import stat
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deepinfer.cache import disk_file
from deepinfer.cache.disk_file import (
    HEADER_BYTES,
    TOUCH_S,
    BadFileError,
    CorruptFileError,
    ForeignFileError,
    digest_of,
    read_file,
    remove_orphan,
    touch_file,
    write_file,
)
from tests.unit.cache.blobs import IDENTITY, blob_of, key_of

DIGEST = digest_of(IDENTITY)
KEY = key_of(0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "blob.kv"


def write(path: Path, key: bytes = KEY, num_bytes: int = 1000, digest: bytes = DIGEST) -> bytes:
    """Write a key's blob; the bytes of its file."""
    write_file(str(path), digest, key, blob_of(key, num_bytes))
    return path.read_bytes()


def read(path: Path, key: bytes = KEY, digest: bytes = DIGEST) -> bytes | None:
    return read_file(str(path), digest, key)


@pytest.mark.parametrize("num_bytes", [1, 1000, 113_920, 3_000_001])
@pytest.mark.parametrize("key_len", [16, 20, 32])
def test_there_and_back(path: Path, key_len: int, num_bytes: int) -> None:
    """A blob comes back shorter, longer or changed, or its file is open to everybody."""
    key = KEY[:key_len]
    content = write(path, key, num_bytes)
    assert len(content) == HEADER_BYTES + num_bytes
    assert read(path, key) == blob_of(key, num_bytes)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_no_file(path: Path) -> None:
    """What was never written is an error instead of a miss."""
    assert read(path) is None
    assert not touch_file(str(path))


def test_every_bit_of_the_header(path: Path) -> None:
    """Some field of the header is under no checksum."""
    content = write(path, num_bytes=10)
    for bit in range(8 * HEADER_BYTES):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError):
            read(path)


def test_every_truncation(path: Path) -> None:
    """A file that a crash cut short passes, as if its end were zeros or not needed."""
    content = write(path, num_bytes=100)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CorruptFileError):
            read(path)
        assert not path.exists()
        path.write_bytes(content[:length] + bytes(len(content) - length))
        with pytest.raises(CorruptFileError):
            read(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(CorruptFileError):
        read(path)


def test_a_length_that_lies_takes_no_memory(path: Path) -> None:
    """A header asks for terabytes, and they are taken before anybody looks at the file's size."""
    content = bytearray(write(path))
    content[80:88] = struct.pack("<Q", 1 << 45)
    header = disk_file._HEADER.size
    content[header:HEADER_BYTES] = disk_file.hashlib.sha256(content[:header]).digest()
    path.write_bytes(content)
    with pytest.raises(CorruptFileError):
        read(path)


def test_a_file_in_the_wrong_place_is_foreign(path: Path) -> None:
    """Another model's block, copied by hand into this one's folder, is read as if it were ours."""
    for other in (
        {"digest": digest_of(b"model b, packed")},
        {"key": key_of(1)},
        {"key": KEY[:16]},
    ):
        write(path, **other)
        with pytest.raises(ForeignFileError):
            read(path)
        assert not path.exists()
    write(path)
    with pytest.raises(ForeignFileError):
        read(path, KEY[:16])


def test_another_layout_is_foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a later release is read by the rules of this one."""
    with monkeypatch.context() as patch:
        patch.setattr(disk_file, "_VERSION", 2)
        assert digest_of(IDENTITY) != DIGEST
        write(path)
    with pytest.raises(ForeignFileError):
        read(path)


def test_things_that_are_no_files(path: Path) -> None:
    """A pipe under a blob's name stops the engine until somebody writes into it."""
    os.mkfifo(path)
    with pytest.raises(CorruptFileError):
        read(path)
    target = path.with_name("target")
    target.write_bytes(b"somebody's notes")
    path.symlink_to(target)
    with pytest.raises(CorruptFileError):
        read(path)
    assert not path.is_symlink()
    assert target.exists()


def test_a_good_file_put_into_a_bad_one_s_place_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes find a bad file; one writes it anew, then the other removes the good one."""
    content = write(path)
    path.write_bytes(content[:-1])
    real_read = disk_file._read_checked

    def read_then_replace(*args: object) -> bytes:
        try:
            return real_read(*args)
        finally:
            write(path)

    with monkeypatch.context() as patch:
        patch.setattr(disk_file, "_read_checked", read_then_replace)
        with pytest.raises(BadFileError):
            read(path)
    assert read(path) == blob_of(KEY)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_bad_file_that_somebody_removed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes find a bad file, and the second one to remove it fails."""
    content = write(path)
    path.write_bytes(content[:-1])
    real_read = disk_file._read_checked

    def read_then_remove(*args: object) -> bytes:
        path.unlink()
        return real_read(*args)

    monkeypatch.setattr(disk_file, "_read_checked", read_then_remove)
    with pytest.raises(CorruptFileError):
        read(path)


def test_writers_at_once(path: Path) -> None:
    """Two writers of one key write into each other's file, or a reader sees half of one."""
    num_bytes = 200_000
    expected = blob_of(KEY, num_bytes)
    write(path, num_bytes=num_bytes)

    def work(place: int) -> None:
        for _ in range(50):
            if place < 2:
                write_file(str(path), DIGEST, KEY, expected)
            else:
                assert read(path) == expected

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_write_that_fails_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A full disk is filled up with halves of files."""
    real_write = os.write
    num_calls = 0

    def write_some(fd: int, content: memoryview) -> int:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            raise OSError(error, os.strerror(error))
        return real_write(fd, content[:100])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_some)
        with pytest.raises(OSError, match=os.strerror(error)):
            write(path)
    assert not list(path.parent.iterdir())


def test_short_writes_and_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes or gives a part of what was asked, and the rest is forgotten."""
    real_write, real_read = os.write, os.read
    monkeypatch.setattr(os, "write", lambda fd, content: real_write(fd, content[:77]))
    monkeypatch.setattr(os, "read", lambda fd, num_bytes: real_read(fd, min(num_bytes, 99)))
    write(path)
    assert read(path) == blob_of(KEY)


def test_a_hit_sets_the_time_once_a_minute(path: Path) -> None:
    """What is used every day looks old and goes first; or every hit writes to the disk."""
    write(path)
    now = time.time()
    for used_s, is_set in (
        (now - TOUCH_S - 5, True),
        (now - TOUCH_S / 2, False),
        (now + TOUCH_S + 5, True),
    ):
        for use in (lambda: read(path), lambda: touch_file(str(path))):
            os.utime(path, (used_s, used_s))
            assert use()
            assert (path.stat().st_mtime != pytest.approx(used_s, abs=1e-3)) == is_set
            assert not is_set or abs(path.stat().st_mtime - time.time()) < 5


def test_only_the_dead_leave_orphans(path: Path) -> None:
    """The file that a process is just writing is removed under its hands; or none ever is."""
    temporary = path.with_name("blob.kv.0123456789abcdef.tmp")
    with temporary.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_orphan(str(temporary))
        assert temporary.exists()
    remove_orphan(str(temporary))
    assert not temporary.exists()
    remove_orphan(str(temporary))


def test_a_newborn_taken_for_an_orphan(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary file is removed before it was locked, and what is written into it is lost."""
    real_flock = fcntl.flock
    num_calls = 0

    def flock(fd: int, how: int) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls <= 2:
            (temporary,) = path.parent.iterdir()
            temporary.unlink()
        real_flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    write(path)
    assert num_calls == 3
    assert read(path) == blob_of(KEY)
