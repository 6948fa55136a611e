"""What a step leaves for the one after it, against the same written as plain loops."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.continuation import Row
from deepinfer.engine.flight import rows_of_nobody
from deepinfer.engine.sample_plan import build_sample_plan
from deepinfer.step import NO_IDS, StepPlan
from deepinfer.worker.follow import Proposed, Sampled, follow, take_sample

# Few tokens, so that drafts are often right.
TOKENS = st.integers(0, 2)


def int32(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.int32)


def plan_of(
    slots: list[int],
    starts: list[int],
    num_rows: list[int],
    token_ids: list[int],
    sample_rows: list[int],
    follows: list[int] | None = None,
) -> StepPlan:
    count = len(slots)
    return StepPlan(
        slot_ids=int32(slots),
        num_computed=int32(starts),
        num_rows=int32(num_rows),
        block_tables=np.zeros((count, 1), np.int32),
        decoder_starts=int32([0] * count),
        window_starts=int32([0] * count),
        entry_starts=int32([0] * count),
        token_ids=int32(token_ids),
        sample_rows=int32(sample_rows),
        score_rows=NO_IDS,
        score_ids=NO_IDS,
        follows=NO_IDS if follows is None else int32(follows),
    )


# ---- what was drawn ------------------------------------------------------------------------------


@dataclass
class Drawing:
    """A sequence of a step: rows that draw nothing, then one that does and one for each draft.

    drawn: tokens of these; empty if the sequence draws none.
    """

    slot: int
    start: int
    num_silent: int
    drafts: list[int] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)

    @property
    def num_accepted(self) -> int:
        count = 0
        while count < len(self.drafts) and self.drawn[count] == self.drafts[count]:
            count += 1
        return count


@st.composite
def drawings(draw: st.DrawFn) -> list[Drawing]:
    slots = draw(st.lists(st.integers(0, 20), min_size=1, max_size=6, unique=True))
    found = []
    for slot in slots:
        is_drawn = draw(st.booleans() | st.just(True))
        num_silent = draw(st.integers(0 if is_drawn else 1, 4))
        drafts = draw(st.lists(TOKENS, max_size=4)) if is_drawn else []
        size = len(drafts) + is_drawn
        drawn = draw(st.lists(TOKENS, min_size=size, max_size=size))
        found.append(Drawing(slot, draw(st.integers(0, 300)), num_silent, drafts, drawn))
    return found


def sampled_of(step: list[Drawing]) -> Sampled:
    """What the package makes of them."""
    rows: list[Row] = []
    sample_rows, num_rows, first = [], [], 0
    for one in step:
        num_rows.append(one.num_silent + len(one.drawn))
        sample_rows += range(first + one.num_silent, first + num_rows[-1])
        first += num_rows[-1]
        rows += rows_of_nobody(one.drafts) if one.drawn else []
    plan = plan_of(
        [one.slot for one in step],
        [one.start for one in step],
        num_rows,
        [9] * first,
        sample_rows,
    )
    drawn = [token_id for one in step for token_id in one.drawn]
    return take_sample(plan, build_sample_plan(rows), torch.tensor(drawn, dtype=torch.int64))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(step=drawings())
def test_what_was_drawn(step: list[Drawing]) -> None:
    """C01, C04: a draft counts as accepted behind one that was not, or beside another's; or the
    last token is that of another row."""
    sampled = sampled_of(step)
    drawing = [one for one in step if one.drawn]
    assert sampled.num_accepted.tolist() == [one.num_accepted for one in drawing]
    assert sampled.last_ids.tolist() == [one.drawn[one.num_accepted] for one in drawing]
    assert sampled.num_drafts.tolist() == [len(one.drafts) for one in drawing]
    firsts = [sum(len(one.drawn) for one in drawing[:n]) for n in range(len(drawing))]
    assert sampled.first_rows.tolist() == firsts
    for numbers in (list(range(len(drawing))), list(range(len(drawing)))[::2]):
        slots = sampled.slots(np.array(numbers, np.int64))
        assert slots.tolist() == [drawing[n].slot for n in numbers]
    assert sampled.num_accepted.dtype == sampled.last_ids.dtype == torch.int64


def test_nothing_was_drawn() -> None:
    """A step of nothing but the beginnings of prompts leaves something, or fails."""
    sampled = sampled_of([Drawing(3, 0, 5), Drawing(1, 8, 2)])
    assert len(sampled.num_accepted) == len(sampled.last_ids) == len(sampled.first_rows) == 0


# ---- what follows --------------------------------------------------------------------------------


@dataclass
class Next:
    """A sequence of the step after it: it follows one of those that drew a token, or it is known.

    follows: its number, -1 for none. num_rows: of one that follows 1 and its drafts. tokens: of one
    that is known.
    """

    slot: int
    start: int
    follows: int = -1
    num_rows: int = 1
    tokens: list[int] = field(default_factory=list)


@dataclass
class Both:
    """Two steps, and the drafts in between: by number of the sequence that drew a token."""

    before: list[Drawing]
    proposals: dict[int, list[int]]
    after: list[Next]


@st.composite
def both_steps(draw: st.DrawFn) -> Both:
    before = draw(drawings())
    drawing = [one for one in before if one.drawn]
    num_drafts = draw(st.integers(1, 4))
    drafted = draw(st.sets(st.integers(0, len(drawing) - 1)) if drawing else st.just(set()))
    tokens = st.integers(100, 999)
    proposals = {
        n: draw(st.lists(tokens, min_size=num_drafts, max_size=num_drafts)) for n in sorted(drafted)
    }
    after = []
    for number, one in enumerate(drawing):
        if draw(st.booleans() | st.just(True)):
            # Where its last token would stand if no draft were accepted.
            start = one.start + one.num_silent + 1
            most = num_drafts if number in proposals else 0
            after.append(Next(one.slot, start, number, 1 + draw(st.integers(0, most))))
    for slot in draw(st.lists(st.integers(30, 40), max_size=3, unique=True)):
        ids = draw(st.lists(tokens, min_size=1, max_size=5))
        after.append(Next(slot, draw(st.integers(0, 50)), -1, len(ids), ids))
    return Both(before, proposals, draw(st.permutations(after)))


def followed(steps: Both) -> tuple[StepPlan, Sampled, Proposed | None]:
    """The plan of the second step, and what the first one left."""
    sampled = sampled_of(steps.before)
    rows = np.full(len(sampled.first_rows), -1, np.int64)
    rows[list(steps.proposals)] = np.arange(len(steps.proposals))
    token_ids = torch.tensor(list(steps.proposals.values()), dtype=torch.int64)
    proposed = Proposed(rows, token_ids) if steps.proposals else None
    after = steps.after
    plan = plan_of(
        [one.slot for one in after],
        [one.start for one in after],
        [one.num_rows for one in after],
        [token_id for one in after for token_id in one.tokens or [0] * one.num_rows],
        [],
        [one.follows for one in after],
    )
    return plan, sampled, proposed


@settings(max_examples=300, deadline=None, derandomize=True)
@given(steps=both_steps())
def test_what_follows(steps: Both) -> None:
    """C03, C15, K02: a sequence goes on with another's token or drafts, or at another position;
    or one that is known is changed."""
    plan, sampled, proposed = followed(steps)
    starts, token_ids = follow(plan, sampled, proposed, "cpu")
    drawing = [one for one in steps.before if one.drawn]
    exact, most, wanted = list[int](), list[int](), list[int]()
    for one in steps.after:
        if one.follows < 0:
            exact.append(one.start)
            most.append(one.start)
            wanted += one.tokens
            continue
        it = drawing[one.follows]
        exact.append(one.start + it.num_accepted)
        most.append(one.start + len(it.drafts))
        wanted.append(it.drawn[it.num_accepted])
        wanted += steps.proposals.get(one.follows, [])[: one.num_rows - 1]
    assert token_ids.tolist() == wanted
    assert starts.exact.tolist() == exact
    assert starts.least.tolist() == [one.start for one in steps.after]
    assert starts.most.tolist() == most
    assert starts.exact.dtype == token_ids.dtype == torch.int64
    # The plan is the host's, and may be looked at again.
    assert plan.num_computed.tolist() == [one.start for one in steps.after]


def test_nothing_follows() -> None:
    """A step whose tokens are all known asks for one before it."""
    plan = plan_of([3, 1], [5, 0], [1, 2], [7, 8, 9], [])
    starts, token_ids = follow(plan, None, None, "cpu")
    assert token_ids.tolist() == [7, 8, 9]
    assert starts.exact.tolist() == starts.least.tolist() == starts.most.tolist() == [5, 0]


def test_drafts_that_were_never_made() -> None:
    """C15: another sequence's drafts, or none at all, are verified in silence."""
    before = [Drawing(3, 0, 4, [], [1]), Drawing(5, 0, 2, [], [2])]
    for proposals in ({}, {0: [5, 6]}):
        steps = Both(before, proposals, [Next(5, 3, 1, 2)])
        with pytest.raises(AssertionError):
            follow(*followed(steps), "cpu")


def test_a_plan_that_follows_needs_a_step() -> None:
    """K02: a step that was lost is followed by whatever was there before it."""
    plan = plan_of([3], [5], [1], [0], [], [0])
    with pytest.raises(AssertionError):
        follow(plan, None, None, "cpu")
