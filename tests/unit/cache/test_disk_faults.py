"""A disk that is full, broken, read-only or gone: an error at the start, or a tier that is off."""

import errno
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.cache import disk_file
from deepinfer.cache.disk_file import HEADER_BYTES
from deepinfer.cache.disk_tier import DiskTier
from deepinfer.errors import ConfigError
from tests.unit.cache.blobs import (
    BLOB_BYTES,
    IDENTITY,
    blob_of,
    key_of,
    keys_of,
    store,
    temporaries,
)

FILE_BYTES = HEADER_BYTES + BLOB_BYTES
ROOM = 1 << 30


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    tier = DiskTier(tmp_path, ROOM, IDENTITY)
    yield tier
    tier.close()


FAULTS = [
    ("write", errno.ENOSPC, "free some space"),
    ("write", errno.EDQUOT, "free some space"),
    ("write", errno.EIO, "look after the disk"),
    ("rename", errno.EIO, "look after the disk"),
    ("open", errno.EROFS, "let this user write"),
    ("open", errno.EACCES, "let this user write"),
    ("scandir", errno.EIO, "look after the disk"),
]


@pytest.mark.parametrize(("call", "number", "hint"), FAULTS)
def test_a_disk_that_fails_turns_it_off(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    number: int,
    hint: str,
) -> None:
    """A full disk ends the engine, fills its log, or goes unnoticed."""
    tier = DiskTier(tmp_path, 3 * FILE_BYTES, IDENTITY)
    store(tier, keys_of(range(3)))

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        for key in keys_of(range(3, 10)):
            tier.put(key, blob_of(key))
        assert tier.flush(10.0)
    counters = tier.counters()
    assert (counters.num_errors, counters.num_dropped, counters.is_on) == (1, 7, False)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    for part in (str(tmp_path), os.strerror(number), hint):
        assert part in record.getMessage()
    assert not temporaries(tmp_path)
    assert not tier.has(key_of(0))
    assert tier.get(key_of(0)) is None
    tier.put(key_of(0), b"x")
    assert (tier.counters().num_misses, tier.counters().num_dropped) == (1, 8)
    tier.close()
    again = DiskTier(tmp_path, ROOM, IDENTITY)
    assert again.get(key_of(2)) == blob_of(key_of(2))
    again.close()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_read_that_fails_turns_it_off(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ahead: bool
) -> None:
    """A broken sector raises in the middle of a step, or in a thread that nobody looks at."""
    store(tier, keys_of(range(2)))

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(disk_file, "_read_all", fail)
        if ahead:
            tier.prefetch([key_of(0)])
            time.sleep(0.05)
        assert tier.get(key_of(0)) is None
    assert tier.get(key_of(1)) is None
    assert (tier.counters().num_errors, tier.counters().is_on) == (1, False)
    assert len(caplog.records) == 1


def test_what_passes_by_itself_leaves_it_on(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A moment with too many connections open, and the cache is off until the next restart."""
    store(tier, [key_of(0)])

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        assert tier.get(key_of(0)) is None
        tier.put(key_of(1), blob_of(key_of(1)))
        assert tier.flush(10.0)
    assert tier.get(key_of(0)) == blob_of(key_of(0))
    store(tier, [key_of(1)])
    assert tier.get(key_of(1)) == blob_of(key_of(1))
    counters = tier.counters()
    assert (counters.num_errors, counters.num_dropped, counters.is_on) == (2, 1, True)
    assert not caplog.records


def test_a_folder_that_vanishes(
    tmp_path: Path, tier: DiskTier, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is unmounted, and the tier writes to the disk below it, or ends the engine."""
    store(tier, [key_of(0)])
    shutil.rmtree(tmp_path)
    assert tier.get(key_of(0)) is None
    assert tier.counters().is_on
    store(tier, [key_of(1)])
    assert not tier.counters().is_on
    (record,) = caplog.records
    assert "somebody removed the folder" in record.getMessage()
    assert not tmp_path.exists()


@pytest.mark.parametrize("call", ["mkdir", "open", "write"])
def test_a_folder_that_cannot_be_used_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A wrong kv_disk_dir is found out hours after the start, by a line in the log."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch, pytest.raises(ConfigError) as raised:
        patch.setattr(os, call, fail)
        DiskTier(tmp_path / "kv", ROOM, IDENTITY)
    assert raised.value.where == "kv_disk_dir"
    assert "Read-only file system" in raised.value.what
    assert str(tmp_path) in raised.value.what
    assert "let this user write" in raised.value.hint


def test_a_file_in_the_folder_s_place(tmp_path: Path) -> None:
    """The same, by what really happens there."""
    (tmp_path / "kv").write_text("x")
    for folder in (tmp_path / "kv", tmp_path / "kv" / "deeper"):
        with pytest.raises(ConfigError, match=r"kv_disk_dir: .*cannot be used"):
            DiskTier(folder, ROOM, IDENTITY)
