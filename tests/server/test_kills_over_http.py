"""An engine that is killed under load, as clients of the server see it, over and over."""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from deepinfer.bench.client import Target, asked
from tests.server.crowd import ROUTE, Seen, processes, watch_health
from tests.server.servers import ServerProcess, serving

pytestmark = pytest.mark.slow

NUM_CLIENTS = 12
MOST_S = 10.0
SHORT, LONG = 4, 400


async def one_answer(
    target: Target,
    number: int,
    num_tokens: int,
    *,
    streams: bool,
    begun: asyncio.Event | None = None,
) -> str:
    """How a request ended: "answered", "lost" or, in the middle of a stream, "broken off". Raises
    AssertionError for any other end. begun: told of the first event of a stream."""
    body = {
        "prompt": [10 + number],
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": streams,
    }
    async with asked(target, "POST", ROUTE, json.dumps(body).encode()) as reply:
        if reply.status == 200 and streams:
            events = []
            async for event in reply.events():
                events.append(event)
                if begun is not None:
                    begun.set()
            return end_of_stream(events)
        data = json.loads(await reply.body())
        if reply.status == 200:
            (choice,) = data["choices"]
            assert choice["finish_reason"] == "length"
            assert data["usage"]["completion_tokens"] == num_tokens
            return "answered"
        assert reply.status == 503, data
        assert data["error"]["message"]
        return "lost"


def end_of_stream(events: list[bytes]) -> str:
    """The same for the events of a stream: one end, of one kind, and nothing behind it."""
    assert events.count(b"[DONE]") == 1, events[-3:]
    assert events[-1] == b"[DONE]", events[-3:]
    chunks = [json.loads(event) for event in events[:-1]]
    errors = [chunk for chunk in chunks if "error" in chunk]
    ends = [one for chunk in chunks for one in chunk.get("choices", ()) if one["finish_reason"]]
    assert len(errors) + len(ends) == 1, chunks[-3:]
    last = chunks[-1]
    assert "error" in last or last["choices"][0]["finish_reason"] == "length", last
    return "broken off" if errors else "answered"


async def is_ready(target: Target) -> bool:
    """What /ready says."""
    async with asked(target, "GET", "/ready") as reply:
        await reply.body()
        return reply.status == 200


async def kill_once(server: ServerProcess, target: Target, after_s: float) -> Counter[str]:
    """12 clients, half of them streaming, half with short answers; a kill; how they ended.

    after_s: from the first token on, or with less than 0, from the start.
    """
    pid, begun = processes(server)["engine"], asyncio.Event()
    tasks = []
    for number in range(NUM_CLIENTS):
        length, streams = (SHORT, LONG)[number // 2 % 2], number % 2 == 0
        ask = one_answer(target, number, length, streams=streams, begun=begun)
        tasks.append(asyncio.create_task(ask))
    if after_s >= 0:
        await asyncio.wait_for(begun.wait(), 30)
    await asyncio.sleep(abs(after_s))
    os.kill(pid, signal.SIGKILL)
    ends = await asyncio.wait_for(asyncio.gather(*tasks), MOST_S)
    start = time.monotonic()
    while not await is_ready(target):
        assert time.monotonic() - start < 60, server.log()[-2000:]
        await asyncio.sleep(0.05)
    assert processes(server)["engine"] != pid
    for streams in (True, False):
        again = one_answer(target, 99, SHORT, streams=streams)
        assert await asyncio.wait_for(again, MOST_S) == "answered"
    return Counter(ends)


async def kills(server: ServerProcess, count: int, rng: random.Random) -> None:
    """So many kills at drawn moments, while /health is watched."""
    target, seen = Target.of(server.url), Seen()
    watcher = asyncio.create_task(watch_health(target, seen, time.monotonic() + 1000))
    ends: Counter[str] = Counter()
    try:
        for number in range(count):
            after_s = -0.1 * rng.random() if number % 2 else 0.3 * rng.random()
            found = await kill_once(server, target, after_s)
            assert found.total() == NUM_CLIENTS
            ends += found
    finally:
        watcher.cancel()
    # The kills met requests of both kinds, streams that had begun among them.
    assert ends["broken off"] > 0
    assert ends["lost"] > 0
    assert not seen.faults
    assert len(seen.health_s) > count
    async with asked(target, "GET", "/metrics") as reply:
        lines = (await reply.body()).decode().splitlines()
    route = f'route="{ROUTE}"'
    told = [line for line in lines if "requests_total{" in line and route in line]
    # Each was counted once, whatever became of it.
    assert sum(float(line.split()[-1]) for line in told) == count * (NUM_CLIENTS + 2), told


def run(folder: Path, count: int, seed: int) -> None:
    """Kills of the engine of one server, and what its log says of them."""
    options = ("--dtype", "float32", "--max-num-seqs", "8", "--max-model-len", "600")
    with serving(folder, *options) as server:
        asyncio.run(asyncio.wait_for(kills(server, count, random.Random(seed)), 25 * count + 30))
        assert server.log().count("SIGKILL") == count
        assert "Traceback" not in server.log()
        assert server.process.poll() is None


@pytest.mark.sample
def test_two_kills_over_http(tiny_dir: Path) -> None:
    """Clients of an engine that died wait for ever, are told nothing, or get two ends; or the next
    engine is never ready."""
    run(tiny_dir, 2, 1)


@pytest.mark.parametrize("seed", range(5))
def test_twenty_kills_over_http(tiny_dir: Path, seed: int) -> None:
    """The same, often enough to meet rare moments: four times each of five servers, because the
    wait for the next engine doubles from kill to kill."""
    run(tiny_dir, 4, seed)
