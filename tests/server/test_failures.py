"""What a client sees when something fails in the middle, on every route that generates."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from deepinfer.errors import RequestError
from deepinfer.messages import Delta
from deepinfer.server.admission import Admission
from deepinfer.server.app import make_app
from deepinfer.server.channel import EngineLost
from deepinfer.server.link import EngineLink
from deepinfer.server.settings import ServerSettings
from deepinfer.server.state import ServerState, served_model
from tests.architecture.tree import ROOT
from tests.server.fake_link import FakeLink, News

ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}]},
}
TOKENS = [Delta("r", 0, token_id) for token_id in (70, 71, 72)]
LOST = EngineLost("gone", where="engine", hint="send it again")
FAILURES: dict[str, tuple[News, int]] = {
    "lost": (LOST, 503),
    "numbers": (Delta("r", 0, finish_reason="error"), 500),
    "room": (Delta("r", 0, finish_reason="insufficient_system_resource"), 503),
    "ended": (Delta("r", 0, finish_reason="abort"), 503),
}


def ask(
    folder: Path, path: str, script: list[News], **fields: Any
) -> tuple[httpx.Response, ServerState, FakeLink]:
    """The answer of a server whose engine says the script."""
    link = FakeLink(folder, script)
    settings = ServerSettings(served_names=("toy",))
    state = ServerState(cast(EngineLink, link), settings, Admission(10, 1000), 0)
    state.model = served_model(link.info, settings)

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(cast(Any, make_app(state)))
        async with httpx.AsyncClient(transport=transport, base_url="http://toy") as http:
            return await http.post(path, json=ASKED[path] | fields)

    return asyncio.run(send()), state, link


def whole_events(text: str) -> list[Any]:
    """The data of a stream."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    return [one if one == "[DONE]" else json.loads(one) for one in lines]


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("failure", FAILURES)
def test_failure_in_the_middle(tiny_dir: Path, path: str, failure: str) -> None:
    """I06: a stream that failed ends like a complete one, or a whole answer is a 200."""
    news, status = FAILURES[failure]
    answer, state, _ = ask(tiny_dir, path, [*TOKENS, news])
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert ("retry-after" in answer.headers) == (status == 503)
    assert state.admission.num_waiting == state.stats.in_flight == 0
    streamed, state, _ = ask(tiny_dir, path, [*TOKENS, news], stream=True)
    events = whole_events(streamed.text)
    if events[-1] == "[DONE]":
        assert events[-2]["error"]["message"]
    elif path == "/v1/messages":
        assert events[-1]["type"] == events[-1]["type"] == "error"
    else:
        assert [one["type"] for one in events[-2:]] == ["error", "response.failed"]
        assert events[-1]["response"]["status"] == "failed"
        assert [one["sequence_number"] for one in events] == list(range(len(events)))
    ends = ('"finish_reason":"stop"', '"finish_reason":"length"', "message_stop", ".completed")
    assert not any(end in streamed.text for end in ends)
    assert list(state.stats.requests) == [(path, status)]


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("stream", [False, True])
def test_refused_by_the_engine(tiny_dir: Path, path: str, stream: bool) -> None:
    """What only the engine can refuse looks like success at first, because the stream had begun."""
    refusal = RequestError("the grammar takes too long", field="so_args", hint="simplify it")
    answer, state, _ = ask(tiny_dir, path, [refusal], stream=stream)
    assert answer.status_code == 400
    assert "the grammar takes too long" in answer.text
    assert state.admission.num_waiting == 0


def test_fault_of_our_own(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the server shows its inside to a client, or ends more than one request."""

    def fail(*_: Any) -> Any:
        raise KeyError("inside of the server")

    monkeypatch.setattr("deepinfer.server.conversations.AnswerWriter", fail)
    answer, state, _ = ask(tiny_dir, "/v1/chat/completions", [*TOKENS])
    assert answer.status_code == 500
    assert "inside" not in answer.text
    assert answer.json()["error"]["code"] == "internal_error"
    assert state.admission.num_waiting == state.stats.in_flight == 0


def test_no_room_for_tokens(tiny_dir: Path) -> None:
    """A bound on waiting tokens turns away what could never fit, or lets all in."""
    admission = Admission(2, 10)
    with admission.enter() as first, admission.enter() as second:
        first.add_tokens(50)
        with pytest.raises(Exception, match="50 tokens"):
            second.add_tokens(1)
        with pytest.raises(Exception, match="2 requests"):
            admission.enter()
        first.leave()
        second.add_tokens(9)
    assert (admission.num_waiting, admission.num_tokens) == (0, 0)


def test_http_process_has_no_torch() -> None:
    """The HTTP process takes seconds to start and half a gigabyte, because it imports torch."""
    program = "import sys, deepinfer.server.command; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
