"""`Channel`: what the engine says of one request, for the one task that waits for it.

Knows deltas, choices and faults. Does not know text, nor processes. Belongs to one event loop and
is not locked.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from deepinfer.errors import DeepInferError, RequestError
from deepinfer.messages import Delta
from deepinfer.server.wire import Abort, Finish

# What a client who does not read may cost: some 16 MB of deltas.
MOST_HELD = 65_536


class EngineUnavailable(DeepInferError):
    """There is no engine that could take a request, now; it is worth trying again."""


class EngineLost(DeepInferError):
    """The engine ended while it worked on the request; it is worth sending again."""


class Channel:
    """The news of one request, in order, each once.

    request_id: the one that its deltas have; no two requests of a server have the same.
    num_choices: of the request. tell: sends a message to the engine. leave: called once, when the
    engine has nothing more to say, or nobody wants to hear it.

    Whoever leaves `async with channel` early aborts the request.
    """

    def __init__(
        self,
        request_id: str,
        num_choices: int,
        tell: Callable[[Abort | Finish], None],
        leave: Callable[[str], None],
    ) -> None:
        self.request_id = request_id
        self._tell, self._leave = tell, leave
        self._news: list[Delta] = []
        self._open = set(range(num_choices))
        self._finished: set[int] = set()
        self._fault: DeepInferError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    @property
    def num_held(self) -> int:
        """Deltas that came and were not taken yet."""
        return len(self._news)

    async def batches(self) -> AsyncIterator[list[Delta]]:
        """All that came since the last batch, until every choice has ended.

        For one reader. Raises RequestError if the engine refuses the request, or if the reader is
        MOST_HELD deltas behind; EngineLost if the engine ended first. What came before that is told
        before.
        """
        while True:
            if self._news:
                batch, self._news = self._news, []
                yield batch
            elif self._fault is not None:
                raise self._fault
            elif not self._open:
                return
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter

    def finish(self, choice: int) -> None:
        """A stop string ended the choice: nothing more of it comes. Repeatable.

        A batch that was handed out before may hold more of it, which `was_finished` tells.
        """
        self._finished.add(choice)
        self._news = [delta for delta in self._news if delta.choice != choice]
        if choice in self._open:
            self._tell(Finish(self.request_id, choice))
            self._close(choice)

    def was_finished(self, choice: int) -> bool:
        """`finish` was called for it: what a batch still says of it must be dropped."""
        return choice in self._finished

    def abort(self) -> None:
        """Nobody wants the rest: `batches` ends. Repeatable, and harmless when all has ended."""
        self._news = []
        if self._open:
            self._tell(Abort(self.request_id))
            self._open.clear()
            self._leave(self.request_id)
            self._wake()

    # ---- for the link ----------------------------------------------------------------------------

    def put(self, delta: Delta) -> None:
        """Take news from the engine; of a choice that has ended it is late, and dropped."""
        if delta.choice not in self._open:
            return
        if delta.error is not None:
            self.fail(delta.error)
            return
        if len(self._news) >= MOST_HELD:
            self._give_up()
            return
        self._news.append(delta)
        if delta.finish_reason is not None:
            self._close(delta.choice)
        self._wake()

    def fail(self, error: DeepInferError) -> None:
        """End all choices with an error."""
        if self._open:
            self._fault = error
            self._open.clear()
            self._leave(self.request_id)
            self._wake()

    def _give_up(self) -> None:
        self._tell(Abort(self.request_id))
        what, hint = "the answer is read too slowly", "read it as it comes, or ask without a stream"
        self.fail(RequestError(what, field="stream", hint=hint))

    def _close(self, choice: int) -> None:
        self._open.discard(choice)
        if not self._open:
            self._leave(self.request_id)
            self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
