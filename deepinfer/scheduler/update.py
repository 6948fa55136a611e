"""What a step's tokens mean for the requests: who goes on, who ends and why.

Functions over a request; the scheduler applies what they say.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from deepinfer.scheduler.plan import Scheduled
from deepinfer.scheduler.request import Reason, Request
from deepinfer.step import Bool, Int32


class Progress(NamedTuple):
    """What a row of a step brought to its request.

    token_id: a new output token; None if the row was bad. finish_reason: None if the request goes
    on. row: of the `SamplePlan`. is_draft: the token is a draft that was accepted.
    """

    request: Request
    token_id: int | None
    finish_reason: Reason | None
    row: int
    is_draft: bool = False


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


def take_step(
    scheduled: Scheduled, token_ids: Int32, bad_rows: Bool, max_model_len: int
) -> Iterator[tuple[Request, list[Progress]]]:
    """What a step brought, for each request that drew a token and runs; its drafts are used up.

    Arguments as of `Scheduler.update`.
    """
    drawn = list(zip(token_ids.tolist(), bad_rows.tolist(), strict=True))
    first = 0
    for place in scheduled.sampled:
        request, draft_ids = scheduled.requests[place], scheduled.drafts[place]
        end = first + 1 + len(draft_ids)
        if scheduled.is_live(place):
            request.land(len(draft_ids))
            yield (
                request,
                list(take_tokens(request, draft_ids, drawn[first:end], first, max_model_len)),
            )
        first = end


def stored_tokens(scheduled: Scheduled, live: Sequence[int]) -> Iterator[tuple[Request, int]]:
    """How many tokens of each request at the places `live` are stored after the step, which was
    taken: all but the last of one that drew a token, else up to its last row."""
    sampled = set(scheduled.sampled)
    for place in live:
        request = scheduled.requests[place]
        num_stored = scheduled.starts[place] + scheduled.num_rows[place]
        yield request, len(request.tokens) - 1 if place in sampled else num_stored


def take_tokens(
    request: Request,
    draft_ids: Sequence[int],
    drawn: Sequence[tuple[int, bool]],
    first_row: int,
    max_model_len: int,
) -> Iterator[Progress]:
    """Give a request the tokens of its rows: all tokens that it has are computed.

    drawn: (token, whether the row was bad) of the row of its last token and then of each draft; the
    first of them is row `first_row` of the `SamplePlan`. Row after row, until one is bad, ends the
    request, or differs from the draft in its place: rows behind that saw what never was. A draft
    that is accepted is computed.
    """
    for ahead, (token_id, is_bad) in enumerate(drawn):
        row = first_row + ahead
        if is_bad:
            yield Progress(request, None, "error", row)
            return
        request.append(token_id)
        reason = end_reason(request, max_model_len)
        is_draft = ahead < len(draft_ids) and token_id == draft_ids[ahead]
        yield Progress(request, token_id, reason, row, is_draft)
        if reason is not None or not is_draft:
            return
        request.accept_draft()
