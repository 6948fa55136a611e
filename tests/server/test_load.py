"""A crowd on a toy: nobody gets another's answer, nothing is lost, held or leaked."""

import asyncio
import dataclasses
import json
import logging
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deepinfer.bench.client import Target, asked
from deepinfer.bench.load import counts
from tests.server.crowd import Seen, client, hear, processes, questions, watch_health
from tests.server.servers import ServerProcess, serving

OPTIONS = ("--device", "cpu", "--dtype", "float32", "--max-model-len", "600")
SEATS = 64
LEAK_MB = 10
_LOG = logging.getLogger(__name__)


def resident_mb(pid: int) -> float:
    """What a process holds in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


async def live(target: Target) -> dict[str, Any]:
    async with asked(target, "GET", "/live") as reply:
        found: dict[str, Any] = json.loads(await reply.body())
        return found


async def idle(target: Target, most_s: float = 20) -> dict[str, Any]:
    """/live once nothing runs; as it is if that does not come."""
    end = time.monotonic() + most_s
    while True:
        found = await live(target)
        held = found["running"] + found["waiting"] + found["slots"]["used"]
        if not held or time.monotonic() > end:
            return found
        await asyncio.sleep(0.2)


async def crowd(
    server: ServerProcess, num_clients: int, duration_s: float
) -> tuple[Seen, dict[str, float]]:
    """Let them at it; what they saw, and by how many MB each process grew after a third."""
    target = Target.of(server.url)
    known = [
        dataclasses.replace(one, text=await hear(target, one)) for one in questions(24, seed=5)
    ]
    seen, end_s = Seen(), time.monotonic() + duration_s
    pids = processes(server)
    async with asyncio.TaskGroup() as group:
        for number in range(num_clients):
            rng = random.Random(number)
            group.create_task(client(target, known, seen, end_s, rng))
        group.create_task(watch_health(target, seen, end_s))
        await asyncio.sleep(duration_s / 3)
        before = {name: resident_mb(pid) for name, pid in pids.items()}
        await asyncio.sleep(max(0.0, end_s - time.monotonic()))
        grown = {name: resident_mb(pid) - before[name] for name, pid in pids.items()}
    return seen, grown


def summary(seen: Seen) -> str:
    """For whoever wants to see the figures: pytest --log-cli-level info."""
    return (
        f"{seen.heard} heard out ({seen.tokens} tokens), {seen.left} left, "
        f"{dict(seen.refused)} refused, {seen.dropped} dropped; "
        f"/health {max(seen.health_s):.3f} s at most"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("num_clients", "duration_s"),
    [
        pytest.param(20, 6, marks=[pytest.mark.slow, pytest.mark.sample]),
        pytest.param(200, 60, marks=pytest.mark.slow),
    ],
)
def test_a_crowd(tiny_dir: Path, num_clients: int, duration_s: float) -> None:
    """Under load a server mixes answers up, forgets whoever left, grows, or stops answering."""
    with serving(tiny_dir, *OPTIONS, "--max-num-seqs", str(SEATS)) as server:
        seen, grown = asyncio.run(crowd(server, num_clients, duration_s))
        target = Target.of(server.url)
        stands = asyncio.run(idle(target))
        told = asyncio.run(counts(target))
        _LOG.info("%d clients, %g s: %s", num_clients, duration_s, summary(seen))
        _LOG.info("grown by MB %s; %s", grown, stands)
        assert server.process.poll() is None
        assert not seen.faults, seen.faults[:5]
        assert seen.heard >= num_clients
        assert seen.left and seen.refused
        assert max(seen.health_s) < 1
        assert stands["blocks"]["used"] == stands["slots"]["used"] == 0
        assert (stands["running"], stands["waiting"], stands["restarts"]) == (0, 0, 0)
        assert told["deepinfer_http_in_flight"] <= 1  # the one that asks
        assert told["deepinfer_http_waiting"] == 0
        assert max(grown.values()) < LEAK_MB
        assert not [line for line in server.lines if "Traceback" in line]
