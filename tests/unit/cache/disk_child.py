"""A process of its own that uses a disk tier: python -m tests.unit.cache.disk_child JOB FOLDER ...

write FOLDER FIRST: puts and gets a range of keys until it is killed. die FOLDER POINT: kills itself
in the middle of writing key 0. share FOLDER SEED SECONDS: all operations at random on a few keys,
then its counters as JSON. limit FOLDER: may not write files beyond 10,000 bytes; its counters. A
wrong blob ends any of them.
"""

import json
import os
import random
import resource
import signal
import sys
import time
from dataclasses import asdict

from deepinfer.cache.disk_tier import DiskTier
from tests.unit.cache.blobs import IDENTITY, blob_of, is_right, key_of, keys_of

BLOB_BYTES = 30_000
NUM_KEYS = 200
NUM_SHARED = 40
SHARED_BYTES = 25 * BLOB_BYTES


def open_tier(folder: str, capacity_bytes: int = 1 << 30) -> DiskTier:
    return DiskTier(folder, capacity_bytes, IDENTITY)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def write(folder: str, first: str) -> None:
    rng, tier = random.Random(first), open_tier(folder)
    say("ready")
    while True:
        key = key_of(int(first) + rng.randrange(NUM_KEYS))
        assert (blob := tier.get(key)) is None or is_right(key, blob)
        tier.put(key, blob_of(key, BLOB_BYTES))
        if rng.random() < 0.1:
            tier.flush()


def die(folder: str, point: str) -> None:
    tier = open_tier(folder)
    real_write, real_rename = os.write, os.rename

    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write_half(fd: int, content: memoryview) -> int:
        if len(content) == BLOB_BYTES:
            real_write(fd, content[: BLOB_BYTES // 2])
            kill()
        return real_write(fd, content)

    def rename_first(old: str, new: str) -> None:
        real_rename(old, new)
        kill()

    if point == "inside":
        os.write = write_half
    os.rename = {"before": kill, "inside": real_rename, "after": rename_first}[point]
    tier.put(key_of(0), blob_of(key_of(0), BLOB_BYTES))
    tier.flush()


def share(folder: str, seed: str, seconds: str) -> None:
    rng, tier = random.Random(seed), open_tier(folder, SHARED_BYTES)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        key = key_of(rng.randrange(NUM_SHARED))
        chance = rng.random()
        if chance < 0.45:
            tier.put(key, blob_of(key, BLOB_BYTES))
        elif chance < 0.9:
            assert (blob := tier.get(key)) is None or is_right(key, blob)
        elif chance < 0.98:
            tier.prefetch(keys_of(rng.sample(range(NUM_SHARED), 5)))
        else:
            tier.remove(key)
    tier.flush()
    say(json.dumps(asdict(tier.counters())))


def limit(folder: str) -> None:
    tier = open_tier(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    tier.put(key_of(0), blob_of(key_of(0), BLOB_BYTES))
    tier.flush()
    tier.put(key_of(1), blob_of(key_of(1)))
    say(json.dumps(asdict(tier.counters())))


if __name__ == "__main__":
    job, *arguments = sys.argv[1:]
    {"write": write, "die": die, "share": share, "limit": limit}[job](*arguments)
