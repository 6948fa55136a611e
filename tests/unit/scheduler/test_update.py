"""What the rows of a request bring, when some of them verify drafts."""

import pytest

from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.request import Request
from deepinfer.scheduler.update import take_tokens


def request_of(**limits: object) -> Request:
    """Two prompt tokens, both computed."""
    request = Request("A", [5, 6], Limits(**{"max_tokens": 9, **limits}))
    request.start(0, [0])
    request.plan(2, 0)
    return request


CASES = {
    "none": ([], [20], [20], None, 2),
    "all accepted": ([20, 21], [20, 21, 22], [20, 21, 22], None, 4),
    "first rejected": ([20, 21], [30, 21, 22], [30], None, 2),
    "second rejected": ([20, 21], [20, 31, 22], [20, 31], None, 3),
    "bad behind a rejected one": ([20, 21], [30, None, None], [30], None, 2),
    "bad behind an accepted one": ([20, 21], [20, None, 22], [20, None], "error", 3),
    "bad at once": ([20, 21], [None, 21, 22], [None], "error", 2),
    "end accepted": ([20, 1, 22], [20, 1, 22, 23], [20, 1], "stop", 3),
    "end in place of a draft": ([20, 21], [1, 21, 22], [1], "stop", 2),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_until_the_first_that_differs(name: str) -> None:
    """C06: a token behind a rejected draft is emitted; an accepted one is computed again; a bad row
    that says nothing ends the request; tokens come after the end."""
    draft_ids, drawn, emitted, reason, num_computed = CASES[name]
    request = request_of(eos_ids=frozenset({1}))
    rows = [(token_id or 0, token_id is None) for token_id in drawn]
    progress = list(take_tokens(request, draft_ids, rows, 10, 100))
    assert [one.token_id for one in progress] == emitted
    assert [one.row for one in progress] == list(range(10, 10 + len(emitted)))
    assert [one.finish_reason for one in progress] == [None] * (len(emitted) - 1) + [reason]
    assert request.tokens[2:] == [token_id for token_id in emitted if token_id is not None]
    assert request.num_computed == num_computed
    accepted = [token_id for token_id, draft in zip(drawn, draft_ids, strict=False)]
    assert [one.token_id for one in progress if one.is_draft] == [
        one for one, draft in zip(accepted, draft_ids, strict=True) if one == draft
    ][: sum(one.is_draft for one in progress)]


def test_the_limit_inside_a_block() -> None:
    """K08: more tokens than asked for, because drafts were good."""
    request = request_of(max_tokens=2)
    progress = list(take_tokens(request, [20, 21], [(20, False), (21, False), (22, False)], 0, 100))
    assert [(one.token_id, one.finish_reason) for one in progress] == [(20, None), (21, "length")]


def test_min_tokens_counts_tokens() -> None:
    """C09: an end token counts by steps: it ends a request that has too few tokens."""
    request = request_of(eos_ids=frozenset({1}), min_tokens=2)
    drawn = [(1, False), (1, False), (1, False), (9, False)]
    progress = list(take_tokens(request, [1, 1, 1], drawn, 0, 100))
    assert [one.finish_reason for one in progress] == [None, None, "stop"]
