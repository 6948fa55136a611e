"""The engine's round: hear, step, tell. And the two ends of its socket.

Knows messages and an engine. Does not know how it was loaded, nor who listens.

A thread reads, so that the step loop never waits for the socket, and so that the end of the HTTP
process is seen during a step. What is written goes out at once as far as the socket takes it; a
thread writes the rest. A reader that is slow has the loop wait once much is held, so that it never
grows without bound.
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from deepinfer.errors import RequestError
from deepinfer.server.wire import (
    Abort,
    Deltas,
    Finish,
    Frames,
    Refused,
    Stats,
    Submit,
    ToEngine,
    decode_to_engine,
    encode,
)

if TYPE_CHECKING:
    # Whoever imports this for the socket shall not wait for torch.
    from deepinfer.engine.engine import Engine

STATS_S = 0.5
# Frames that the HTTP process has not read yet. Beyond this no step is made.
MOST_HELD_BYTES = 32 * 2**20
_PIECE_BYTES = 1 << 18
_POLL_S = 0.1
_ORPHAN_S = 1.0


class Inbox:
    """What the HTTP process says, read by a thread.

    leave: ends this process wherever it is, with a code. Called when the HTTP process is gone and
    the loop has had some time to end in order.
    """

    def __init__(self, sock: socket.socket, leave: Callable[[int], None] = os._exit) -> None:
        self._sock, self._leave = sock, leave
        self._queue: SimpleQueue[ToEngine | None] = SimpleQueue()
        self.is_over = False
        threading.Thread(target=self._read, name="engine-reader", daemon=True).start()

    def end(self) -> None:
        """There is nothing more to do. A signal handler may call it."""
        self.is_over = True
        self._queue.put(None)  # whoever waits for a message shall see it

    def take(self, *, may_wait: bool) -> list[ToEngine]:
        """All that came; may_wait: at least one message, or the end."""
        found: list[ToEngine | None] = []
        if may_wait and not self.is_over:
            found.append(self._queue.get())
        with suppress(Empty):
            while True:
                found.append(self._queue.get_nowait())
        return [message for message in found if message is not None]

    def _read(self) -> None:
        frames = Frames()
        try:
            with suppress(OSError):
                while data := self._sock.recv(_PIECE_BYTES):
                    for frame in frames.feed(data):
                        self._queue.put(decode_to_engine(frame))
        finally:
            self.end()
            time.sleep(_ORPHAN_S)
            self._leave(1)


class Outbox:
    """What the HTTP process is told, in order."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._is_broken = False
        self._changed = threading.Condition()
        threading.Thread(target=self._write, name="engine-writer", daemon=True).start()

    def send(self, frame: bytes) -> None:
        """Write it, now or later. Never waits; nobody hears it if the other process is gone."""
        with self._changed:
            if self._is_broken:
                return
            if not self._held:
                frame = frame[self._write_now(frame) :]
            if frame:
                self._held.append(frame)
                self._held_bytes += len(frame)
                self._changed.notify_all()

    def wait(self, most_bytes: int, is_over: Callable[[], bool]) -> None:
        """Wait until at most so much is held, or `is_over`."""
        if self._held_bytes <= most_bytes:
            return
        with self._changed:
            while self._held_bytes > most_bytes and not is_over():
                self._changed.wait(_POLL_S)

    def wait_empty(self, most_s: float) -> None:
        """Wait until all is written, but only so long."""
        end_s = time.monotonic() + most_s
        self.wait(0, lambda: time.monotonic() >= end_s)

    def _write_now(self, frame: bytes) -> int:
        try:
            return self._sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self._is_broken = True
            return len(frame)

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._held:
                    self._changed.wait()
                frame = self._held[0]  # stays there: nobody may overtake it
            try:
                self._sock.sendall(frame)
            except OSError:
                self._is_broken = True
            with self._changed:
                self._held.popleft()
                self._held_bytes -= len(frame)
                if self._is_broken:
                    self._held.clear()
                    self._held_bytes = 0
                self._changed.notify_all()


def run(engine: "Engine", inbox: Inbox, outbox: Outbox) -> None:
    """Serve until the inbox is over. Raises what a step raises."""
    outbox.send(encode(Stats(engine.stats())))
    told_s, was_busy = time.monotonic(), False
    while not inbox.is_over:
        for message in inbox.take(may_wait=not engine.has_work):
            _obey(engine, message, outbox)
        is_busy = engine.has_work
        if is_busy:
            deltas = engine.step()
            if deltas:
                outbox.send(encode(Deltas(deltas)))
            is_busy = engine.has_work
        now_s = time.monotonic()
        if now_s - told_s >= STATS_S or (was_busy and not is_busy):
            outbox.send(encode(Stats(engine.stats())))
            told_s = now_s
        was_busy = is_busy
        outbox.wait(MOST_HELD_BYTES, lambda: inbox.is_over)


def _obey(engine: "Engine", message: ToEngine, outbox: Outbox) -> None:
    if isinstance(message, Submit):
        try:
            engine.submit(
                message.request_id,
                message.prompt_ids,
                message.params,
                message.seed,
                message.grammar,
            )
        except RequestError as error:
            outbox.send(encode(Refused(message.request_id, error)))
    elif isinstance(message, Abort):
        engine.abort(message.request_id)
    elif isinstance(message, Finish):
        engine.finish(message.request_id, message.choice, "stop")
