"""Who may wait: a bound on the requests that have no first token yet, and on their prompts' tokens.

Knows numbers. Does not know requests, nor how the engine orders them.
"""

from types import TracebackType
from typing import Self

RETRY_AFTER_S = 2


class TooManyWaiting(Exception):
    """No room. `what`: which bound was met."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Admission:
    """The bounds, and how much of them is taken."""

    def __init__(self, max_waiting: int, max_waiting_tokens: int) -> None:
        self._max_waiting, self._max_tokens = max_waiting, max_waiting_tokens
        self.num_waiting = 0
        self.num_tokens = 0

    def enter(self) -> "Place":
        """A place for one request, before its body is read. Raises TooManyWaiting."""
        if self.num_waiting >= self._max_waiting:
            raise TooManyWaiting(f"{self.num_waiting} requests are waiting already")
        self.num_waiting += 1
        return Place(self)

    def take_tokens(self, num_tokens: int) -> None:
        """Raises TooManyWaiting. A prompt longer than the bound may wait where no other does."""
        if self.num_tokens and self.num_tokens + num_tokens > self._max_tokens:
            raise TooManyWaiting(f"prompts of {self.num_tokens} tokens are waiting already")
        self.num_tokens += num_tokens


class Place:
    """One request's place among those that wait; used in a `with` block, which gives it up."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._is_waiting = True
        self._num_tokens = 0

    def add_tokens(self, num_tokens: int) -> None:
        """The prompt's tokens are known now. Raises TooManyWaiting."""
        self._admission.take_tokens(num_tokens)
        self._num_tokens += num_tokens

    def leave(self) -> None:
        """The first token is there, or the request has ended; calling it again does nothing."""
        if self._is_waiting:
            self._is_waiting = False
            self._admission.num_waiting -= 1
            self._admission.num_tokens -= self._num_tokens

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
