"""A server that plays a part: the page and /live as they are, answers as a test wants them.

Speaks as much of Chat Completions as the page and `deepinfer chat` read.
"""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import uvicorn

from deepinfer.server.page import page

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

READY: dict[str, Any] = {
    "model": "demo",
    "state": "ready",
    "restarts": 0,
    "running": 0,
    "waiting": 0,
    "tokens_per_s": 0.0,
    "blocks": {"used": 0, "all": 64},
    "slots": {"used": 0, "all": 16},
    "hit_rate": None,
    "accepted_per_step": None,
}


class Part:
    """What the server does.

    live: what /live says. deltas: of the next answers, with pause_s between them; breaks_off: the
    connection ends behind them; error_behind: an error does. refusal: (status, message,
    Retry-After) instead. key: without it nothing is answered. usage: of completions, whose text is
    four pieces. metrics: what /metrics says. Attributes for the test: `asked`, the bodies that
    came; `left`, answers whose client went away; `url`.
    """

    def __init__(self) -> None:
        self.live = dict(READY)
        self.deltas: list[dict[str, str]] = [{"content": "Hello."}]
        self.pause_s = 0.0
        self.breaks_off = False
        self.error_behind: str | None = None
        self.refusal: tuple[int, str, int | None] | None = None
        self.key: str | None = None
        self.asked: list[dict[str, Any]] = []
        self.left = 0
        self.url = ""
        self.metrics = ""
        self.usage = {"prompt_tokens": 100, "completion_tokens": 4}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = (await receive()).get("body", b"")
        sent_key = dict(scope["headers"]).get(b"authorization", b"").decode()
        match scope["path"]:
            case "/":
                found = page()
                await _whole(send, 200, found.body, dict(found.headers))
            case _ if self.key and sent_key != f"Bearer {self.key}":
                await _error(send, 401, "no key", None)
            case "/live":
                await _whole(send, 200, json.dumps(self.live).encode())
            case "/v1/models":
                models = {"data": [{"id": self.live["model"]}]}
                await _whole(send, 200, json.dumps(models).encode())
            case "/v1/chat/completions":
                self.asked.append(json.loads(body))
                if self.refusal is not None:
                    await _error(send, *self.refusal)
                else:
                    await self._answer(receive, send)
            case "/v1/completions":
                self.asked.append(json.loads(body))
                await self._complete(send)
            case "/metrics":
                await _whole(send, 200, self.metrics.encode())
            case _:
                await _error(send, 404, "no such route", None)

    async def _answer(self, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(receive())
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for delta in self.deltas:
            await _event(send, {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            await asyncio.wait([gone], timeout=self.pause_s)
            if gone.done():
                self.left += 1
                return
        if self.breaks_off:
            gone.cancel()
            raise ConnectionError("broken off on purpose")
        if self.error_behind is not None:
            await _event(send, {"error": {"message": self.error_behind}})
        else:
            await _event(send, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            usage = {"prompt_tokens": 9, "completion_tokens": len(self.deltas)}
            await _event(send, {"choices": [], "usage": usage})
            await send(
                {"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True}
            )
        gone.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _complete(self, send: Send) -> None:
        if self.refusal is not None:
            await _error(send, *self.refusal)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for text in "abcd":
            await _event(send, {"choices": [{"index": 0, "text": text}]})
            await asyncio.sleep(self.pause_s)
        if self.breaks_off:
            raise ConnectionError("broken off on purpose")
        await _event(send, {"choices": [], "usage": self.usage})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _event(send: Send, data: dict[str, Any]) -> None:
    body = b"data: " + json.dumps(data).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _whole(
    send: Send, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    pairs = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
    pairs.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def _error(send: Send, status: int, message: str, wait: int | None) -> None:
    headers = {} if wait is None else {"retry-after": str(wait)}
    await _whole(send, status, json.dumps({"error": {"message": message}}).encode(), headers)


@contextmanager
def scripted_server(port: int = 0) -> Iterator[Part]:
    """Runs in a thread on 127.0.0.1; port 0 is a free one."""
    part = Part()
    config = uvicorn.Config(part, host="127.0.0.1", port=port, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.01)
    part.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield part
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)
