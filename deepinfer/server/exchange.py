"""One HTTP request and its answer, at the level of frames: the body in, bytes out, and what the log
says of it.

Knows ASGI and limits on bodies. Does not know routes, protocols or the engine. Frames are written
as they are, without layers between: that is most of what a streamed token costs here.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import msgspec

from deepinfer.recipe.request import Protocol
from deepinfer.server.errors import ApiError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_ID = re.compile(r"[\w.:/=+@-]{1,128}", re.ASCII)
JSON, EVENTS = b"application/json", b"text/event-stream; charset=utf-8"


class ClientLeft(Exception):
    """The connection ended while the body was read."""


class Exchange:
    """A request while it is answered.

    Attributes: `request_id`, the client's own if it can stand in a log; `path`, `method`, `headers`
    (names in lower case, the last of several counts); `route`, for counts; `protocol`, in which
    errors are told; `has_started`, the status line is out; `status`; `failure`, with which it
    ended; `client_left`. For the log: `prompt_tokens`, `cached_tokens`, `output_tokens`,
    `arrival_s` and `first_token_s` of time.monotonic.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        self.route = "other"
        self.protocol: Protocol | None = None
        given = self.headers.get("x-request-id", "")
        self.request_id = given if _ID.fullmatch(given) else f"req_{uuid4().hex}"
        shown = self.request_id.encode()
        # Two names: clients of Messages look for the second.
        self.extra_headers = [(b"x-request-id", shown), (b"request-id", shown)]
        self.has_started = self.has_ended = self.client_left = False
        self.status = 0
        self.failure: ApiError | None = None
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.arrival_s = time.monotonic()
        self.first_token_s: float | None = None

    async def body(self, most_bytes: int, timeout_s: float) -> bytes:
        """The whole body. Raises ApiError (413, 408) and ClientLeft."""
        too_large = ApiError(413, f"The body is larger than {most_bytes} bytes.", code="too_large")
        declared = self.headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared[:20]) > most_bytes:
            raise too_large
        parts: list[bytes] = []
        num_bytes = 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    part: bytes = message.get("body", b"")
                    num_bytes += len(part)
                    if num_bytes > most_bytes:
                        raise too_large
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            text = f"The body did not arrive within {timeout_s:g} s."
            raise ApiError(408, text, code="timeout", headers={"connection": "close"}) from None

    @asynccontextmanager
    async def cancelled_if_client_leaves(self) -> AsyncIterator[None]:
        """Inside, the current task is cancelled when the connection ends; see `client_left`."""
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.create_task(self._watch(task))
        try:
            yield
        finally:
            watcher.cancel()

    async def _watch(self, task: "asyncio.Task[Any]") -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.has_ended:
            self.client_left = True
            task.cancel()

    async def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """The whole answer at once."""
        shown = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in (headers or {}).items()]
        await self._start(
            status, [(b"content-length", str(len(body)).encode()), *shown], content_type
        )
        await self.write(b"" if self.method == "HEAD" else body, is_last=True)

    async def respond_json(
        self, status: int, data: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        """The whole answer at once, as JSON."""
        await self.respond(status, msgspec.json.encode(data), headers=headers)

    async def start_events(self) -> None:
        """The status line of a stream of events."""
        no_buffers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await self._start(200, no_buffers, EVENTS)

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """More of the answer."""
        self.has_ended = is_last
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def _start(
        self, status: int, headers: list[tuple[bytes, bytes]], content_type: bytes
    ) -> None:
        self.has_started, self.status = True, status
        sent = [(b"content-type", content_type), *headers, *self.extra_headers]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
