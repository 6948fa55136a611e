"""`Scheduled` (which requests run how many rows) -> `StepPlan` (the same as arrays).

The last place that knows requests. Knows nothing of how rows are computed or tokens chosen.
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from deepinfer.cache.layout import SLACK_ROWS
from deepinfer.scheduler.request import Request, State
from deepinfer.step import NO_IDS, Int32, StepPlan


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One step. Good until the scheduler's `update`.

    requests: in order of arrival. starts: of each, the position of its first row; where its last
        token is not known yet, a lower bound. num_rows: rows of each, at least 1, those of drafts
        included.
    sampled: places in `requests` of those whose rows reach their last token, ascending: a token is
        drawn for each, in this order, and one more for each of its drafts.
    num_drafts: of each, drafts that are verified; their rows follow that of the last token.
    follows: of each, its number among the sampled of the step before, if that step draws its last
        token and the token is not known yet; else -1.
    scored: of each, positions of its prompt rows to score; position p scores token p + 1.
    runs: of each, how often it was preempted before: a step that it lost says nothing about it.
    block_tables: int32 [slots, blocks], by slot; the scheduler's own, to be read now.
    drafts: by place, the drafts themselves; empty until `know_drafts`.
    """

    requests: list[Request]
    starts: list[int]
    num_rows: list[int]
    sampled: list[int]
    num_drafts: list[int]
    follows: list[int]
    scored: list[range]
    runs: list[int]
    block_tables: Int32
    drafts: list[list[int]]

    @property
    def num_drawn(self) -> int:
        """Rows whose token is drawn."""
        return len(self.sampled) + sum(self.num_drafts)

    def is_live(self, place: int) -> bool:
        """The request at this place still runs, and did not start again since."""
        request = self.requests[place]
        return request.state is State.RUNNING and request.num_preemptions == self.runs[place]

    def prompt_scores(self) -> list[tuple[Request, range]]:
        """Requests with prompt rows to score, and the rows' positions, in order."""
        return [
            (request, scored)
            for request, scored in zip(self.requests, self.scored, strict=True)
            if scored
        ]

    def lose(self) -> None:
        """The step was broken off: what it scored is still to be handed out."""
        for request, scored in self.prompt_scores():
            request.num_scored = min(request.num_scored, scored.start)

    def know_drafts(self) -> None:
        """Take the requests' drafts, which are known by now; no token of this step is.

        Those of a request that ended meanwhile are any tokens: nobody asks what followed them.
        """
        assert not self.drafts, "they are known already"
        for request, num_drafts in zip(self.requests, self.num_drafts, strict=True):
            ids = request.draft_ids[:num_drafts]
            self.drafts.append(ids + [0] * (num_drafts - len(ids)))


def schedule_rows(
    requests: list[Request],
    num_rows: list[int],
    sampled: list[int],
    num_drafts: list[int],
    block_tables: Int32,
) -> Scheduled:
    """The step, of which the requests are told; arguments as of `Scheduled`."""
    scheduled = Scheduled(
        requests,
        starts=[request.num_computed for request in requests],
        num_rows=num_rows,
        sampled=sampled,
        num_drafts=num_drafts,
        follows=[request.draw_place if request.num_drawing else -1 for request in requests],
        scored=[
            request.score_range(rows) for request, rows in zip(requests, num_rows, strict=True)
        ],
        runs=[request.num_preemptions for request in requests],
        block_tables=block_tables,
        drafts=[],
    )
    draw_places = {place: number for number, place in enumerate(sampled)}
    for place, request in enumerate(requests):
        request.plan(num_rows[place], num_drafts[place], draw_places.get(place, -1))
    return scheduled


def make_plan(scheduled: Scheduled) -> StepPlan:
    """The step as arrays that no later change of the requests can reach."""
    requests = scheduled.requests
    slot_ids = np.array([request.slot_id for request in requests], np.int32)
    num_rows = np.array(scheduled.num_rows, np.int32)
    ends = np.cumsum(num_rows, dtype=np.int32)
    max_blocks = max(len(request.block_ids) for request in requests)
    score_rows, score_ids, score_top = _score_rows(scheduled)
    return StepPlan(
        slot_ids=slot_ids,
        num_computed=np.array(scheduled.starts, np.int32),
        num_rows=num_rows,
        block_tables=scheduled.block_tables[slot_ids, :max_blocks],
        decoder_starts=np.array([request.decoder_start for request in requests], np.int32),
        window_starts=np.array([request.window_start for request in requests], np.int32),
        entry_starts=np.array([request.entry_start for request in requests], np.int32),
        token_ids=np.array(_new_tokens(scheduled), np.int32),
        sample_rows=_sample_rows(scheduled, ends),
        score_rows=score_rows,
        score_ids=score_ids,
        score_top=score_top,
        **_known_tokens(scheduled),
        follows=np.array(scheduled.follows, np.int32) if max(scheduled.follows) >= 0 else NO_IDS,
    )


def _new_tokens(scheduled: Scheduled) -> list[int]:
    """The rows' tokens; 0 for those that only the device knows."""
    token_ids: list[int] = []
    for place, request in enumerate(scheduled.requests):
        start, num_rows = scheduled.starts[place], scheduled.num_rows[place]
        if scheduled.follows[place] >= 0:
            token_ids += [0] * num_rows
        elif num_rows == 1:  # nearly all of them: saves making a list of one
            token_ids.append(request.tokens[start])
        else:
            num_drafts = scheduled.num_drafts[place]
            token_ids += request.tokens[start : start + num_rows - num_drafts]
            token_ids += request.draft_ids[:num_drafts]
    return token_ids


def _known_tokens(scheduled: Scheduled) -> dict[str, Int32]:
    """The last tokens before each replay that starts in this step."""
    slots: list[int] = []
    positions: list[int] = []
    token_ids: list[int] = []
    for request, start in zip(scheduled.requests, scheduled.starts, strict=True):
        if start and start == request.window_start:
            first = max(0, start - SLACK_ROWS)
            positions += range(first, start)
            slots += [request.slot_id] * (start - first)
            token_ids += request.tokens[first:start]
    if not token_ids:
        return {}
    found = {"known_slots": slots, "known_positions": positions, "known_ids": token_ids}
    return {name: np.array(values, np.int32) for name, values in found.items()}


def _sample_rows(scheduled: Scheduled, ends: Int32) -> Int32:
    counts = np.array([1 + scheduled.num_drafts[place] for place in scheduled.sampled], np.int32)
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
    for place, request in enumerate(scheduled.requests):
        scored = scheduled.scored[place]
        if scored:
            shift = first - scheduled.starts[place]
            rows.append(range(scored.start + shift, scored.stop + shift))
            following.append(request.tokens[scored.start + 1 : scored.stop + 1])
            most = max(most, request.score_top or 0)
        first += scheduled.num_rows[place]
    flat = chain.from_iterable
    return np.array(list(flat(rows)), np.int32), np.array(list(flat(following)), np.int32), most
