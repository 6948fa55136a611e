"""A client of a server, by bare sockets: little of the time that it measures is its own.

Knows as much of HTTP/1.1 as a server of ours speaks: one request a connection, a body that is
chunked, of a given length, or as long as the connection; and server-sent events. Does not know what
is asked or answered.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from deepinfer.errors import ConfigError

_READ_BYTES = 65536
_MAX_HEAD_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Target:
    """A server. path: before each route, without a slash at its end. api_key: None sends none."""

    host: str
    port: int
    path: str = ""
    uses_tls: bool = False
    api_key: str | None = None

    @classmethod
    def of(cls, url: str, api_key: str | None = None) -> Self:
        """From http://host:port or https://host/path; a /v1 at its end is taken off. Raises
        ConfigError."""
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise _bad_url(url, str(error)) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _bad_url(url, "it is no http:// or https:// address")
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port, path, parts.scheme == "https", api_key)


class BadAnswer(Exception):
    """What came is no answer of HTTP/1.1, or not a whole one."""


class Reply:
    """An answer whose head has come. headers: names in lower case."""

    def __init__(
        self, status: int, headers: dict[str, str], reader: asyncio.StreamReader, held: bytes
    ) -> None:
        self.status, self.headers = status, headers
        self._reader, self._held = reader, held

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, as it comes. Raises BadAnswer if it breaks off."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            chunks = Chunks()
            async for data in self._data():
                if piece := chunks.feed(data):
                    yield piece
                if chunks.has_ended:
                    return
            raise BadAnswer("the answer broke off")
        left = int(self.headers.get("content-length", -1))
        async for data in self._data() if left else _nothing():
            yield data
            left -= len(data)
            if left == 0:
                return
        if left > 0:
            raise BadAnswer("the answer broke off")

    async def body(self) -> bytes:
        """All of it."""
        return b"".join([piece async for piece in self.pieces()])

    async def events(self) -> AsyncIterator[bytes]:
        """The data of server-sent events, each on one line, as our servers write them."""
        rest = b""
        async for piece in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()

    async def _data(self) -> AsyncIterator[bytes]:
        if self._held:
            yield self._held
        while data := await self._reader.read(_READ_BYTES):
            yield data


class Chunks:
    """Takes the frames off a chunked body. has_ended: the last chunk was there."""

    def __init__(self) -> None:
        self._held = b""
        self._left = 0  # of a chunk, its line end included
        self.has_ended = False

    def feed(self, data: bytes) -> bytes:
        """What of the body is in these bytes. Raises BadAnswer for what is no chunk."""
        held, found, at = self._held + data, list[bytes](), 0
        while at < len(held) and not self.has_ended:
            if self._left:
                part = held[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                # The last two bytes of a chunk are its line end.
                found.append(part if self._left >= 2 else part[: len(part) + self._left - 2])
                continue
            end = held.find(b"\r\n", at)
            if end < 0:
                break
            try:
                size = int(held[at:end].split(b";")[0], 16)
            except ValueError:
                raise BadAnswer(f"{held[at:end][:20]!r} is no chunk's size") from None
            at = end + 2
            if not size:
                self.has_ended = True
            self._left = size + 2 if size else 0
        self._held = held[at:]
        return b"".join(found)


@asynccontextmanager
async def asked(target: Target, method: str, route: str, body: bytes = b"") -> AsyncIterator[Reply]:
    """Send a request; the connection is closed at the end of the block, heard out or not.

    Raises OSError if there is no connection, BadAnswer for what is no answer.
    """
    tls = ssl.create_default_context() if target.uses_tls else None
    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=tls)
    try:
        key = f"authorization: Bearer {target.api_key}\r\n" if target.api_key else ""
        head = (
            f"{method} {target.path}{route} HTTP/1.1\r\nhost: {target.host}:{target.port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"connection: close\r\n{key}\r\n"
        )
        writer.write(head.encode("latin-1") + body)
        await writer.drain()
        yield await _reply(reader)
    finally:
        # Nobody waits for what the server still had to say.
        writer.transport.abort()


async def _reply(reader: asyncio.StreamReader) -> Reply:
    held = b""
    while b"\r\n\r\n" not in held:
        data = await reader.read(_READ_BYTES)
        if not data or len(held) > _MAX_HEAD_BYTES:
            raise BadAnswer("the connection ended before an answer")
        held += data
    head, _, rest = held.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
        raise BadAnswer(f"{first[:40]!r} is no status line")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Reply(int(status[:3]), headers, reader, rest)


async def _nothing() -> AsyncIterator[bytes]:
    for data in tuple[bytes, ...]():
        yield data


def _bad_url(url: str, why: str) -> ConfigError:
    return ConfigError(f"found {url!r}: {why}", where="URL", hint="give http://127.0.0.1:8000")
