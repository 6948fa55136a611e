"""`Scheduled` (which requests run how many rows) -> `StepPlan` (the same as arrays).

The last place that knows requests. Knows nothing of how rows are computed or tokens chosen.
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from deepinfer.scheduler.request import Request
from deepinfer.step import Int32, StepPlan


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One step. Good until the scheduler's `update`.

    requests: in order of arrival. num_rows: rows of each, at least 1, those of drafts included.
    sampled: places in `requests` of those whose rows reach their last token, ascending: a token is
        drawn for each, in this order, and one more for each of its drafts.
    drafts: by place, the drafts that are verified; their rows follow that of the last token.
    block_tables: int32 [slots, blocks], by slot; the scheduler's own, to be read now.
    """

    requests: list[Request]
    num_rows: list[int]
    sampled: list[int]
    drafts: list[list[int]]
    block_tables: Int32

    def scored(self) -> list[tuple[Request, range]]:
        """Requests with prompt rows to score in this step, and the rows' positions, in order.

        Position p scores token p + 1 of the prompt.
        """
        return [
            (request, scored)
            for request, num_rows in zip(self.requests, self.num_rows, strict=True)
            if request.score_top is not None and (scored := request.score_range(num_rows))
        ]


def make_plan(scheduled: Scheduled) -> StepPlan:
    """The step as arrays that no later change of the requests can reach."""
    requests = scheduled.requests
    slot_ids = np.array([request.slot_id for request in requests], np.int32)
    num_computed = np.array([request.num_computed for request in requests], np.int32)
    num_rows = np.array(scheduled.num_rows, np.int32)
    ends = np.cumsum(num_rows, dtype=np.int32)
    max_blocks = max(len(request.block_ids) for request in requests)
    score_rows, score_ids, score_top = _score_rows(scheduled)
    return StepPlan(
        slot_ids=slot_ids,
        num_computed=num_computed,
        num_rows=num_rows,
        block_tables=scheduled.block_tables[slot_ids, :max_blocks],
        decoder_starts=np.array([request.decoder_start for request in requests], np.int32),
        token_ids=np.array(_new_tokens(scheduled), np.int32),
        sample_rows=_sample_rows(scheduled, ends),
        score_rows=score_rows,
        score_ids=score_ids,
        score_top=score_top,
    )


def _new_tokens(scheduled: Scheduled) -> list[int]:
    token_ids: list[int] = []
    of_each = zip(scheduled.requests, scheduled.num_rows, scheduled.drafts, strict=True)
    for request, num_rows, draft_ids in of_each:
        start = request.num_computed
        if num_rows == 1:  # nearly all of them: saves making a list of one
            token_ids.append(request.tokens[start])
        else:
            token_ids += request.tokens[start : start + num_rows]
            token_ids += draft_ids
    return token_ids


def _sample_rows(scheduled: Scheduled, ends: Int32) -> Int32:
    counts = np.array([1 + len(scheduled.drafts[place]) for place in scheduled.sampled], np.int32)
    firsts = ends[scheduled.sampled] - counts
    before = np.cumsum(counts) - counts
    within = np.arange(counts.sum()) - np.repeat(before, counts)
    rows: Int32 = (np.repeat(firsts, counts) + within).astype(np.int32)
    return rows


def _score_rows(scheduled: Scheduled) -> tuple[Int32, Int32, int]:
    """(rows to score, the prompt token after each, most likelier tokens that anyone wants)."""
    rows: list[range] = []
    following: list[list[int]] = []
    most = 0
    first = 0
    for request, num_rows in zip(scheduled.requests, scheduled.num_rows, strict=True):
        if request.score_top is not None and (scored := request.score_range(num_rows)):
            shift = first - request.num_computed
            rows.append(range(scored.start + shift, scored.stop + shift))
            following.append(request.tokens[scored.start + 1 : scored.stop + 1])
            most = max(most, request.score_top)
        first += num_rows
    flat = chain.from_iterable
    return np.array(list(flat(rows)), np.int32), np.array(list(flat(following)), np.int32), most
