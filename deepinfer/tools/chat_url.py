"""`deepinfer chat URL`: a conversation at the terminal with a server, streamed, thoughts shown dim.

A client like any other: knows Chat Completions and its errors, and needs no model and no torch.
"""

import http.client
import json
import sys
from collections.abc import Generator, Iterator, Mapping
from typing import Any, TextIO
from urllib.parse import urlsplit

from rich.console import Console

from deepinfer.errors import ConfigError, RequestError
from deepinfer.front.chat import Thinking
from deepinfer.tools.terminal import show, typed_lines

_HELP = "Type a message and press Enter. Ctrl-C stops an answer, /new starts over, /quit ends."
_TIMEOUT_S = 600
_QUIT = ("/quit", "/exit")


class Server:
    """A server's address, and how to ask it. Raises ConfigError for what is no address."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            hint = "give http://127.0.0.1:8000"
            raise ConfigError(f"{url!r} is no http:// or https:// address", where="URL", hint=hint)
        secure = parts.scheme == "https"
        self._kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._place = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    def model(self) -> str:
        """The name of what it serves. Raises RequestError."""
        with self._asked("GET", "/v1/models") as reply:
            return str(json.load(reply)["data"][0]["id"])

    def chunks(self, body: Mapping[str, Any]) -> Generator[dict[str, Any]]:
        """The chunks of an answer. Raises RequestError for a refusal, and for an end that is none.

        Closing the iterator closes the connection, and with that the server gives the answer up.
        """
        with self._asked("POST", "/v1/chat/completions", json.dumps(body).encode()) as reply:
            for line in _lines(reply):
                data = line[5:].strip() if line.startswith(b"data:") else b""
                if data == b"[DONE]":
                    return
                if data:
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise _fault(str(chunk["error"].get("message")))
                    yield chunk
        raise _fault("the connection broke off; the answer is not complete")

    def _asked(self, method: str, route: str, body: bytes | None = None) -> "_Asked":
        return _Asked(
            self._kind(self._place, timeout=_TIMEOUT_S),
            method,
            self._path + route,
            body,
            self._headers,
        )


class _Asked:
    """A request in a `with` block: its answer, and the connection closed at the end."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> None:
        self._connection = connection
        self._request = (method, path, body, headers)

    def __enter__(self) -> http.client.HTTPResponse:
        method, path, body, headers = self._request
        try:
            self._connection.request(method, path, body, dict(headers))
            reply = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise _fault(f"no answer: {error}", "is the server running?") from None
        if reply.status != 200:
            refusal = _refusal(reply)
            self._connection.close()
            raise refusal
        return reply

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def main(
    server: Server,
    options: Mapping[str, Any],
    *,
    system: str | None,
    stdin: TextIO,
) -> int:
    """Answer each line of `stdin` until its end; the exit status is 1 if any was refused.

    options: further fields of the request. Raises RequestError if there is no server.
    """
    console = Console(highlight=False, soft_wrap=True)
    is_terminal = stdin.isatty()
    asked = {"model": server.model(), **options}
    if is_terminal:
        show(console, f"{asked['model']}. {_HELP}\n", "dim")
    start = [{"role": "system", "content": system}] if system else []
    messages, failed = list(start), 0
    for line in typed_lines(stdin, console, shows_prompt=is_terminal):
        if line in _QUIT:
            break
        if line == "/new":
            messages = list(start)
            continue
        messages.append({"role": "user", "content": line})
        chunks = server.chunks({**asked, "messages": messages, "stream": True})
        try:
            messages.append({"role": "assistant", "content": shown(chunks, console)})
        except RequestError as error:
            print(f"error: {error}", file=sys.stderr)
            messages.pop()
            failed += 1
        except KeyboardInterrupt:
            # The answer is given up, the conversation goes on.
            chunks.close()
            console.print(" [stopped]", style="dim", markup=False)
            messages.pop()
    return 1 if failed else 0


def thinking_fields(thinking: Thinking) -> dict[str, Any]:
    """The fields of a request that say what the option of LLM.chat says."""
    if isinstance(thinking, str):
        return {"reasoning_effort": thinking}
    return {"thinking": {"type": "enabled" if thinking else "disabled"}}


def shown(chunks: Iterator[dict[str, Any]], console: Console) -> str:
    """Show an answer as it comes; its text, without the thoughts."""
    said: list[str] = []
    thinks, reason = False, None
    for chunk in chunks:
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta", {})
            if thought := delta.get("reasoning_content"):
                thinks = True
                show(console, thought, "dim")
            if text := delta.get("content"):
                show(console, "\n\n" if thinks else "")
                thinks = False
                said.append(text)
                show(console, text)
            reason = choice.get("finish_reason") or reason
    show(console, " [cut at the limit]\n" if reason == "length" else "\n", "dim")
    return "".join(said)


def _lines(reply: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        yield from reply
    except (OSError, http.client.HTTPException) as error:
        raise _fault(f"the connection broke off: {error}") from None


def _refusal(reply: http.client.HTTPResponse) -> RequestError:
    try:
        said = json.load(reply)["error"]["message"]
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        said = f"status {reply.status}"
    wait = reply.headers.get("retry-after")
    hints = {401: "give --api-key", 429: "try again", 503: "try again"}
    hint = hints.get(reply.status, "correct it") + (f" in {wait} s" if wait else "")
    return _fault(str(said), hint)


def _fault(what: str, hint: str = "try again") -> RequestError:
    return RequestError(what, field="server", hint=hint)
