"""Channels, each by itself: one request's news, once, in order, until all has ended."""

import asyncio
from typing import Any

import pytest

from deepinfer.errors import RequestError
from deepinfer.messages import Delta
from deepinfer.server import channel as channel_module
from deepinfer.server.channel import Channel, EngineLost
from deepinfer.server.wire import Abort, Finish
from tests.server.engines import run

LOST = EngineLost("it ended", where="engine", hint="send it again")


class Told:
    """A channel of a number of choices, and what it told the engine."""

    def __init__(self, num_choices: int) -> None:
        self.messages: list[Abort | Finish] = []
        self.left: list[str] = []
        self.channel = Channel("7", num_choices, self.messages.append, self.left.append)

    def put(self, choice: int, token_id: int | None, finish_reason: str | None = None) -> None:
        reason: Any = finish_reason
        self.channel.put(Delta("7", choice, token_id, finish_reason=reason))


async def rest(channel: Channel) -> list[int | None]:
    return [delta.token_id async for batch in channel.batches() for delta in batch]


def test_all_since_the_last_batch() -> None:
    """A slow reader gets one delta at a time, or loses those that came meanwhile."""

    async def main() -> None:
        told = Told(2)
        batches = told.channel.batches()
        for token in range(5):
            told.put(token % 2, token)
        assert [delta.token_id for delta in await anext(batches)] == [0, 1, 2, 3, 4]
        later = asyncio.create_task(anext(batches))
        await asyncio.sleep(0)
        told.put(0, 5, "stop")
        told.put(1, 6)
        assert [delta.token_id for delta in await later] == [5, 6]
        told.put(0, 7)  # after its end: a step that was under way
        told.put(1, 8, "length")
        assert [delta.token_id for delta in await anext(batches)] == [8]
        with pytest.raises(StopAsyncIteration):
            await anext(batches)
        assert (told.messages, told.left) == ([], ["7"])

    run(main, 5)


def test_finish() -> None:
    """H04: words that the engine said behind a stop string are read."""

    async def main() -> None:
        told = Told(2)
        for token in range(4):
            told.put(token % 2, token)
        told.channel.finish(0)
        told.channel.finish(0)
        told.put(0, 10)
        assert told.channel.was_finished(0)
        assert not told.channel.was_finished(1)
        told.put(1, 5, "stop")
        told.channel.finish(1)  # it had ended anyway, and its last words are not read
        assert await rest(told.channel) == []
        assert (told.messages, told.left) == ([Finish("7", 0)], ["7"])

    run(main, 5)


def test_finish_wakes() -> None:
    """A reader of a request whose last choice somebody else finished waits for ever."""

    async def main() -> None:
        told = Told(1)
        reader = asyncio.create_task(rest(told.channel))
        await asyncio.sleep(0)
        told.channel.finish(0)
        assert await reader == []

    run(main, 5)


def test_abort() -> None:
    """K04: the engine is not told that nobody reads, or told when all has ended."""

    async def main() -> None:
        told = Told(3)
        told.put(0, 1, "stop")
        async with told.channel:
            pass
        told.channel.abort()
        assert (told.messages, told.left) == ([Abort("7")], ["7"])
        assert await rest(told.channel) == []

        ended = Told(1)
        ended.put(0, 1, "stop")
        async with ended.channel:
            assert await rest(ended.channel) == [1]
        assert (ended.messages, ended.left) == ([], ["7"])

    run(main, 5)


def test_faults() -> None:
    """What came before a fault is lost, or a request that had ended fails."""

    async def main() -> None:
        told = Told(2)
        told.put(0, 1)
        told.channel.fail(LOST)
        told.put(0, 2)
        batches = told.channel.batches()
        assert [delta.token_id for delta in await anext(batches)] == [1]
        with pytest.raises(EngineLost):
            await anext(batches)
        assert (told.messages, told.left) == ([], ["7"])

        ended = Told(1)
        ended.put(0, 1, "stop")
        ended.channel.fail(LOST)
        assert await rest(ended.channel) == [1]

    run(main, 5)


def test_a_late_refusal() -> None:
    """The choices of a request whose grammar could not be compiled end as if they had been said."""

    async def main() -> None:
        told = Told(2)
        error = RequestError("no", field="so_args.schema", hint="another")
        for choice in range(2):
            told.channel.put(Delta("7", choice, finish_reason="error", error=error))
        with pytest.raises(RequestError, match="no"):
            await rest(told.channel)
        assert (told.messages, told.left) == ([], ["7"])

    run(main, 5)


def test_a_reader_that_is_cancelled() -> None:
    """News after the reader was cancelled is a fault of the link's."""

    async def main() -> None:
        told = Told(1)
        reader = asyncio.create_task(rest(told.channel))
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        told.put(0, 1)
        assert told.channel.num_held == 1

    run(main, 5)


def test_a_reader_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads nothing has its answer pile up until memory is full."""
    monkeypatch.setattr(channel_module, "MOST_HELD", 10)

    async def main() -> None:
        told = Told(1)
        for token in range(100):
            told.put(0, token)
        assert (told.messages, told.left) == ([Abort("7")], ["7"])
        batches = told.channel.batches()
        assert len(await anext(batches)) == 10
        with pytest.raises(RequestError, match="slowly"):
            await anext(batches)

    run(main, 5)
