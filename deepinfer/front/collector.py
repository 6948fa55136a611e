"""`Collector`: turns the news of one request into text and, in the end, into its RequestOutput.

Knows tokens, text and stop strings. Does not know how tokens come about.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deepinfer.errors import RequestError
from deepinfer.front.stream import TextStream
from deepinfer.messages import Delta
from deepinfer.outputs import (
    CompletionOutput,
    DraftCounts,
    FinishReason,
    RequestOutput,
    Timings,
    TokenLogprob,
)
from deepinfer.sampling_params import SamplingParams
from deepinfer.tokenizer.tokenizer import Tokenizer


@dataclass
class _Choice:
    """One continuation as far as it has come."""

    stream: TextStream
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class Collector:
    """All continuations of one request."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request_id = request_id
        self._prompt, self._prompt_ids, self._params = prompt, prompt_ids, params
        self._eos_id, self._clock = tokenizer.eos_id, clock
        self._arrival_s = clock()
        self._first_token_s: float | None = None
        self._error: RequestError | None = None
        # The first token follows nothing, so it has none.
        self._prompt_logprobs: list[TokenLogprob | None] = [None]
        self._num_drafted = self._num_verified = self._num_accepted = 0
        self._num_cached = 0
        self._choices = [
            _Choice(
                TextStream(
                    tokenizer,
                    stop=params.stop or (),
                    include_stop=params.include_stop_str_in_output,
                    min_tokens=params.min_tokens,
                    is_structured=params.so_args is not None,
                )
            )
            for _ in range(params.n)
        ]

    @property
    def finished(self) -> bool:
        """No continuation goes on."""
        return all(choice.finish_reason is not None for choice in self._choices)

    def add(self, delta: Delta) -> tuple[str, bool]:
        """(text of the delta's continuation that is final now, whether a stop string ended it).

        After a stop string the engine must be told to finish the continuation, and what else it
        has said of it in the same step must be dropped.
        """
        choice = self._choices[delta.choice]
        self._error = self._error or delta.error
        self._prompt_logprobs += delta.prompt_logprobs
        self._num_drafted += delta.num_drafted
        self._num_verified += delta.num_verified
        if delta.choice == 0:  # all continuations have the same prompt
            self._num_cached = min(delta.num_cached, len(self._prompt_ids))
        text = ""
        if delta.token_id is not None:
            if self._first_token_s is None:
                self._first_token_s = self._clock()
            choice.token_ids.append(delta.token_id)
            self._num_accepted += delta.is_draft
            if delta.logprob is not None:
                choice.logprobs.append(delta.logprob)
            # An end token is not part of what was said, no more than a stop string is.
            if delta.finish_reason != "stop" or self._params.include_stop_str_in_output:
                text = choice.stream.push([delta.token_id], may_stop=delta.may_stop)
        if choice.stream.stop_reason is not None:
            choice.finish_reason, choice.stop_reason = "stop", choice.stream.stop_reason
            return text, delta.finish_reason is None
        if delta.finish_reason is not None:
            text += self._end(choice, delta.finish_reason)
        return text, False

    def check(self) -> None:
        """Raise the error with which the request was refused, if it was."""
        if self._error is not None:
            raise self._error

    def stop(self, choice: int, stop_reason: str | None) -> None:
        """End a continuation at a stop string that somebody else found in what it said."""
        self._choices[choice].finish_reason = "stop"
        self._choices[choice].stop_reason = stop_reason

    def output(self) -> RequestOutput:
        """The result; a continuation that has not ended counts as aborted."""
        if self._error is not None:
            return RequestOutput(self._prompt, self._prompt_ids, [], self._error, self.request_id)
        wanted = self._params.num_logprobs >= 0
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_ids,
            outputs=[
                CompletionOutput(
                    index=index,
                    text=choice.stream.text,
                    token_ids=choice.token_ids,
                    finish_reason=choice.finish_reason or "abort",
                    logprobs=choice.logprobs if wanted else None,
                    stop_reason=choice.stop_reason,
                )
                for index, choice in enumerate(self._choices)
            ],
            prompt_logprobs=self._prompt_logprobs
            if self._params.num_prompt_logprobs >= 0
            else None,
            timings=Timings(self._arrival_s, self._first_token_s, self._clock()),
            num_cached_tokens=self._num_cached,
            drafts=DraftCounts(self._num_drafted, self._num_verified, self._num_accepted),
        )

    def _end(self, choice: _Choice, reason: FinishReason) -> str:
        """The text that was held back in case a stop string would follow."""
        choice.finish_reason = reason
        text = choice.stream.finish()
        if choice.stream.stop_reason is not None:
            # Half a character at the end became a sign that completes a stop string.
            choice.finish_reason, choice.stop_reason = "stop", choice.stream.stop_reason
        elif reason == "stop" and choice.token_ids[-1] in (self._params.stop_token_ids or ()):
            choice.stop_reason = choice.token_ids[-1]
        return text
