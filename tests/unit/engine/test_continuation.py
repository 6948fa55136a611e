"""Rows ahead: each draft's row is the row that there would be without drafts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.engine.continuation import Continuation, Row, begin, prepare
from deepinfer.engine.steering import GrammarState, Steering, ThinkingLimit
from deepinfer.engine.token_counts import TokenCounts
from deepinfer.sampling_params import SamplingParams
from tests.unit.engine.test_steering import Words

EOS = 1
PROMPT = [5, 6, 5]
ASKS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.5},
    {"frequency_penalty": 0.5, "presence_penalty": 0.2},
    {"min_tokens": 3, "stop_token_ids": [8]},
    {"golden_token_ids": [5, -1, EOS, 9]},
    {"golden_token_ids": [EOS, 9], "min_tokens": 4},
]


def start(ask: dict[str, Any], steering: Steering | None = None) -> Continuation:
    prepared = prepare(SamplingParams(**ask), seed=1, choice=0, eos_ids=[EOS])
    return begin(prepared, PROMPT, (), steering)


def facts(row: Row) -> list[Any]:
    """What the row says, without its draft."""
    lists = [
        None if counted is None else dict(zip(*map(np.ndarray.tolist, counted), strict=True))
        for counted in (row.seen, row.produced)
    ]
    mask = None if row.mask is None else row.mask.tolist()
    return [row.position, *lists, mask, row.banned.tolist(), row.forced]


def one_by_one(state: Continuation, token_ids: list[int]) -> list[list[Any]]:
    """The same without drafts: a row, then its token, and so on."""
    found = [facts(state.rows()[0])]
    for token_id in token_ids:
        state.add(token_id)
        found.append(facts(state.rows()[0]))
    return found


@pytest.mark.parametrize("ask", ASKS, ids=str)
@given(draft_ids=st.lists(st.sampled_from([1, 5, 6, 7, 8, 9]), max_size=5))
def test_rows_ahead(ask: dict[str, Any], draft_ids: list[int]) -> None:
    """C08, C09: penalties, bans or forced tokens of a draft's row are those of the first."""
    state = start(ask)
    rows = state.rows(draft_ids)
    assert [row.draft_id for row in rows] == [*draft_ids, -1]
    found = [facts(row) for row in rows]
    assert found == one_by_one(start(ask), draft_ids)
    assert [facts(row) for row in state.rows(draft_ids)] == found, "looking ahead changed something"


def grammar() -> GrammarState:
    return GrammarState(Words((5, 6, 7), (5, 6, 8, 9)), [EOS], 16, trigger_ids=[2, 3])


@pytest.mark.parametrize("cut", range(6))
def test_a_grammar_begins_inside_a_block(cut: int) -> None:
    """E02: rows behind the trigger are free, at each place of the block."""
    text = [4, 2, 3, 5, 6, 8]
    state, other = (start({}, Steering(grammar(), ThinkingLimit(2, 1))) for _ in range(2))
    for token_id in text[:cut]:
        state.add(token_id)
        other.add(token_id)
    drafts = text[cut:]
    found = [facts(row) for row in state.rows(drafts)]
    assert found == one_by_one(other, drafts)
    assert found == [facts(row) for row in state.rows(drafts)]


def test_behind_a_forbidden_draft() -> None:
    """E04, E05: a matcher takes what it refused, or is asked for a mask behind the end."""
    state = start({}, Steering(GrammarState(Words((5, 6), (5, 6, 7)), [EOS], 16)))
    for drafts, num_masks in (([5, 9, 6], 2), ([5, EOS, 6], 2), ([5, 6, EOS, 9], 3), ([9], 1)):
        rows = state.rows(drafts)
        assert [row.mask is not None for row in rows] == [
            place < num_masks for place in range(len(drafts) + 1)
        ]
    assert state.add(5)


def test_counts_ahead() -> None:
    """E17: looking ahead costs more with each token that was counted before, in calls."""
    counts = TokenCounts()
    for token_id in [3, 4, 3]:
        counts.add(token_id)
    ahead = [(one.token_ids.tolist(), one.counts.tolist()) for one in counts.ahead([3, 9, 9])]
    assert ahead == [
        ([3, 4], [2, 1]),
        ([3, 4], [3, 1]),
        ([3, 4, 9], [3, 1, 1]),
        ([3, 4, 9], [3, 1, 2]),
    ]
    assert counts.counts.tolist() == [2, 1]
