"""Processes that share a folder, are killed while they write, and come back."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepinfer.cache.disk_file import HEADER_BYTES
from tests.architecture.tree import ROOT
from tests.unit.cache.blobs import is_right, key_of, keys_of, stored_bytes, temporaries
from tests.unit.cache.disk_child import BLOB_BYTES, NUM_KEYS, NUM_SHARED, SHARED_BYTES, open_tier

PYTHON = [sys.executable, "-m", "tests.unit.cache.disk_child"]
KILLS = [
    5,
    pytest.param(100, marks=pytest.mark.slow),
]


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PYTHON, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> dict[str, int]:
    """The counters that a process prints at its end."""
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    counters: dict[str, int] = json.loads(out)
    return counters


@pytest.mark.parametrize("num_kills", KILLS)
def test_killed_while_it_writes(tmp_path: Path, num_kills: int) -> None:
    """After a crash a half of a block is an answer, or all that was written is lost or stays."""
    rng = random.Random(num_kills)
    held: set[bytes] = set()
    num_orphans = 0
    for number in range(num_kills):
        first = number * NUM_KEYS // 4  # three in four of them may be there already
        process = start("write", tmp_path, first)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL  # not of an assertion of its own
        process.stdout.close()
        num_orphans += len(temporaries(tmp_path))

        tier = open_tier(str(tmp_path))
        assert tier.flush(10.0)
        assert not temporaries(tmp_path)
        is_last = number == num_kills - 1
        keys = keys_of(range(0 if is_last else first, first + NUM_KEYS))
        found = {key: tier.get(key) for key in keys if tier.has(key)}
        assert all(is_right(key, blob) for key, blob in found.items())
        assert held.intersection(keys) <= set(found)
        held |= set(found)
        counters = tier.counters()
        assert (counters.num_corrupt, counters.num_foreign, counters.num_errors) == (0, 0, 0)
        tier.close()
    assert held
    assert num_orphans or num_kills < 100


@pytest.mark.parametrize("point", ["before", "inside", "after"])
def test_killed_at_a_point(tmp_path: Path, point: str) -> None:
    """A kill inside or around one call leaves half a blob, or a temporary file for ever."""
    process = start("die", tmp_path, point)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert len(temporaries(tmp_path)) == (point != "after")
    tier = open_tier(str(tmp_path))
    assert tier.flush(10.0)
    assert not temporaries(tmp_path)
    blob = tier.get(key_of(0))
    assert is_right(key_of(0), blob) if point == "after" else blob is None
    assert tier.counters().num_corrupt == 0
    tier.close()


@pytest.mark.parametrize(
    ("num_processes", "seconds"), [(2, 2.0), pytest.param(4, 30.0, marks=pytest.mark.slow)]
)
def test_sharing_a_folder(tmp_path: Path, num_processes: int, seconds: float) -> None:
    """Two processes write, read, remove and evict the same keys at once, and one of them errs."""
    processes = [start("share", tmp_path, seed, seconds) for seed in range(num_processes)]
    for counters in map(finish, processes):
        assert counters["is_on"]
        assert counters["num_corrupt"] == counters["num_foreign"] == counters["num_errors"] == 0
        assert counters["num_hits"] > 0
        assert counters["num_stored"] > 0
        assert counters["num_evicted"] > 0
    assert not temporaries(tmp_path)
    above = max(SHARED_BYTES // 16, HEADER_BYTES + BLOB_BYTES)
    assert 0 < stored_bytes(tmp_path) <= SHARED_BYTES + (num_processes - 1) * above
    tier = open_tier(str(tmp_path))
    found = {key: tier.get(key) for key in keys_of(range(NUM_SHARED)) if tier.has(key)}
    assert found
    assert all(is_right(key, blob) for key, blob in found.items())
    tier.close()


def test_what_one_writes_another_reads(tmp_path: Path) -> None:
    """Replicas of one machine each compute what another one has on the disk."""
    process = start("write", tmp_path, 0)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    tier = open_tier(str(tmp_path))
    end_s = time.monotonic() + 20.0
    while tier.counters().num_hits < 100 and time.monotonic() < end_s:
        for key in keys_of(range(NUM_KEYS)):
            assert not tier.has(key) or is_right(key, tier.get(key))
    assert tier.counters().num_hits >= 100
    assert tier.counters().num_stored == 0
    process.kill()
    process.communicate()
    tier.close()


def test_a_limit_of_the_kernel(tmp_path: Path) -> None:
    """The kernel refuses a write, not a test's own function, and the engine ends."""
    counters = finish(start("limit", tmp_path))
    assert not counters["is_on"]
    assert (counters["num_errors"], counters["num_dropped"]) == (1, 2)
    assert not temporaries(tmp_path)
    assert stored_bytes(tmp_path) == 0
