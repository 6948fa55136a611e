"""Options of the server that are not limits: what they change for a client, and in the log."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest
import typer
from typer.testing import CliRunner

from deepinfer.messages import Delta
from deepinfer.server.admission import Admission
from deepinfer.server.app import make_app
from deepinfer.server.command import serve
from deepinfer.server.link import EngineLink
from deepinfer.server.settings import ServerSettings
from deepinfer.server.state import ServerState, served_model
from tests.server.crowd import processes
from tests.server.engines import is_alive
from tests.server.fake_link import FakeLink, News
from tests.server.servers import serving

HI = [{"role": "user", "content": "my secret plan"}]
ONE = [Delta("r", 0, 70, finish_reason="stop")]
PLAIN = {"type": "disabled"}
TOOLS = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "my secret plan"},
    "/v1/responses": {"input": "my secret plan"},
    "/v1/messages": {"messages": HI},
}


def state_of(
    folder: Path, script: Iterable[News] = ONE, max_model_len: int = 4096, **settings: Any
) -> tuple[ServerState, FakeLink]:
    """A server whose engine is a script."""
    link = FakeLink(folder, script)
    link.info = msgspec.structs.replace(link.info, max_model_len=max_model_len)
    chosen = ServerSettings(served_names=("toy",), **settings)
    state = ServerState(cast(EngineLink, link), chosen, Admission(10, 10**6), 0)
    state.model = served_model(link.info, chosen)
    return state, link


def post(state: ServerState, path: str, body: dict[str, Any]) -> httpx.Response:
    """What the server answers."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(cast(Any, make_app(state)))
        async with httpx.AsyncClient(transport=transport, base_url="http://toy") as http:
            return await http.post(path, json=body)

    return asyncio.run(send())


def ask(folder: Path, path: str, body: dict[str, Any], **settings: Any) -> FakeLink:
    """The link that was asked; fails unless the request was answered."""
    state, link = state_of(folder, **settings)
    answer = post(state, path, body)
    assert answer.status_code == 200, answer.text
    return link


async def send_parts(
    state: ServerState, path: str, parts: Sequence[bytes], gap_s: float
) -> list[dict[str, Any]]:
    """What is sent to a client whose body comes in parts, with a pause before each, and never
    ends."""
    left = list(parts)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(gap_s if left else 60)
        return {"type": "http.request", "body": left.pop(0), "more_body": True}

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "method": "POST", "headers": []}
    await make_app(state)(scope, receive, send)
    return sent


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("gap_s", [0.0, 0.05])
def test_half_a_body(tiny_dir: Path, path: str, gap_s: float) -> None:
    """A client that sends half a body, or a byte now and then, holds its place for ever."""
    state, link = state_of(tiny_dir, body_timeout_s=0.3)
    start = time.monotonic()
    parts = [b'{"a'] * (1 if gap_s == 0 else 100)
    sent = asyncio.run(asyncio.wait_for(send_parts(state, path, parts, gap_s), 10))
    assert 0.25 < time.monotonic() - start < 3
    assert sent[0]["status"] == 408
    # What else the client sends of this body is no request.
    assert (b"connection", b"close") in sent[0]["headers"]
    assert b"0.3 s" in sent[1]["body"]
    assert state.admission.num_waiting == state.stats.in_flight == 0
    assert not link.submitted


@pytest.mark.parametrize(
    ("path", "more", "plain", "official"),
    [
        ("/v1/chat/completions", {}, (0.3, 0.5), (1.0, 0.95)),
        ("/v1/chat/completions", {"top_p": 0.97}, (0.3, 0.97), (1.0, 0.97)),
        ("/v1/chat/completions", {"tools": TOOLS}, (0.3, 0.5), (1.0, 0.95)),
        ("/v1/chat/completions", {"thinking": PLAIN}, (0.3, 0.5), (0.3, 1.0)),
        ("/v1/responses", {"reasoning": {"effort": "high"}}, (0.3, 0.5), (1.0, 0.95)),
        ("/v1/responses", {"reasoning": {"effort": "none"}}, (0.3, 0.5), (0.3, 1.0)),
        ("/v1/messages", {"thinking": {"type": "enabled"}}, (0.3, 0.5), (1.0, 0.95)),
        ("/v1/messages", {"thinking": PLAIN}, (0.3, 0.5), (0.3, 1.0)),
    ],
)
def test_official_sampling(
    tiny_dir: Path,
    path: str,
    more: dict[str, Any],
    plain: tuple[float, float],
    official: tuple[float, float],
) -> None:
    """What was sent counts where the release would not have it, or does not where nobody asked for
    the release's ways. While the model thinks they are 1 and at least 0.95; else top_p is 1."""
    body = {**ASKED[path], "temperature": 0.3, "top_p": 0.5, **more}
    for expected, is_official in ((plain, False), (official, True)):
        (submitted,) = ask(tiny_dir, path, body, official_sampling=is_official).submitted
        found = (submitted.params.temperature, submitted.params.top_p)
        assert found == pytest.approx(expected), is_official


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("logs", [False, True])
def test_prompts_in_the_log(
    tiny_dir: Path, path: str, logs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A prompt is in the log though nobody wanted it there, or is not where it was wanted."""
    with caplog.at_level(logging.DEBUG):
        ask(tiny_dir, path, ASKED[path], log_prompts=logs)
    lines = [line for line in caplog.text.splitlines() if "deepinfer" in line]
    assert any(f"POST {path} 200" in line for line in lines)
    assert any("my secret plan" in line for line in lines) == logs


def test_a_prompt_forges_no_line_of_the_log(
    tiny_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line end in a prompt starts a line of the log that the server never wrote."""
    with caplog.at_level(logging.INFO):
        ask(tiny_dir, "/v1/completions", {"prompt": "a\nreq_1 POST\r/x 200"}, log_prompts=True)
    (line,) = [line for line in caplog.messages if "req_1 POST" in line]
    assert "\n" not in line
    assert "\r" not in line


def test_options_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option of the command line has no effect, or is on by itself."""
    found: list[ServerSettings] = []

    def take(command: Any, settings: ServerSettings, report: Any) -> None:
        found.append(settings)

    monkeypatch.setattr("deepinfer.server.serve.serve", take)
    monkeypatch.setattr("deepinfer.server.command.setup_logging", lambda level: None)
    app = typer.Typer()
    app.command()(serve)
    options = ["--log-prompts", "--official-sampling", "--drain-s", "2.5"]
    for given in ([], options):
        result = CliRunner().invoke(app, given)
        assert result.exit_code == 0, result.output
    shown = [(one.log_prompts, one.official_sampling, one.drain_s) for one in found]
    assert shown == [(False, False, 30.0), (True, True, 2.5)]


@pytest.mark.slow
@pytest.mark.sample
def test_second_sigterm_ends_at_once(tiny_dir: Path) -> None:
    """A second signal waits like the first, or leaves the engine behind; or the first does not
    wait. And half a body is answered while nothing else comes over the connection."""
    options = ("--dtype", "float32", "--max-model-len", "4000", "--log-prompts")
    with serving(tiny_dir, *options) as server:
        engine = processes(server)["engine"]
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
            connection.sendall(head.encode())
            body = {"prompt": "a plan", "max_tokens": 3900, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as stream:
                lines = stream.iter_lines()
                next(lines)
                server.process.send_signal(signal.SIGTERM)
                time.sleep(1)
                assert server.process.poll() is None  # it waits for the answer
                start = time.monotonic()
                server.process.send_signal(signal.SIGTERM)
                with suppress(httpx.HTTPError):
                    list(lines)
                server.process.wait(10)
        assert time.monotonic() - start < 5
        end = time.monotonic() + 5
        while is_alive(engine):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert "a plan" in server.log()
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)
