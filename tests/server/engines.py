"""Links to engine processes that run toys, and what tests do with them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from deepinfer import SamplingParams
from deepinfer.front.collector import Collector
from deepinfer.outputs import RequestOutput
from deepinfer.server.channel import Channel
from deepinfer.server.link import EngineCommand, EngineLink
from deepinfer.server.wire import Submit
from deepinfer.tokenizer.tokenizer import Tokenizer

T = TypeVar("T")

OPTIONS = {"device": "cpu", "dtype": "float32", "max_num_seqs": 16, "max_model_len": 600}


@asynccontextmanager
async def linked(
    folder: Path, events: list[str] | None = None, *, hang_s: float = 300.0, **options: Any
) -> AsyncIterator[EngineLink]:
    """A link to a toy, ready; ended at the end. events: gets what is worth a log."""
    command = EngineCommand(str(folder), {**OPTIONS, **options}, hang_s=hang_s)
    said = [] if events is None else events
    link = EngineLink(command, said.append)
    await link.start()
    try:
        await asyncio.wait_for(link.ready(), 120)
        yield link
    finally:
        await link.close()


def run(main: Callable[[], Coroutine[Any, Any, T]], most_s: float = 120) -> T:
    """Run a test's coroutine, but not for ever."""
    return asyncio.run(asyncio.wait_for(main(), most_s))


async def answer(
    link: EngineLink,
    tokenizer: Tokenizer,
    prompt: list[int],
    params: SamplingParams,
    *,
    seed: int | None = None,
    grammar: str | None = None,
) -> RequestOutput:
    """One request from start to end, as a server has it answered."""
    collector = Collector("", None, prompt, params, tokenizer)
    async with link.submit(Submit("", prompt, params, seed, grammar)) as channel:
        await read(channel, collector)
    return collector.output()


async def read(channel: Channel, collector: Collector) -> None:
    """All news of a request into its collector; stop strings end choices."""
    async for batch in channel.batches():
        for delta in batch:
            if channel.was_finished(delta.choice):
                continue
            _, stopped = collector.add(delta)
            if stopped:
                channel.finish(delta.choice)


async def until(is_so: Callable[[], bool], most_s: float = 10) -> float:
    """Wait for it; the seconds that it took."""
    start = time.monotonic()
    while not is_so():
        if time.monotonic() - start > most_s:
            raise TimeoutError(f"not within {most_s} s")
        await asyncio.sleep(0.005)
    return time.monotonic() - start


def is_alive(pid: int) -> bool:
    """The process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
