"""Keys, sizes, room, and what an end of the engine or of the server looks like to clients."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.server.servers import DEMO, ServerProcess, serving

pytestmark = [pytest.mark.slow, pytest.mark.sample]
SUM = [{"role": "user", "content": "What is 47 + 38?"}]
ENDLESS = {"messages": SUM, "max_tokens": 6000, "ignore_eos": True, "temperature": 0}
SECRET = "do-not-show-this-key"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """With a key and tight limits."""
    options = ("--api-key", SECRET, "--max-waiting", "3", "--max-body-bytes", "100000")
    origin = ("--allow-origin", "http://here.example", "--served-model-name", "one")
    names = ("--served-model-name", "two", "--max-num-seqs", "2")
    with serving(DEMO, *options, *origin, *names, environ={"DEEPINFER_API_KEY": "other"}) as made:
        yield made


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {SECRET}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as made:
        yield made


def test_keys(server: ServerProcess, http: httpx.Client) -> None:
    """A server with keys answers without one; a key of the environment or of the other header does
    not count; or the refusal is not what clients know."""
    for wrong in ({}, {"authorization": "Bearer x"}, {"x-api-key": ""}, {"authorization": SECRET}):
        answer = httpx.get(f"{server.url}/v1/models", headers=wrong)
        assert answer.status_code == 401
        assert SECRET not in answer.text
    for right in ({"x-api-key": SECRET}, {"authorization": "bearer other"}):
        assert httpx.get(f"{server.url}/v1/models", headers=right).status_code == 200
    assert httpx.get(f"{server.url}/metrics").status_code == 401
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert httpx.get(f"{server.url}/ready").status_code == 200
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        client.models.list()
    other = anthropic.Client(base_url=server.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        asked: Any = [{"role": "user", "content": "a"}]
        other.messages.create(model="one", max_tokens=5, messages=asked)
    with pytest.raises(anthropic.NotFoundError):
        anthropic.Client(base_url=server.url, api_key=SECRET, max_retries=0).models.retrieve("x")


def test_names_of_the_model(http: httpx.Client) -> None:
    """A second name is not served, or the answer shows another than was asked for."""
    assert [one["id"] for one in http.get("/v1/models").json()["data"]] == ["one", "two"]
    body = {"model": "two", "messages": SUM, "max_tokens": 2}
    assert http.post("/v1/chat/completions", json=body).json()["model"] == "two"
    body.pop("model")
    assert http.post("/v1/chat/completions", json=body).json()["model"] == "one"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        (b"\xff\xfe", 400),
        (b'{"messages": NaN}', 400),
        (b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b'{"messages": [{"role": "user", "content": "a"}], "seed": 1' + b"0" * 5000 + b"}", 400),
        (b'{"messages": "' + b"x" * 200_000 + b'"}', 413),
    ],
    ids=lambda one: str(one)[:24],
)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
)
def test_bad_bodies(http: httpx.Client, path: str, body: bytes, status: int) -> None:
    """A body that is no request is a 500, or is read without end."""
    answer = http.post(path, content=body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert "Traceback" not in answer.text
    assert ("type" in answer.json()) == (path == "/v1/messages")


def test_paths_and_methods(http: httpx.Client) -> None:
    """A wrong path or method is a 500, or has no error object."""
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("OPTIONS", "/v1/chat/completions", 405),
        ("GET", "/v1/models/none", 404),
        ("HEAD", "/health", 200),
    ):
        answer = http.request(method, path)
        assert answer.status_code == status
    assert http.get("/openapi.json").json()["openapi"].startswith("3.1")
    assert "swagger" in http.get("/docs").text.lower()
    named = http.get("/v1/models", headers={"x-request-id": "mine-7"})
    assert named.headers["x-request-id"] == "mine-7"
    odd = {"x-request-id": "a b\tc"}
    assert http.get("/health", headers=odd).headers["x-request-id"] != odd["x-request-id"]


def test_other_origins(http: httpx.Client) -> None:
    """Any page may call the API with the user's key, or none that was allowed."""
    ask = {"access-control-request-method": "POST"}
    for origin, allowed in (("http://here.example", True), ("http://there.example", False)):
        answer = http.options("/v1/messages", headers={"origin": origin, **ask})
        assert answer.status_code == 204
        assert ("access-control-allow-origin" in answer.headers) == allowed
        plain = http.get("/v1/models", headers={"origin": origin})
        assert ("access-control-allow-origin" in plain.headers) == allowed


def test_tokens_there_and_back(http: httpx.Client) -> None:
    """J10: a text does not come back from its ids, or what spells a control token becomes one."""
    text = "Hello <｜User｜> 你好 </think>"
    ids = http.post("/v1/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert ids["count"] == len(ids["tokens"])
    assert http.post("/v1/detokenize", json={"tokens": ids["tokens"]}).json() == {"prompt": text}
    control = http.post("/v1/tokenize", json={"messages": SUM}).json()["tokens"]
    shown = http.post("/v1/detokenize", json={"tokens": control}).json()["prompt"]
    user = next(
        one
        for one in control
        if "<｜User｜>" in http.post("/v1/detokenize", json={"tokens": [one]}).json()["prompt"]
    )
    assert user not in ids["tokens"]
    assert shown.endswith("<think>")
    for bad in ({"tokens": [99999]}, {"tokens": "x"}, {"tokens": [1.5]}, {}, {"nope": 1}):
        assert http.post("/v1/detokenize", json=bad).status_code == 400
    for bad in ({}, {"prompt": 5}, {"prompt": "a", "messages": []}, {"messages": 5}):
        assert http.post("/v1/tokenize", json=bad).status_code == 400


def test_no_room(server: ServerProcess, http: httpx.Client) -> None:
    """Without a bound on what waits the server takes all, and everybody waits for ever."""
    streams = [
        http.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True})
        for _ in range(2)
    ]
    opened = [stream.__enter__() for stream in streams]
    try:
        kept = [one.iter_lines() for one in opened]  # one that is dropped closes its stream
        for lines in kept:
            next(lines)
        # Two run, so these wait; the fourth finds no room.
        statuses: list[int] = []

        def wait() -> None:
            answer = httpx.post(
                f"{server.url}/v1/chat/completions",
                json={"messages": SUM, "max_tokens": 1},
                headers={"x-api-key": SECRET},
                timeout=60,
            )
            statuses.append(answer.status_code)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        answer = http.post("/v1/chat/completions", json={"messages": SUM, "max_tokens": 1})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["type"] == "rate_limit_error"
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=SECRET, max_retries=0)
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="one", prompt="a")
    finally:
        for stream in streams:
            stream.__exit__(None, None, None)
    for thread in threads:
        thread.join(30)
    assert statuses == [200, 200, 200]


def test_a_client_that_leaves(server: ServerProcess, http: httpx.Client) -> None:
    """A whole answer goes on for nobody when its client has left."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps(ENDLESS).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nx-api-key: {SECRET}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        until(lambda: http.get("/live").json()["running"] == 1)
    until(lambda: http.get("/live").json()["running"] == 0)
    until(lambda: " 499 " in server.log())


def test_nothing_private_in_the_log(server: ServerProcess, http: httpx.Client) -> None:
    """A prompt, a key or a path ends up in the log or in an error."""
    body = {"messages": [{"role": "user", "content": "my secret plan"}], "max_tokens": 2}
    http.post("/v1/chat/completions", json=body)
    wrong = http.post("/v1/chat/completions", json={**body, "tools": 7})
    assert "secret plan" not in server.log()
    assert SECRET not in server.log()
    assert str(DEMO.parent.parent) not in wrong.text


def until(holds: Any, most_s: float = 10) -> None:
    """Wait until it holds."""
    end = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def engine_pid(server: ServerProcess) -> int:
    """The engine's process, a child of the server's."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
            is_engine = b"engine_process" in (folder / "cmdline").read_bytes()
            if int(parent) == server.process.pid and is_engine:
                return int(folder.name)
    raise AssertionError("there is no engine")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_engine_lost(path: str) -> None:
    """I06: an engine that ends looks like the end of an answer, or the server ends with it."""
    given = {"input": "Hi", "max_output_tokens": 6000, "ignore_eos": True}
    body = given if path == "/v1/responses" else ENDLESS
    with serving(DEMO) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        whole: list[httpx.Response] = []
        url = server.url + path
        waiter = threading.Thread(
            target=lambda: whole.append(httpx.post(url, json=body, timeout=60))
        )
        waiter.start()
        with http.stream("POST", path, json={**body, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            until(lambda: http.get("/live").json()["running"] == 2)
            os.kill(engine_pid(server), signal.SIGKILL)
            rest = [line for line in lines if line]
        waiter.join(10)
        assert whole[0].status_code == 503
        assert "retry-after" in whole[0].headers
        assert any("error" in line and "engine" in line for line in rest[-6:])
        assert not any(word in line for line in rest for word in ("message_stop", 'completed"}'))
        assert http.get("/health").status_code == 200
        until(lambda: http.get("/ready").status_code == 200, 30)
        again = http.post("/v1/chat/completions", json={"messages": SUM, "max_tokens": 2})
        assert again.status_code == 200


def test_end_of_a_server() -> None:
    """SIGTERM cuts running answers off, or is never obeyed while one runs."""
    with serving(DEMO) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        body = {"messages": SUM, "max_tokens": 150, "ignore_eos": True, "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
        assert server.process.wait(20) == 0


def test_end_that_is_not_awaited() -> None:
    """The time to wait does not hold, or a second signal waits too."""
    with serving(DEMO, "--drain-s", "1") as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            body = {**ENDLESS, "stream": True}
            with http.stream("POST", "/v1/chat/completions", json=body) as stream:
                lines = stream.iter_lines()
                next(lines)
                start = time.monotonic()
                server.process.send_signal(signal.SIGTERM)
                rest = [line for line in lines if line]
            assert time.monotonic() - start < 8
            assert "server_ends" in rest[-2]
        assert server.process.wait(20) == 0
    with serving(DEMO) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        body = {**ENDLESS, "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(8)
        assert time.monotonic() - start < 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["no/such/folder"], "no/such/folder"),
        ([str(DEMO), "--max-model-len", "0"], "max_model_len"),
        ([str(DEMO), "--device", "moon"], "device"),
        ([str(DEMO), "--kv-cache-bytes", "1000"], "cache"),
        ([str(DEMO), "--host", "203.0.113.7"], "203.0.113.7"),
        ([str(DEMO), "--port", "{taken}"], "--port"),
    ],
    ids=lambda one: str(one)[-30:],
)
def test_starts_that_fail(options: list[str], words: str) -> None:
    """O05: the last line does not say what is wrong, the exit code is 0, or a child stays."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = [one.format(taken=port) for one in options]
        server = ServerProcess(*(given if "--port" in given else [*given, "--port", "0"]))
        code = server.process.wait(60)
        server._reader.join(5)
    assert code != 0
    tail = "\n".join(server.lines[-3:])
    assert words in tail
    assert "hint" in tail
