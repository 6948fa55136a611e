"""`EngineLink`: the HTTP process's end of the engine: requests go in, their news come out, and an
engine that dies is started again.

Knows channels, and the lives of engines one after another. Does not know text, nor HTTP. Belongs to
one event loop.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import msgspec

from deepinfer.errors import ConfigError, DeepInferError
from deepinfer.messages import EngineStats
from deepinfer.server.channel import Channel, EngineLost, EngineUnavailable
from deepinfer.server.child import EngineChild
from deepinfer.server.engine_totals import added
from deepinfer.server.restart import Backoff
from deepinfer.server.wire import (
    Deltas,
    FromEngine,
    ModelInfo,
    Ready,
    Refused,
    Start,
    Stats,
    Submit,
    encode,
)

__all__ = ["Channel", "EngineCommand", "EngineLink", "EngineLost", "EngineUnavailable"]

State = Literal["starting", "ready", "restarting", "stopped"]

_MOST_TICK_S = 1.0


@dataclass(frozen=True)
class EngineCommand:
    """What the engine process is to load, as `LLM` takes it. options: fields of EngineArgs.

    log_level: of the engine process's log, which goes to stderr.
    hang_s: an engine that has work and says nothing for so long is ended and started again.
    """

    model: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    may_download_large: bool = False
    log_level: str = "warning"
    hang_s: float = 300.0


class EngineLink:
    """Attributes, to be read: `state`; `info`, of the model, None before it was ready first;
    `stats`, of the engine that runs, zeros before its first; `past_stats`, the counts of those that
    died; `num_restarts`; `reason`, why there is no engine, or empty.

    on_event: gets lines that are worth a log.
    """

    def __init__(
        self, command: EngineCommand, on_event: Callable[[str], None] = lambda line: None
    ) -> None:
        self.on_event = on_event
        self.state: State = "starting"
        self.info: ModelInfo | None = None
        self.stats = self.past_stats = EngineStats()
        self.num_restarts = 0
        self.reason = "the model is being loaded"
        self._command = command
        self._final: DeepInferError | None = None
        self._settled = asyncio.Event()  # ready, or stopped for good
        self._numbers = count()
        self._channels: dict[str, Channel] = {}
        self._child: EngineChild | None = None
        self._ready_at_s = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def engine_pid(self) -> int | None:
        """The engine process, if there is one."""
        return None if self._child is None else self._child.pid

    @property
    def num_open(self) -> int:
        """Requests that the engine has not ended."""
        return len(self._channels)

    async def start(self) -> None:
        """Start the engine process, and watch it from now on. Returns at once."""
        self._task = asyncio.create_task(self._supervise())

    async def ready(self) -> ModelInfo:
        """Wait until a model is loaded.

        Raises what loading raised, ConfigError or CheckpointError, if the first start fails, and
        EngineUnavailable once the link was closed.
        """
        await self._settled.wait()
        if self._final is not None:
            raise self._final
        assert self.info is not None
        return self.info

    def submit(self, submit: Submit) -> Channel:
        """Give a request to the engine. The id is the caller's affair; the channel has another.

        Raises EngineUnavailable if no engine is ready, RequestError for text without bytes.
        """
        child = self._child
        if self.state != "ready" or child is None:
            raise EngineUnavailable(self.reason, where="engine", hint="try again later")
        # An id of its own for every request there ever was: what is late finds nobody.
        request_id = f"{next(self._numbers)}"
        child.send(encode(msgspec.structs.replace(submit, request_id=request_id)))
        channel = Channel(request_id, submit.params.n, child.tell, self._forget)
        self._channels[request_id] = channel
        return channel

    async def close(self) -> None:
        """End the engine process, politely for some seconds. Open channels raise EngineLost."""
        child, task, self._task = self._child, self._task, None
        self._stop(EngineUnavailable("the server is ending", where="engine", hint="ask another"))
        self._lose("the server is ending")
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if child is not None:
            await child.end(asks=True)

    # ---- lives -----------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        backoff = Backoff()
        while True:
            how = await self._live()
            if self.state == "stopped":
                return
            if self.info is None:  # no start before succeeded: what is wrong will stay wrong
                self.on_event(f"the engine {how}")
                self._stop(self._failure(how))
                return
            loop = asyncio.get_running_loop()
            is_new = self._ready_at_s == 0.0
            delay_s = backoff.after(0.0 if is_new else loop.time() - self._ready_at_s)
            self.reason = "the engine is being restarted"
            self.on_event(f"the engine {how}; restarting in {delay_s:g} s")
            self.num_restarts += 1
            await asyncio.sleep(delay_s)

    async def _live(self) -> str:
        """One engine process, from start to end; how it ended."""
        command = self._command
        options = {k: str(v) if isinstance(v, Path) else v for k, v in command.options.items()}
        start = Start(command.model, options, command.may_download_large, command.log_level)
        self._ready_at_s = 0.0
        child = self._child = EngineChild(self._take, self._on_end)
        try:
            await child.start(start)
            await self._watch(child)
        except OSError as error:
            return f"could not be started: {error}"
        how = await child.end()
        return how if child.failure is None else f"failed: {child.failure.error.what}"

    async def _watch(self, child: EngineChild) -> None:
        """Wait until the process is gone, and see to it that one that hangs is.

        Silence is counted in ticks, not by a clock: after this process itself was stopped for
        long, the engine's words are waiting to be read.
        """
        hang_s = self._command.hang_s
        tick_s, silent_s = min(_MOST_TICK_S, hang_s / 4), 0.0
        while not child.gone.done():
            await asyncio.wait([child.gone], timeout=tick_s)
            silent_s = 0.0 if child.heard or not self._channels else silent_s + tick_s
            child.heard = False
            if silent_s >= hang_s:
                self.on_event(f"the engine has said nothing for {silent_s:g} s of work: ending it")
                child.kill()
                await child.gone

    def _failure(self, how: str) -> DeepInferError:
        failed = None if self._child is None else self._child.failure
        if failed is not None:
            return failed.error
        hint = "its last lines on stderr say more; signal 9 is often the system, short of memory"
        return ConfigError(f"the engine process {how}", where="engine", hint=hint)

    def _on_end(self) -> None:
        self.past_stats, self.stats = added(self.past_stats, self.stats), EngineStats()
        if self.state == "ready":
            self.state, self.reason = "restarting", "the engine is being restarted"
            self._settled.clear()
        self._lose("the engine process ended while it worked on this request")

    def _stop(self, error: DeepInferError) -> None:
        self.state, self.reason, self._final = "stopped", error.what, self._final or error
        self._settled.set()

    def _lose(self, why: str) -> None:
        for channel in list(self._channels.values()):
            channel.fail(EngineLost(why, where="engine", hint="send it again"))
        self._channels.clear()

    # ---- news ------------------------------------------------------------------------------------

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, Deltas):
            channels = self._channels
            for delta in message.deltas:
                channel = channels.get(delta.request_id)
                if channel is not None:
                    channel.put(delta)
        elif isinstance(message, Stats):
            self.stats = message.stats
        elif isinstance(message, Refused):
            channel = self._channels.get(message.request_id)
            if channel is not None:
                channel.fail(message.error)
        elif isinstance(message, Ready) and self.state != "stopped":
            self._be_ready(message.info)

    def _be_ready(self, info: ModelInfo) -> None:
        self.info, self.state, self.reason = info, "ready", ""
        self._ready_at_s = asyncio.get_running_loop().time()
        self._settled.set()
        self.on_event("the engine is ready")

    def _forget(self, request_id: str) -> None:
        self._channels.pop(request_id, None)
