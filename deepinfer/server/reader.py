"""Reads the growing answer of one choice: the engine's news in, events out.

Knows the recipe's parser and why an answer ends. Does not know protocols or connections.
"""

from collections.abc import Sequence

from deepinfer.messages import Delta
from deepinfer.outputs import FinishReason, TokenLogprob
from deepinfer.recipe.chunks import EndReason
from deepinfer.recipe.events import Event
from deepinfer.recipe.output_parser import OutputParser
from deepinfer.server.errors import ApiError
from deepinfer.server.prepare import Job
from deepinfer.server.settle import Settling
from deepinfer.tokenizer.tokenizer import Tokenizer

_ENDS: dict[FinishReason, EndReason] = {"stop": "Stop", "length": "Length"}
# An answer that ends for one of these was not given.
_FAILURES: dict[FinishReason, ApiError] = {
    "error": ApiError(500, "The model's numbers were not finite.", code="model_error"),
    "insufficient_system_resource": ApiError(
        503, "The engine had no room to go on with the request.", code="no_room", retry_after_s=5
    ),
    "abort": ApiError(503, "The request was ended by the server.", code="ended", retry_after_s=1),
}


def failure_of(delta: Delta) -> ApiError | None:
    """What went wrong, if the delta ends its choice without an answer."""
    found = None if delta.finish_reason is None else _FAILURES.get(delta.finish_reason)
    return found and ApiError(found.status, found.message, None, found.code, found.retry_after_s)


class ChoiceReader:
    """One choice.

    Attributes: `finished`, its last event is out; `must_stop`, that was so before the engine ended
    it, which must be told; `num_thought_tokens`, None if there is no place for thoughts.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        parsing = job.parsing
        self._parser = OutputParser(parsing, tokenizer)
        tools = job.request.conversation.tools
        self._settling = Settling(tools, is_single=job.is_single)
        self.must_stop = False
        ids, spelled = tokenizer.control_ids, parsing.special_tokens
        self._ends_thoughts = {
            *tokenizer.eos_ids,
            *(ids[one] for one in (spelled.thinking_end, spelled.dsml) if one in ids),
        }
        self._thinks = parsing.thinking_stage in ("ReasoningStart", "ReasoningContinuation")
        self.num_thought_tokens: int | None = None if parsing.thinking_stage is None else 0

    @property
    def finished(self) -> bool:
        """Its last event is out."""
        return self._settling.finished

    @property
    def num_tokens(self) -> int:
        """Tokens that were read."""
        return self._parser.num_tokens

    def read(self, deltas: Sequence[Delta]) -> list[Event]:
        """The events that are certain now; none after the end.

        Raises ApiError for an answer that failed, and RequestError for a request that was refused.
        """
        if self.finished:
            return []
        ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        end: FinishReason | None = None
        for delta in deltas:
            if delta.error is not None:
                raise delta.error
            if (failure := failure_of(delta)) is not None:
                raise failure
            if delta.token_id is not None:
                ids.append(delta.token_id)
                if delta.logprob is not None:
                    logprobs.append(delta.logprob)
            end = end or delta.finish_reason
        if self._thinks:
            self._count_thoughts(ids)
        events = self._parser.push_tokens(ids, logprobs or None)
        if end is not None:
            events += self._parser.finish(_ENDS[end])
        settled = self._settling.take(events)
        self.must_stop = self._settling.finished and end is None
        return settled

    def _count_thoughts(self, ids: Sequence[int]) -> None:
        for token_id in ids:
            if token_id in self._ends_thoughts:
                self._thinks = False
                return
            self.num_thought_tokens = (self.num_thought_tokens or 0) + 1
