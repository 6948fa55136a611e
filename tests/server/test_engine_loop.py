"""The engine's round without a model: a reader that is slow, gone, or asks for nonsense."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from deepinfer import SamplingParams
from deepinfer.errors import RequestError
from deepinfer.messages import Delta, EngineStats
from deepinfer.server import engine_loop
from deepinfer.server.engine_loop import Inbox, Outbox
from deepinfer.server.wire import (
    Abort,
    Deltas,
    Finish,
    Frames,
    FromEngine,
    Refused,
    Stats,
    Submit,
    decode_from_engine,
    encode,
)


class Talker:
    """An engine that says one token a step, a step that takes no time, until it is aborted."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.open: set[str] = set()
        self.finished: list[tuple[str, int]] = []

    @property
    def has_work(self) -> bool:
        return bool(self.open)

    def submit(self, request_id: str, prompt_ids: list[int], *rest: Any) -> None:
        if not prompt_ids:
            raise RequestError("empty", field="prompt", hint="some text")
        self.open.add(request_id)

    def finish(self, request_id: str, choice: int, reason: str) -> None:
        assert reason == "stop"
        self.finished.append((request_id, choice))
        self.open.discard(request_id)

    def abort(self, request_id: str) -> None:
        self.open.discard(request_id)

    def step(self) -> list[Delta]:
        self.num_steps += 1
        return [Delta(one, 0, self.num_steps) for one in sorted(self.open)]

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self.open), steps_total=self.num_steps)


class Served:
    """A talker that is served in a thread.

    Attributes: `ours`, the other end of its socket; `exits`, the codes with which its process would
    have ended.
    """

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(10)
        self.engine, self.frames = Talker(), Frames()
        self.exits: list[int] = []
        self.inbox, self.outbox = Inbox(theirs, self.exits.append), Outbox(theirs)
        self.thread = threading.Thread(
            target=engine_loop.run, args=(self.engine, self.inbox, self.outbox), daemon=True
        )
        self.thread.start()

    def say(self, *messages: Any) -> None:
        self.ours.sendall(b"".join(map(encode, messages)))

    def hear(self, num_bytes: int = 1 << 16) -> list[FromEngine]:
        return list(map(decode_from_engine, self.frames.feed(self.ours.recv(num_bytes))))


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.ours.close()
    made.thread.join(5)
    assert not made.thread.is_alive()


def submit(request_id: str, *prompt: int) -> Submit:
    return Submit(request_id, list(prompt), SamplingParams())


def wait_until_still(engine: Talker) -> None:
    """Until it makes no more steps."""
    before, end_s = -1, time.monotonic() + 20
    while engine.num_steps != before:
        assert time.monotonic() < end_s
        before = engine.num_steps
        time.sleep(0.3)


def test_messages(served: Served) -> None:
    """A refusal ends others; a message about nobody ends the engine."""
    served.say(Abort("nobody"), submit("a", 1), submit("b"), submit("c", 1))
    heard: list[FromEngine] = []
    while not any(isinstance(one, Deltas) for one in heard):
        heard += served.hear()
    refused = [one for one in heard if isinstance(one, Refused)]
    assert [(one.request_id, one.error.field) for one in refused] == [("b", "prompt")]
    served.say(Finish("a", 0), Abort("c"))
    while not (isinstance(heard[-1], Stats) and heard[-1].stats.running == 0):
        heard += served.hear()
    assert served.engine.finished == [("a", 0)]
    tokens = [delta.token_id for one in heard if isinstance(one, Deltas) for delta in one.deltas]
    assert tokens == [step for step in range(1, served.engine.num_steps + 1) for _ in "ac"]


def test_a_reader_that_does_not_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine keeps what nobody reads until its memory is full; or it stands for ever, even
    when the reader goes on; or loses some of it."""
    monkeypatch.setattr(engine_loop, "MOST_HELD_BYTES", 100_000)
    served.say(submit("a", 1))
    wait_until_still(served.engine)
    assert served.engine.has_work
    assert 100_000 <= served.outbox._held_bytes < 102_000
    tokens: list[int | None] = []
    while len(tokens) < 20_000:
        for one in served.hear(3000):
            tokens += [d.token_id for d in one.deltas] if isinstance(one, Deltas) else []
    assert tokens == list(range(1, len(tokens) + 1))
    assert served.outbox._held_bytes < 110_000


def test_a_reader_that_is_gone_while_the_engine_waits(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that waits for its reader waits on when there is none."""
    monkeypatch.setattr(engine_loop, "MOST_HELD_BYTES", 1000)
    served.say(submit("a", 1))
    wait_until_still(served.engine)
    served.ours.close()
    served.thread.join(2)
    assert not served.thread.is_alive()
    assert served.exits == []  # there was time to end in order
    time.sleep(1.2)
    assert served.exits == [1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_damage_ends_the_process(served: Served) -> None:
    """After bytes that are no message, the engine hears nothing more and works for nobody."""
    served.say(submit("a", 1))
    served.ours.sendall((4).to_bytes(4, "big") + b"oops")
    served.thread.join(5)
    assert not served.thread.is_alive()
    time.sleep(1.2)
    assert served.exits == [1]
