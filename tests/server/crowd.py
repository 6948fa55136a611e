"""A crowd of clients: some hear their answers out, some leave in the middle, some send garbage."""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepinfer.bench.client import BadAnswer, Target, asked
from tests.server.servers import ServerProcess

ROUTE = "/v1/completions"
LEAVE, GARBAGE = 1 / 3, 1 / 10
# What a server may say to garbage: that it is some. Anything else is a fault.
_REFUSALS = range(400, 500)


@dataclass
class Seen:
    """What the crowd saw. faults: what must not happen, in words."""

    heard: int = 0
    left: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    tokens: int = 0
    health_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """A request whose answer is known: seeded, so that a mixed-up answer is told from its own."""

    body: bytes
    num_tokens: int
    text: str = ""


def questions(count: int, seed: int) -> list[Question]:
    """Prompts of up to 100 tokens, up to 24 new ones, greedy or drawn."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        num_tokens = rng.randint(2, 24)
        asked_for: dict[str, Any] = {
            "prompt": [rng.randrange(10, 200) for _ in range(rng.randint(1, 100))],
            "max_tokens": num_tokens,
            "temperature": rng.choice([0, 1]),
            "seed": number,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        found.append(Question(json.dumps(asked_for).encode(), num_tokens))
    return found


def processes(server: ServerProcess) -> dict[str, int]:
    """The two processes of a server."""
    pid = server.process.pid
    tasks = Path(f"/proc/{pid}/task").iterdir()
    (engine,) = (int(one) for task in tasks for one in (task / "children").read_text().split())
    return {"HTTP": pid, "engine": engine}


async def hear(target: Target, question: Question, leave_after: float | None = None) -> str:
    """The text of an answer; after so many seconds the client leaves, with TimeoutError.

    Raises AssertionError for an answer that is not whole, or more than that.
    """
    texts, reasons, usages, ends = [], [], [], 0
    async with (
        asyncio.timeout(leave_after),
        asked(target, "POST", ROUTE, question.body) as reply,
    ):
        assert reply.status == 200, f"status {reply.status}: {await reply.body()!r}"
        async for data in reply.events():
            assert not ends, "something behind the end"
            if data == b"[DONE]":
                ends += 1
                continue
            chunk = json.loads(data)
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                texts.append(choice["text"])
                reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
            usages += [chunk["usage"]] if chunk.get("usage") else []
    assert ends == 1, "no end"
    assert reasons == ["length"], reasons
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == [question.num_tokens], counts
    return "".join(texts)


async def throw(target: Target, rng: random.Random) -> int | None:
    """Garbage; the status of the answer, None if there was none."""
    nested = b'{"prompt": ' + b"[" * 5000
    bodies = [
        rng.randbytes(200),
        b'{"prompt": "half',
        b"[]",
        nested,
        b'{"prompt": 7}',
        b'{"prompt": [-1]}',
        b'{"prompt": [1], "max_tokens": -3}',
        b'{"prompt": [1], "n": 1000000000}',
        b'{"prompt": [1], "model": "another"}',
        b'{"prompt": [1], "temperature": "hot"}',
        json.dumps({"prompt": [11] * 100_000}).encode(),
        b'{"prompt": "\\ud800"}',
    ]
    raw = [
        rng.randbytes(300),
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-le",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"GET " + b"a" * 70_000,
    ]
    choice = rng.randrange(len(bodies) + len(raw))
    if choice < len(bodies):
        async with asked(target, "POST", ROUTE, bodies[choice]) as reply:
            await reply.body()
            return reply.status
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        writer.write(raw[choice - len(bodies)])
        await asyncio.wait_for(reader.read(100), rng.random())
    except (TimeoutError, OSError):
        pass
    finally:
        writer.transport.abort()
    return None


async def client(
    target: Target, known: list[Question], seen: Seen, end_s: float, rng: random.Random
) -> None:
    """One client, until the time is over."""
    while time.monotonic() < end_s:
        what = rng.random()
        try:
            if what < GARBAGE:
                status = await throw(target, rng)
                if status is None:
                    seen.dropped += 1
                elif status in _REFUSALS:
                    seen.refused[status] += 1
                else:
                    seen.faults.append(f"garbage got status {status}")
                continue
            question = rng.choice(known)
            leave_after = rng.random() if what < GARBAGE + LEAVE else None
            text = await hear(target, question, leave_after)
        except TimeoutError:
            seen.left += 1
        except (AssertionError, BadAnswer, OSError) as error:
            seen.faults.append(f"{type(error).__name__}: {error}"[:300])
        else:
            seen.heard += 1
            seen.tokens += question.num_tokens
            if text != question.text:
                seen.faults.append(f"another's answer: {text!r}, not {question.text!r}"[:300])


async def watch_health(target: Target, seen: Seen, end_s: float) -> None:
    """How long /health takes, four times a second."""
    while time.monotonic() < end_s:
        start = time.monotonic()
        try:
            async with asyncio.timeout(10), asked(target, "GET", "/health") as reply:
                await reply.body()
                if reply.status != 200:
                    seen.faults.append(f"/health: {reply.status}")
        except (TimeoutError, BadAnswer, OSError) as error:
            seen.faults.append(f"/health: {error!r}")
        seen.health_s.append(time.monotonic() - start)
        await asyncio.sleep(0.25)
