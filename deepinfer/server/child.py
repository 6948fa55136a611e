"""One engine process, as the HTTP process sees it: started, written to, heard, ended.

Knows a process and its socket. Does not know requests, nor what to do when it dies.

The two ends of the socket have no name in the file system: nobody else can connect, and nothing is
left behind. Each process finds that the other is gone when its end of the socket closes, which the
system sees to however a process ends.
"""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import cast

from deepinfer.server.wire import (
    Abort,
    Failed,
    Finish,
    Frames,
    FromEngine,
    Start,
    Submit,
    decode_from_engine,
    encode,
)

# Ctrl-C in a terminal goes to both processes; the HTTP process decides what it means. It is ignored
# from the first line on, since loading takes long. The paths are our own, so that both processes
# run the same package, wherever this one found it.
_PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = sys.argv[3:]
from deepinfer.server.engine_process import main
main(int(sys.argv[2]))
"""
_STDERR = 2
# What a process may take to end by itself, once it was told to or closed its socket.
END_S = 5.0


class EngineChild(asyncio.Protocol):
    """The process. on_message: gets all that it says. on_end: called once, as soon as it is known
    to be of no more use: it closed its socket, or said that it failed.

    Attributes: `failure`, what it said of why it ended; `heard`, set with each message, for whoever
    watches it; `gone`, done when `on_end` was called.
    """

    def __init__(
        self, on_message: Callable[[FromEngine], None], on_end: Callable[[], None]
    ) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._frames = Frames()
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self.failure: Failed | None = None
        self.heard = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, start: Start) -> None:
        """Start the process; it loads for seconds or minutes, then says Ready.

        Raises OSError if the system has no process to give.
        """
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _PROGRAM, f"deepinfer-engine:{start.model or ''}"),
                    *(str(theirs.fileno()), *sys.path),
                ],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                pass_fds=[theirs.fileno()],
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=ours)
        self.send(encode(start))

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return None if self._process is None else self._process.pid

    def send(self, frame: bytes) -> None:
        """Write what `encode` made. A process that is gone does not hear it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def tell(self, message: Submit | Abort | Finish) -> None:
        """Write a message."""
        self.send(encode(message))

    def kill(self) -> None:
        """End it at once, and take it for gone."""
        if self._process is not None:
            self._process.kill()
        if self._transport is not None:
            self._transport.abort()

    async def end(self, *, asks: bool = False) -> str:
        """Wait until the process is gone, at most a few seconds, then kill it; how it ended.

        asks: tell it to end, first.
        """
        if self._process is None:
            return "was not started"
        if asks:
            self._process.terminate()
        elif self._transport is not None:
            self._transport.abort()
        code = await asyncio.to_thread(_reap, self._process)
        if self._transport is not None:
            self._transport.abort()
        return _how(code)

    # ---- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours to use."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Hand on each message that is whole."""
        self.heard = True
        for frame in self._frames.feed(data):
            message = decode_from_engine(frame)
            if isinstance(message, Failed):
                self.failure = message
                self._is_gone()
            elif not self.gone.done():
                self._on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """The process ended, or we closed the socket."""
        self._is_gone()

    def _is_gone(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
            self._on_end()


def _reap(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    names = {one.value: one.name for one in signal.Signals}
    return f"was ended by signal {-code} ({names.get(-code, 'unknown')})"
