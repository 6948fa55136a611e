"""The folder of the disk tier: names, listing, and who goes when room is needed."""

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.cache.disk_file import digest_of, write_file
from deepinfer.cache.disk_folder import Reclaimed, blob_path, prepare, reclaim, scan
from tests.effort import effort
from tests.unit.cache.blobs import IDENTITY, blob_of, key_of, stored_bytes, temporaries

DIGEST = digest_of(IDENTITY)
FILE_BYTES = 1000
MANY = 100_000


@pytest.fixture
def folder(tmp_path: Path) -> str:
    prepare(str(tmp_path), DIGEST)
    return str(tmp_path)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def add(folder: str, number: int, age_s: float = 0.0, digest: bytes = DIGEST) -> Path:
    """A file of 1,000 bytes under a key's name, last used so long ago."""
    path = Path(blob_path(folder, digest, key_of(number)))
    path.write_bytes(bytes(FILE_BYTES))
    used_s = time.time() - age_s
    os.utime(path, (used_s, used_s))
    return path


def numbers(folder: str, upto: int = 100, digest: bytes = DIGEST) -> list[int]:
    """Which of these keys have a file."""
    return [
        number
        for number in range(upto)
        if os.path.exists(blob_path(folder, digest, key_of(number)))
    ]


def test_nobody_else_may_read(tmp_path: Path, no_umask: None) -> None:
    """What users wrote can be read by everybody who has a login on the machine."""
    folder = tmp_path / "not" / "yet"
    prepare(str(folder), DIGEST)
    write_file(blob_path(str(folder), DIGEST, key_of(0)), DIGEST, key_of(0), b"x")
    made = [folder, *folder.rglob("*")]
    assert len(made) == 1 + 1 + 256 + 1 + 1  # folder, identity's, parts, lock, blob
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_prepared_twice(folder: str) -> None:
    """A second process on one folder does not start, or the trial file stays as a blob."""
    prepare(folder, DIGEST)
    prepare(folder, digest_of(b"another"))
    assert not list(scan(folder))


def test_only_hex_gets_into_a_name(folder: str) -> None:
    """A key with slashes and dots in it leads out of the folder."""
    path = blob_path(folder, DIGEST, b"../../etc/passwd")
    assert Path(path).resolve().parent.parent.parent == Path(folder).resolve()
    assert Path(path).name == "2e2e2f2e2e2f6574632f706173737764.kv"
    write_file(path, DIGEST, b"../../etc/passwd", b"x")
    (file,) = scan(folder)
    assert (file.path, file.is_temporary) == (path, False)
    parts = Path(blob_path(folder, DIGEST, bytes(range(16)))).parts
    assert parts[-2:] == ("00", "000102030405060708090a0b0c0d0e0f.kv")


def test_the_least_recently_used_go_first(folder: str) -> None:
    """What is used most goes first, more go than need be, or the tier is above its capacity."""
    for number in range(32):
        add(folder, number, age_s=100.0 * ((number * 7) % 32))
    oldest = sorted(range(32), key=lambda number: -((number * 7) % 32))
    # 32 and one more are a file too many, and a sixteenth of 32 shall be free after that.
    assert reclaim(folder, 32 * FILE_BYTES, FILE_BYTES, None) == Reclaimed(29 * FILE_BYTES, 3)
    assert numbers(folder) == sorted(oldest[3:])
    assert reclaim(folder, 32 * FILE_BYTES, 3 * FILE_BYTES, None) == Reclaimed(29 * FILE_BYTES, 0)
    assert stored_bytes(folder) == 29 * FILE_BYTES


def test_equal_times(folder: str) -> None:
    """Files of the same moment all go, though one would do."""
    for number in range(10):
        path = add(folder, number)
        os.utime(path, (1_700_000_000, 1_700_000_000))
    assert reclaim(folder, 10 * FILE_BYTES, FILE_BYTES, None).num_evicted == 2


def test_room_for_one_alone(folder: str) -> None:
    """A blob that takes the whole capacity finds less in the folder than is to be freed."""
    add(folder, 0)
    assert reclaim(folder, FILE_BYTES, FILE_BYTES, None) == Reclaimed(0, 1)
    assert reclaim(folder, FILE_BYTES, FILE_BYTES + 1, None) == Reclaimed(0, 0)


def test_age(folder: str) -> None:
    """Old conversations lie on the disk for ever, since it is large."""
    for number, age_s in enumerate([10, 1000, 3000, 5000]):
        add(folder, number, age_s)
    assert reclaim(folder, 1 << 30, 0, 2000.0) == Reclaimed(2 * FILE_BYTES, 2)
    assert numbers(folder) == [0, 1]
    assert reclaim(folder, 1 << 30, 0, None) == Reclaimed(2 * FILE_BYTES, 0)


def test_files_of_all_identities_count(folder: str) -> None:
    """Blobs of the model of last month fill the disk, and nobody counts or removes them."""
    other = digest_of(b"last month's model")
    prepare(folder, other)
    for number in range(4):
        add(folder, number, age_s=1000, digest=other)
        add(folder, number, age_s=10)
    assert reclaim(folder, 6 * FILE_BYTES, 0, None) == Reclaimed(5 * FILE_BYTES, 3)
    assert numbers(folder) == [0, 1, 2, 3]
    assert len(numbers(folder, digest=other)) == 1


def test_what_is_not_ours_stays(folder: str) -> None:
    """A user points the tier at a folder with other files in it, and they are gone."""
    blob = add(folder, 0, age_s=10_000)
    others = [
        Path(folder) / "notes.kv",
        blob.with_name("notes.txt"),
        blob.with_name("ABCDEF" * 8 + ".kv"),
        blob.with_name(f"{blob.name}.tmp"),
        blob.parent.parent / f"{'ab' * 32}.kv",
        blob.parent.parent / "other" / f"{'ab' * 32}.kv",
        Path(folder) / "kv-other" / "ab" / f"{'ab' * 32}.kv",
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(FILE_BYTES))
        os.utime(path, (1, 1))
    lookalike = blob.with_name(f"{'cd' * 32}.kv")
    lookalike.mkdir()
    assert reclaim(folder, 1, 0, 100.0) == Reclaimed(0, 1)
    assert not blob.exists()
    assert all(path.exists() for path in [*others, lookalike])


def test_orphans_go_and_files_just_written_stay(folder: str) -> None:
    """A killed process leaves a file for ever; or a living one loses what it is just writing."""
    names = [f"{blob_path(folder, DIGEST, key_of(n))}.{'0' * 16}.tmp" for n in range(2)]
    with open(names[0], "wb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        Path(names[1]).write_bytes(b"half")
        os.utime(names[0], (1, 1))
        add(folder, 2, age_s=1000)
        reclaim(folder, 1 << 30, 0, 100.0)
        assert temporaries(folder) == [names[0]]
    reclaim(folder, 1 << 30, 0, None)
    assert not temporaries(folder)


def test_one_at_a_time(folder: str) -> None:
    """Two processes need room at once, and each removes its half of the folder."""
    for number in range(10):
        add(folder, number)
    with (Path(folder) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert reclaim(folder, 4 * FILE_BYTES, 0, None) == Reclaimed(10 * FILE_BYTES, 0)
    assert reclaim(folder, 4 * FILE_BYTES, 0, None) == Reclaimed(3 * FILE_BYTES, 7)


def test_used_in_the_meantime(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blob is hit while the folder is listed, and goes all the same."""
    paths = [add(folder, number, age_s=1000 - number) for number in range(10)]
    num_scans = 0

    def scan_then_touch(folder: str) -> Iterator[object]:
        nonlocal num_scans
        num_scans += 1
        for file in list(scan(folder)):
            if num_scans == 2 and file.path == str(paths[2]):
                paths[2].unlink()
            yield file
        if num_scans == 1:
            os.utime(paths[0])
            paths[1].unlink()

    monkeypatch.setattr("deepinfer.cache.disk_folder.scan", scan_then_touch)
    reclaim(folder, 10 * FILE_BYTES, 3 * FILE_BYTES, None)  # four were to go
    assert numbers(folder) == [0, *range(4, 10)]


def test_the_clock_goes_back(folder: str) -> None:
    """After the clock was set right, what is written goes first, and what was there never goes."""
    week_s, day_s = 7 * 86_400, 86_400
    for number in range(4):
        add(folder, number, age_s=week_s)
        add(folder, 10 + number, age_s=-day_s)  # of the day that the clock was ahead
        add(folder, 20 + number, age_s=30)  # written since
    reclaim(folder, 1 << 30, 0, None)
    assert len(numbers(folder)) == 12
    assert all(file.used_s <= time.time() for file in scan(folder))
    reclaim(folder, 9 * FILE_BYTES, 0, None)
    assert numbers(folder) == [10, 11, 12, 13, 20, 21, 22, 23]
    reclaim(folder, 5 * FILE_BYTES, 0, None)
    assert numbers(folder)[-4:] == [20, 21, 22, 23]


def test_corrected_times_count_at_once(folder: str) -> None:
    """Files of the future are corrected, and too few of them go in the same round."""
    for number in range(10):
        add(folder, number, age_s=-86_400)
    assert reclaim(folder, 8 * FILE_BYTES, 0, None) == Reclaimed(7 * FILE_BYTES, 3)


def test_folders_removed_by_hand(folder: str) -> None:
    """An old model's folder is removed while it is listed, and the tier takes it for a fault."""
    for number in range(10):
        add(folder, number)
    files = scan(folder)
    next(files)
    for part in (Path(folder) / f"kv-{DIGEST.hex()}").iterdir():
        for path in part.iterdir():
            path.unlink()
        part.rmdir()
    assert not list(files)
    Path(folder, f"kv-{DIGEST.hex()}").rmdir()
    assert reclaim(folder, 1, 0, None) == Reclaimed(0, 0)


@pytest.mark.slow
def test_many_files_are_listed_in_a_second(folder: str) -> None:
    """A start with a large folder takes minutes. (The bound leaves room for slow machines.)"""
    content = blob_of(key_of(0), 10)
    for number in range(MANY):
        with open(blob_path(folder, DIGEST, key_of(number)), "wb", buffering=0) as file:
            file.write(content)
    with effort(300):
        assert reclaim(folder, 1 << 30, 0, 1e6) == Reclaimed(10 * MANY, 0)
    assert reclaim(folder, 8 * MANY, 0, None).num_evicted == MANY // 5 + MANY // 20
    assert reclaim(folder, 1, 0, None).used_bytes == 0  # leaves no work to whoever cleans up
