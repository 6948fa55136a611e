"""Engines that are killed while they write to the disk, that share it, and whose disk decays.

What an engine answers is compared with one that has no cache. Blobs and files alone are the matter
of tests/unit/cache.
"""

import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from deepinfer.cache.disk_folder import scan
from tests.laws.engine_child import answers, engine_of, open_llm, serve
from tests.laws.test_engine import some_ids

# Forked from a process that has imported everything and started no thread: a start takes no second.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.laws.engine_child"])

# Trees: a trunk of a block each, two branches of another block, two tails.
PROMPTS = [
    [*some_ids(trunk, 130), *some_ids(10 + branch, 130), *some_ids(20 + tail, 40)]
    for trunk in range(3)
    for branch in range(2)
    for tail in range(2)
]
Child = tuple[ForkServerProcess, Connection]


@pytest.fixture(scope="module")
def cold(tiny_dir: Path) -> list[list[int]]:
    """What an engine without a cache answers to each prompt."""
    with open_llm(tiny_dir, None) as llm:
        return [tokens for tokens, _ in answers(llm, PROMPTS)]


@contextmanager
def child(model: Path, folder: Path, pause_s: float = 0.0) -> Iterator[Child]:
    """A process that is ready to be asked; killed at the end, if it still runs."""
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=serve, args=(model, folder, there, pause_s))
    process.start()
    there.close()
    try:
        assert here.recv() == "ready"
        yield process, here
    finally:
        process.kill()
        process.join()
        here.close()


def temporaries(folder: Path) -> int:
    return sum(file.is_temporary for file in scan(str(folder)))


def ask_until_killed(
    running: Child, numbers: list[int], cold: list[list[int]], wait_s: float
) -> int:
    """Kill it so long after it was asked. Returns the tokens that it had found on the disk."""
    process, pipe = running
    end_s = time.monotonic() + wait_s
    num_found = 0
    for number in numbers:
        pipe.send([PROMPTS[number]])
        if not pipe.poll(max(0.0, end_s - time.monotonic())):
            break
        ((tokens, _),), num_found = pipe.recv()
        assert tokens == cold[number]
    process.kill()
    process.join()
    assert process.exitcode == -9  # not of a mistake of its own
    return num_found


@pytest.mark.parametrize("num_kills", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_while_it_writes(
    tiny_dir: Path, tmp_path: Path, cold: list[list[int]], num_kills: int
) -> None:
    """After a crash an engine answers from half a block, or finds nothing of what was written."""
    rng = random.Random(num_kills)
    found, num_torn = [], 0
    for number in range(num_kills):
        # At times from nothing, so that there is something to write.
        folder = tmp_path / str(number // 10)
        numbers = rng.sample(range(len(PROMPTS)), len(PROMPTS))
        with child(tiny_dir, folder, pause_s=0.004) as running:
            found.append(ask_until_killed(running, numbers, cold, rng.uniform(0.02, 0.4)))
        num_torn += temporaries(folder) > 0
    assert num_torn >= num_kills // 5, "it was never killed while it wrote"
    assert sum(found[1:]) > 0, "nothing comes back"
    for folder in tmp_path.iterdir():
        with open_llm(tiny_dir, folder) as llm:
            assert [tokens for tokens, _ in answers(llm, PROMPTS)] == cold
            stats = engine_of(llm).stats()
            assert stats.disk_hit_tokens_total > 0
            assert (stats.disk_faults_total, stats.disk_is_on) == (0, True)
        assert not temporaries(folder)


def test_two_at_once(tiny_dir: Path, tmp_path: Path, cold: list[list[int]]) -> None:
    """Of two engines with one folder each computes what the other has written, or gets it wrong."""
    half = len(PROMPTS) // 2
    with child(tiny_dir, tmp_path) as (_, first), child(tiny_dir, tmp_path) as (_, second):
        sides = [(first, range(half)), (second, range(half, len(PROMPTS)))]
        for turn in range(2):
            for pipe, numbers in (
                sides if turn == 0 else zip((second, first), (s[1] for s in sides))
            ):
                pipe.send([PROMPTS[number] for number in numbers])
            for pipe, numbers in (
                sides if turn == 0 else zip((second, first), (s[1] for s in sides))
            ):
                found, num_found = pipe.recv()
                assert [tokens for tokens, _ in found] == [cold[number] for number in numbers]
