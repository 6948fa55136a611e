"""What a step's tokens mean for the requests: who goes on, who ends and why.

Pure functions over a request; the scheduler applies what they say.
"""

from typing import NamedTuple

from deepinfer.scheduler.request import Reason, Request


class Progress(NamedTuple):
    """What a step brought to one request.

    token_id: its new output token; None if the row was bad. finish_reason: None if it goes on.
    """

    request: Request
    token_id: int | None
    finish_reason: Reason | None


def end_reason(request: Request, max_model_len: int) -> Reason | None:
    """Whether the newest output token is the request's last.

    "stop" for an end token with at least min_tokens before it, "length" at max_tokens and where
    prompt and output fill max_model_len; an end token in the last place is a "stop".
    """
    limits = request.limits
    num_output = len(request.tokens) - request.num_prompt
    if num_output > limits.min_tokens and limits.ends_with(request.tokens[-1]):
        return "stop"
    if num_output >= limits.max_tokens or len(request.tokens) >= max_model_len:
        return "length"
    return None
