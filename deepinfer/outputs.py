"""What a request gives back. Plain data, which knows nothing of how it came about."""

from dataclasses import dataclass, field
from typing import Literal

from deepinfer.errors import RequestError

# "stop": an end token, or a stop string; "length": max_tokens or max_model_len; "abort": the caller
# gave it up; "insufficient_system_resource": it had to make room and was not to be run again;
# "error": the model's numbers were not finite. A request that is refused, a prompt that is too long
# among them, has RequestOutput.error and no continuation.
FinishReason = Literal["stop", "length", "abort", "insufficient_system_resource", "error"]


@dataclass(frozen=True)
class TokenLogprob:
    """How likely a token was: natural logarithms of the model's own distribution.

    logprob: at least -9999, which also stands for an impossible token, so that it is a number in
        any format. rank: 1 + the tokens that were likelier.
    top: (token id, log-probability) of the likeliest tokens, best first, as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class CompletionOutput:
    """One continuation.

    text: without the end token or stop string that ended it, unless include_stop_str_in_output.
    token_ids: all that were generated: an end token, and the token that completed a stop string,
        are the last of them.
    logprobs: one for each token, or None if none were asked for.
    stop_reason: the stop string, or the token of stop_token_ids, that ended it; None for all else,
        the end-of-sequence token included.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprob] | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class Timings:
    """When things happened, in seconds of one clock that only differences make sense of.

    first_token_s: None if there never was one.
    """

    arrival_s: float
    first_token_s: float | None
    finished_s: float


@dataclass(frozen=True)
class DraftCounts:
    """Drafts of a request, all continuations together: proposed, verified, and of these accepted.

    accepted: as far as they are in the output; what followed a stop string is not.
    """

    drafted: int = 0
    verified: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class RequestOutput:
    """One request's result, in the place of its prompt.

    prompt: None when token ids were given.
    outputs: the continuations by index; none for a request that was refused, which has an error.
    prompt_logprobs: one for each prompt token, None for the first, which follows nothing; None in
        all if they were not asked for.
    num_cached_tokens: prompt tokens that were found in the prefix cache; the last of them may have
        run again, see `prefix_replay`.
    timings: None if the request was refused. drafts: what became of them; they never change what
        is said.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    error: RequestError | None = None
    request_id: str = field(default="", compare=False)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    num_cached_tokens: int = 0
    timings: Timings | None = field(default=None, compare=False)
    drafts: DraftCounts = field(default=DraftCounts(), compare=False)

    @property
    def text(self) -> str:
        """The first continuation's text; raises the request's error if it has one."""
        return self._first().text

    @property
    def token_ids(self) -> list[int]:
        """The first continuation's token ids, the end token included."""
        return self._first().token_ids

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        """The first continuation's log-probabilities."""
        return self._first().logprobs

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first continuation ended."""
        return self._first().finish_reason

    def _first(self) -> CompletionOutput:
        if self.error is not None:
            raise self.error
        return self.outputs[0]
