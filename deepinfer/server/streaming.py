"""A stream of server-sent events, from its first byte to its end, whatever happens in between.

Knows that a stream which has begun can only tell of a failure inside itself. Does not know whose
words it carries.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from deepinfer.errors import RequestError
from deepinfer.server.engine_calls import SERVER_ENDS, as_api_error
from deepinfer.server.errors import ApiError
from deepinfer.server.exchange import Exchange

Failed = Callable[[ApiError, str], bytes]


class Stream:
    """An answer in pieces; the status line goes out with the first of them, so that a request which
    is refused before is refused with a status. failed: writes the end of a stream that fails."""

    def __init__(self, exchange: Exchange, failed: Failed) -> None:
        self._exchange, self._failed = exchange, failed

    async def write(self, data: bytes) -> None:
        """A piece of whole events."""
        if not self._exchange.has_started:
            await self._exchange.start_events()
        await self._exchange.write(data)

    async def end(self, data: bytes) -> None:
        """The last piece."""
        if not self._exchange.has_started:
            await self._exchange.start_events()
        await self._exchange.write(data, is_last=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """An error before the first piece goes on to the caller; a later one ends the stream."""
        exchange = self._exchange
        if error is None or not exchange.has_started or exchange.client_left:
            return False
        if isinstance(error, asyncio.CancelledError):
            # The server ends: its time for running requests is over.
            told = SERVER_ENDS
        elif isinstance(error, Exception):
            told = as_api_error(error)
        else:
            return False
        exchange.failure = told
        await exchange.write(self._failed(told, exchange.request_id), is_last=True)
        # What nobody foresaw goes on to the log.
        return isinstance(error, RequestError | ApiError) or told.status != 500
