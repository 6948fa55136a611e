"""Several streams of news as one. Knows nothing of what they say."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merged(sources: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """(place of its source, item), as they come, until all sources have ended.

    Raises what a source raises. Whoever leaves early closes this iterator, which ends the rest.
    """
    if len(sources) == 1:
        async for item in sources[0]:
            yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | asyncio.Task[None]] = asyncio.Queue()

    async def pump(place: int, source: AsyncIterator[T]) -> None:
        async for item in source:
            queue.put_nowait((place, item))

    tasks = [asyncio.create_task(pump(place, one)) for place, one in enumerate(sources)]
    for task in tasks:
        task.add_done_callback(queue.put_nowait)
    num_open = len(tasks)
    try:
        while num_open:
            found = await queue.get()
            if isinstance(found, asyncio.Task):
                found.result()
                num_open -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
