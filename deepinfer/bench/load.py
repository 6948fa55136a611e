"""Load on a server: streams at once, each with one request after another; what they took and got.

Knows POST /v1/completions, and the counts at /metrics where there are any. Says what was asked and
what was delivered, how tokens were chosen, and how much of the prompts lay in a cache, because
other benchmarks have been wrong about each of these.
"""

import asyncio
import json
import os
import random
import re
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepinfer.bench.client import BadAnswer, Target, asked
from deepinfer.errors import ConfigError

_SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe ri so tu va we xi yo zu".split()


@dataclass(frozen=True, slots=True)
class UrlWorkload:
    """What is asked: `requests` in all, `streams` of them at once.

    input_words: of each prompt, made up and different in each. output_len: new tokens of each.
    seed: of the prompts and the draws; by default another each time, since a server that has seen
    the prompts before answers from its cache. timeout_s: of one request. Raises ConfigError.
    """

    streams: int = 8
    requests: int = 32
    input_words: int = 64
    output_len: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = field(default_factory=lambda: secrets.randbelow(2**31))
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        for name, least in (("streams", 1), ("requests", 1), ("input_words", 1), ("output_len", 2)):
            if (found := getattr(self, name)) < least:
                raise ConfigError(
                    f"found {found}",
                    where="--" + name.replace("_", "-"),
                    hint=f"give at least {least}",
                )


@dataclass(slots=True)
class StreamedAnswer:
    """One request: times in seconds of one clock; those of its pieces; tokens as the server says.

    error: None if it ended as it should.
    """

    sent_s: float
    times_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True)
class UrlResult:
    """What was measured. server: how its counts grew meanwhile, {} where it tells none.
    cpu_s: processor time of the process that was watched, None if none was."""

    model: str
    workload: UrlWorkload
    wall_s: float
    answers: list[StreamedAnswer]
    server: dict[str, float]
    cpu_s: float | None

    @property
    def output_tokens(self) -> int:
        """Of all answers together."""
        return sum(answer.output_tokens for answer in self.answers)

    @property
    def first_token_s(self) -> list[float]:
        """For each answer that began."""
        return [answer.times_s[0] - answer.sent_s for answer in self.answers if answer.times_s]

    @property
    def between_s(self) -> list[float]:
        """From piece to piece of an answer; a piece can hold several tokens."""
        pairs = ((a.times_s, a.times_s[1:]) for a in self.answers)
        return [after - before for a, b in pairs for before, after in zip(a, b, strict=False)]

    @property
    def faults(self) -> Counter[str]:
        """What went wrong, and how often: errors, and answers of another length than asked."""
        wanted = self.workload.output_len
        return Counter(
            answer.error or f"{answer.output_tokens} of {wanted} output tokens"
            for answer in self.answers
            if answer.error is not None or answer.output_tokens != wanted
        )


async def bench_url(target: Target, workload: UrlWorkload, pid: int | None = None) -> UrlResult:
    """Put the load on. pid: a process of this machine whose processor time is to be measured.

    Raises ConfigError if the server cannot be reached or lets nobody in.
    """
    model = await _model(target)
    rng = random.Random(workload.seed)
    bodies = [_body(model, workload, rng, number) for number in range(workload.requests)]
    before, cpu_before = await counts(target), None if pid is None else cpu_s(pid)
    bodies.reverse()
    answers: list[StreamedAnswer] = []

    async def stream() -> None:
        while bodies:
            answers.append(await _answer(target, bodies.pop(), workload.timeout_s))

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(workload.streams, workload.requests)):
            group.create_task(stream())
    wall_s = time.perf_counter() - start
    cpu = None if pid is None or cpu_before is None else cpu_s(pid) - cpu_before
    grown = {name: value - before.get(name, 0) for name, value in (await counts(target)).items()}
    return UrlResult(model, workload, wall_s, answers, grown, cpu)


def cpu_s(pid: int) -> float:
    """Processor time of a process since its start, all its threads. Raises OSError, and on systems
    without /proc, too."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    # The name, in parentheses, may hold spaces; utime and stime are fields 14 and 15.
    rest = text.rpartition(")")[2].split()
    return (int(rest[11]) + int(rest[12])) / os.sysconf("SC_CLK_TCK")


async def counts(target: Target) -> dict[str, float]:
    """The server's own counts by name and labels, as /metrics has them; {} if it tells none."""
    try:
        async with asked(target, "GET", "/metrics") as reply:
            text = (await reply.body()).decode() if reply.status == 200 else ""
    except (OSError, BadAnswer):
        return {}
    found = re.findall(r"^(\w+(?:\{[^}\n]*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def made_up(rng: random.Random, num_words: int) -> str:
    """Words that mean nothing."""
    return " ".join("".join(rng.choices(_SYLLABLES, k=2)) for _ in range(num_words))


async def _model(target: Target) -> str:
    try:
        async with asked(target, "GET", "/v1/models") as reply:
            body = await reply.body()
    except (OSError, BadAnswer) as error:
        hint = "start one with: deepinfer serve"
        raise ConfigError(f"no server: {error}", where="URL", hint=hint) from None
    if reply.status != 200:
        hint = "give --api-key" if reply.status == 401 else "see the server's log"
        raise ConfigError(f"the server answers {reply.status}", where="URL", hint=hint)
    return str(json.loads(body)["data"][0]["id"])


def _body(model: str, workload: UrlWorkload, rng: random.Random, number: int) -> bytes:
    asked_for: dict[str, Any] = {
        "model": model,
        "prompt": made_up(rng, workload.input_words),
        "max_tokens": workload.output_len,
        "temperature": workload.temperature,
        "top_p": workload.top_p,
        "top_k": workload.top_k,
        "seed": workload.seed + number,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(asked_for).encode()


async def _answer(target: Target, body: bytes, timeout_s: float) -> StreamedAnswer:
    answer = StreamedAnswer(time.perf_counter())
    try:
        async with (
            asyncio.timeout(timeout_s),
            asked(target, "POST", "/v1/completions", body) as reply,
        ):
            if reply.status != 200:
                answer.error = f"status {reply.status}"
            else:
                answer.error = "ended without an end"
                async for data in reply.events():
                    _take(answer, data)
    except TimeoutError:
        answer.error = f"nothing after {timeout_s:g} s"
    except (OSError, BadAnswer, ValueError) as error:
        answer.error = str(error) or type(error).__name__
    answer.ended_s = time.perf_counter()
    return answer


def _take(answer: StreamedAnswer, data: bytes) -> None:
    if data == b"[DONE]":
        answer.error = None
        return
    chunk = json.loads(data)
    if "error" in chunk:
        raise BadAnswer(str(chunk["error"].get("message", chunk["error"])))
    if any(choice.get("text") for choice in chunk.get("choices", ())):
        answer.times_s.append(time.perf_counter())
    if usage := chunk.get("usage"):
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.output_tokens = usage["completion_tokens"]
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
