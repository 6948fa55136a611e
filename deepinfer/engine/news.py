"""What a step's numbers say about requests, as records that leave the engine.

Knows scores and requests. Does not know steps.
"""

from collections.abc import Iterator

from deepinfer.engine.continuation import Continuation
from deepinfer.messages import Delta
from deepinfer.outputs import TokenLogprob
from deepinfer.scheduler.request import Reason, Request, State
from deepinfer.scheduler.update import Progress
from deepinfer.step import Scores


def prompt_news(scored: list[tuple[Request, range]], scores: Scores | None) -> Iterator[Delta]:
    """The log-probabilities of prompt tokens, of each request whose rows were scored and that has
    not finished.

    scored: as of `Scheduled.prompt_scores`; scores: of all their rows.
    """
    row = 0
    for request, positions in scored:
        assert scores is not None  # somebody asked
        found = []
        for position in positions:
            token_id = request.tokens[position + 1]
            found.append(token_logprob(scores, row, token_id, request.score_top or 0))
            row += 1
        if request.state is not State.FINISHED:
            request_id, choice = request.request_id
            yield Delta(request_id, choice, prompt_logprobs=found)


def token_news(
    continuation: Continuation,
    progress: Progress,
    reason: Reason | None,
    num_drafts: tuple[int, int],
    scores: Scores | None,
) -> Delta:
    """What one row of a step brought.

    reason: why the request ends here, None if it goes on. num_drafts: that were proposed for the
    step and verified in it. scores: of all rows of the step, if any asked.
    """
    logprob, num_top = None, continuation.prepared.num_logprobs
    if progress.token_id is not None and num_top >= 0 and scores is not None:
        logprob = token_logprob(scores, progress.row, progress.token_id, num_top)
    request_id, choice = progress.request.request_id
    return Delta(
        request_id,
        choice,
        token_id=progress.token_id,
        logprob=logprob,
        finish_reason=reason,
        may_stop=continuation.steering.may_end,
        is_draft=progress.is_draft,
        num_drafted=num_drafts[0],
        num_verified=num_drafts[1],
        num_cached=progress.request.num_cached,
    )


def token_logprob(scores: Scores, row: int, token_id: int, num_top: int) -> TokenLogprob:
    """Row `row` of the scores as one record, with the num_top likeliest tokens."""
    ids, logprobs = scores.top_ids[row, :num_top], scores.top_logprobs[row, :num_top]
    return TokenLogprob(
        token_id=token_id,
        logprob=float(scores.chosen[row]),
        rank=int(scores.ranks[row]),
        top=tuple(zip(ids.tolist(), logprobs.tolist(), strict=True)),
    )
