"""Engines that are killed while they write to the disk, that share it, and whose disk decays.

What an engine answers is compared with one that has no cache. Blobs and files alone are the matter
of tests/unit/cache.
"""

import multiprocessing
import random
import signal
import time
from collections.abc import Iterator, Sequence
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

# Two trunks of a block, on each two branches of another one, on each two tails.
PROMPTS = [
    [*some_ids(trunk, 130), *some_ids(10 + branch, 130), *some_ids(20 + tail, 10)]
    for trunk in range(2)
    for branch in range(2)
    for tail in range(2)
]
Child = tuple[ForkServerProcess, Connection]
# Of each prompt its tokens and how many were found; then how many came from the disk so far.
Answers = tuple[list[tuple[list[int], int]], int]


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


def files(folder: Path) -> int:
    return sum(not file.is_temporary for file in scan(str(folder)))


def temporaries(folder: Path) -> int:
    return sum(file.is_temporary for file in scan(str(folder)))


def ask_then_kill(running: Child, numbers: list[int], cold: list[list[int]], wait_s: float) -> int:
    """Ask these; kill it so long after the last answer. Returns the tokens found on the disk."""
    process, pipe = running
    num_found = 0
    for number in numbers:
        ((tokens, _),), num_found = ask(pipe, [number])
        assert tokens == cold[number]
    time.sleep(wait_s)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL  # not of a mistake of its own
    return num_found


def ask(pipe: Connection, numbers: Sequence[int]) -> Answers:
    pipe.send([PROMPTS[number] for number in numbers])
    found: Answers = pipe.recv()
    return found


@pytest.mark.parametrize("num_kills", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_while_it_writes(
    tiny_dir: Path, tmp_path: Path, cold: list[list[int]], num_kills: int
) -> None:
    """After a crash an engine answers from half a block, or finds nothing of what was written."""
    rng = random.Random(num_kills)
    found, num_torn = [], 0
    # On a slow machine a kill seldom falls into a write: it goes on until enough did.
    for number in range(4 * num_kills):
        if number >= num_kills and num_torn >= num_kills // 5:
            break
        # At times a new folder, so that there is something to write.
        folder = tmp_path / str(number // 5)
        numbers = rng.sample(range(len(PROMPTS)), rng.randint(1, 3))
        with child(tiny_dir, folder, pause_s=0.004) as running:
            found.append(ask_then_kill(running, numbers, cold, rng.uniform(0, 0.15)))
        num_torn += temporaries(folder) > 0
    assert num_torn >= num_kills // 5, "it was never killed while it wrote"
    assert sum(found) > 0, "nothing comes back"
    for folder in tmp_path.iterdir():
        with open_llm(tiny_dir, folder) as llm:
            assert [tokens for tokens, _ in answers(llm, PROMPTS)] == cold
            stats = engine_of(llm).stats()
            assert stats.disk_hit_tokens_total > 0
            assert (stats.disk_faults_total, stats.disk_is_on) == (0, True)
        assert not temporaries(folder)


def test_two_at_once(tiny_dir: Path, tmp_path: Path, cold: list[list[int]]) -> None:
    """Of two engines with one folder each computes what the other has written, or gets it wrong."""
    halves = [range(4), range(4, 8)]  # a trunk each: a block, and one for each branch
    with child(tiny_dir, tmp_path) as (_, first), child(tiny_dir, tmp_path) as (_, second):
        for turn in range(2):
            sides = list(zip((first, second), halves[:: 1 - 2 * turn], strict=True))
            for pipe, numbers in sides:
                pipe.send([PROMPTS[number] for number in numbers])
            for pipe, numbers in sides:
                found, num_found = pipe.recv()
                assert [tokens for tokens, _ in found] == [cold[number] for number in numbers]
            if turn == 0:
                wait_for(tmp_path, 6)
            else:
                assert num_found >= 2 * 128
                assert all(num_cached == 256 for _, num_cached in found)


@pytest.mark.parametrize(
    ("num_files", "num_rounds"), [(8, 3), pytest.param(25, 40, marks=pytest.mark.slow)]
)
def test_flipped_bits(tiny_dir: Path, tmp_path: Path, num_files: int, num_rounds: int) -> None:
    """A bit that fell over on the disk becomes a token of an answer, or nobody hears of it. One
    in each file in each round, 1,000 in all."""
    prompts = [some_ids(number, 130) for number in range(num_files)]
    rng = random.Random(1)
    with open_llm(tiny_dir, None) as llm:
        expected = [tokens for tokens, _ in answers(llm, prompts)]
    with open_llm(tiny_dir, tmp_path) as llm:
        engine = engine_of(llm)
        memory = engine.scheduler.memory
        for number in range(num_rounds + 2):
            memory.blocks.clear()  # or the device would have them all the same
            found = answers(llm, prompts)
            # The second time nothing was flipped.
            assert found == [(tokens, 128 * (number == 1)) for tokens in expected]
            assert engine.stats().disk_faults_total == num_files * max(0, number - 1)
            wait_for(tmp_path, num_files)
            for file in scan(str(tmp_path)) if number else ():
                flip(Path(file.path), rng)
        assert engine.stats().disk_hit_tokens_total == 128 * num_files
        assert engine.stats().disk_is_on


def wait_for(folder: Path, num_files: int) -> None:
    """Until so many are written and no more."""
    end_s = time.monotonic() + 20.0
    while (files(folder), temporaries(folder)) != (num_files, 0):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    bit = rng.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
