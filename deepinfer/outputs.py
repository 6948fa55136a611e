"""What a request gives back. Plain data."""

from dataclasses import dataclass
from typing import Literal

from deepinfer.errors import RequestError

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class CompletionOutput:
    """One continuation. finish_reason: "stop" at the end token, "length" at a limit."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason


@dataclass(frozen=True)
class RequestOutput:
    """One request's result, in the place of its prompt.

    prompt is None when token ids were given. A request that was refused has an error and no
    outputs.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    error: RequestError | None = None

    @property
    def text(self) -> str:
        """The first continuation's text; raises the request's error if it has one."""
        return self._first().text

    @property
    def token_ids(self) -> list[int]:
        """The first continuation's token ids, the end token included."""
        return self._first().token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first continuation ended."""
        return self._first().finish_reason

    def _first(self) -> CompletionOutput:
        if self.error is not None:
            raise self.error
        return self.outputs[0]
