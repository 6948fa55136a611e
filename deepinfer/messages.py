"""What the engine tells whoever reads its answers. Plain data; no tensor, no text.

One `Delta` for each token, in order, several of one step where drafts were accepted; the server's
processes will send the same.
"""

from dataclasses import dataclass, field

from deepinfer.errors import RequestError
from deepinfer.outputs import FinishReason, TokenLogprob


@dataclass(frozen=True, slots=True)
class Delta:
    """News of one continuation.

    token_id: its new token, or None when it ends without one. logprob: of that token, if asked for.
    prompt_logprobs: of prompt tokens, in order, each once; they come before or with the first
    token.
    finish_reason: set in the last Delta.
    may_stop: a stop string that ends with this token may end the text. Not where a grammar holds
        and the text is not complete.
    is_draft: the token is a draft that was accepted. num_drafted, num_verified: drafts that were
    proposed for the step, and of them verified; told with its first token.
    num_cached: prompt tokens that were found in the prefix cache.
    error: the request as a whole was refused after it was taken in; the last Delta of the choice.
    """

    request_id: str
    choice: int
    token_id: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    may_stop: bool = True
    is_draft: bool = False
    num_drafted: int = 0
    num_verified: int = 0
    num_cached: int = 0
    error: RequestError | None = None
