"""`serve`: a server from its start to its end: the engine process, the HTTP server, signals.

Knows the order of starting and ending. Does not know routes.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn

from deepinfer.errors import ConfigError, DeepInferError
from deepinfer.server.admission import Admission
from deepinfer.server.app import make_app
from deepinfer.server.link import EngineCommand, EngineLink
from deepinfer.server.settings import ServerSettings
from deepinfer.server.state import ServerState, served_model

_LOG = logging.getLogger("deepinfer.server")
_BACKLOG = 2048
_KEEP_ALIVE_S = 75


def serve(
    command: EngineCommand,
    settings: ServerSettings,
    report: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT.

    report: gets the lines that a user should see: stages, address, an example. The socket is opened
    before the model is loaded, and /health answers meanwhile. Raises ConfigError and
    CheckpointError if the server cannot start; then nothing of it is left running.
    """
    listener = listen(settings)
    with listener:
        config = uvicorn.Config(
            lambda: None,
            log_config=None,
            access_log=False,
            lifespan="off",
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(settings.drain_s)),
            server_header=False,
        )
        factory = config.get_loop_factory()
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(_serve(config, listener, command, settings, report))


def listen(settings: ServerSettings) -> socket.socket:
    """The socket. Raises ConfigError, with the way out, if it cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _no_socket(settings, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except (OSError, OverflowError) as error:
        listener.close()
        raise _no_socket(settings, error) from None
    return listener


def _no_socket(settings: ServerSettings, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(
        f"cannot listen on {settings.host} port {settings.port}: {reason}",
        where="--port",
        hint="end what listens there, or take another --port or --host",
    )


class _Server(uvicorn.Server):
    """The first signal ends it when all running requests have ended; the second at once."""

    state: ServerState

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self.state.is_draining = True


@dataclass
class _Outcome:
    """Why the server must end by itself, if it must."""

    error: DeepInferError | None = None


async def _serve(
    config: uvicorn.Config,
    listener: socket.socket,
    command: EngineCommand,
    settings: ServerSettings,
    report: Callable[[str], None],
) -> None:
    link = EngineLink(command, on_event=_LOG.warning)
    admission = Admission(settings.max_waiting, settings.max_waiting_tokens)
    state = ServerState(link, settings, admission, int(time.time()))
    config.app = make_app(state)
    server = _Server(config)
    server.state = state
    outcome = _Outcome()
    await link.start()
    start = asyncio.create_task(_start(state, server, outcome, listener.getsockname(), report))
    try:
        await server.serve(sockets=[listener])
    finally:
        start.cancel()
        with suppress(asyncio.CancelledError):
            await start
        await link.close()
    if outcome.error is not None:
        raise outcome.error


async def _start(
    state: ServerState,
    server: uvicorn.Server,
    outcome: _Outcome,
    address: tuple[Any, ...],
    report: Callable[[str], None],
) -> None:
    """Wait for the model, and say that it is there."""
    try:
        info = await state.link.ready()
        state.model = served_model(info, state.settings)
    except DeepInferError as error:
        outcome.error = error
        server.should_exit = True
        return
    for line in start_lines(info.stages, info.options, state.model.names[0], address):
        report(line)


def start_lines(
    stages: list[tuple[str, float]],
    options: Mapping[str, Any],
    name: str,
    address: tuple[Any, ...],
) -> list[str]:
    """What a user sees once the server is ready."""
    host, port = address[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    url = f"http://{shown}:{port}"
    total_s = sum(seconds for _, seconds in stages)
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return [
        *(f"  {stage:<12} {seconds:7.1f} s" for stage, seconds in stages),
        f"  {'ready':<12} {total_s:7.1f} s",
        f"{name} is served at {url}  (page /, API /docs, metrics /metrics)",
        "try it:",
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
    ]
