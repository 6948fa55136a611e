"""The engine process: load a model, say so, and serve until told to end.

Knows how a process begins and ends. What it does between is engine_loop's.
"""

import logging
import os
import signal
import socket
import sys
import traceback
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from deepinfer.config.engine import engine_args
from deepinfer.config.env import set_thread_policy
from deepinfer.errors import CheckpointError, ConfigError, DeepInferError
from deepinfer.logs import setup_logging
from deepinfer.server.engine_loop import Inbox, Outbox, run
from deepinfer.server.wire import Failed, ModelInfo, Ready, Start, encode

if TYPE_CHECKING:
    from deepinfer.engine.loading import LoadedModel
_LOG = logging.getLogger("deepinfer")
# Exit codes. The first is also the command line's, for mistakes of its user.
REFUSED, CRASHED = 2, 70
_FLUSH_S = 1.0
_MOST_CHARACTERS = 500


def main(handle: int) -> None:
    """The process's life. handle: the file descriptor of a socket to the HTTP process."""
    sock = socket.socket(fileno=handle)
    sock.setblocking(True)
    sock.set_inheritable(False)
    # From here on the end of the other process is seen, also while torch and the model load.
    outbox, inbox = Outbox(sock), Inbox(sock)
    sys.excepthook = partial(_crash, outbox)
    messages = inbox.take(may_wait=True)
    if not messages:
        return  # the other process is gone already
    (start,) = messages
    assert isinstance(start, Start)
    setup_logging(start.log_level)
    set_thread_policy()  # before torch, which the next import brings
    from deepinfer.engine.loading import load_model

    try:
        model = load_model(
            start.model,
            engine_args(start.options),
            may_download_large=start.may_download_large,
            report=_LOG.warning,
        )
    except (ConfigError, CheckpointError) as error:
        _say_failed(outbox, error)
        sys.exit(REFUSED)
    signal.signal(signal.SIGTERM, lambda number, frame: inbox.end())
    outbox.send(encode(Ready(model_info(model))))
    run(model.engine, inbox, outbox)
    model.engine.close()
    outbox.wait_empty(_FLUSH_S)


def model_info(model: "LoadedModel") -> ModelInfo:
    """What the HTTP process must know of a model."""
    names = [field.name for field in fields(model.options)]
    options = {name: _shown(name, getattr(model.options, name)) for name in names}
    return ModelInfo(
        folder=str(model.folder.resolve()),
        vocab_size=model.config.vocab_size,
        max_model_len=model.options.max_model_len,
        options=options,
        stages=list(model.stages.items()),
    )


# Between the two numbers of an option: 0/8 of the experts, layers 0:20.
_BETWEEN = {"expert_shard": "/", "layers": ":"}


def _shown(name: str, value: Any) -> Any:
    """An option as messages may hold it; two numbers as they are said."""
    if name in _BETWEEN:
        return _BETWEEN[name].join(map(str, value))
    return str(value) if isinstance(value, Path) else value


def _crash(
    outbox: Outbox,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """What nobody expected: to the log as a whole, to the HTTP process in a line, and out.

    Threads of the device may hang after it, and an orderly exit would wait for them.
    """
    traceback.print_exception(kind, error, trace)
    if not isinstance(error, DeepInferError):
        first = (str(error).splitlines() or [""])[0][:_MOST_CHARACTERS]
        what = f"{kind.__name__}: {first}"
        error = DeepInferError(what, where="engine", hint="see its log on stderr")
    _say_failed(outbox, error)
    sys.stderr.flush()
    os._exit(CRASHED)


def _say_failed(outbox: Outbox, error: DeepInferError) -> None:
    outbox.send(encode(Failed(error)))
    outbox.wait_empty(_FLUSH_S)
