"""What may happen to a request, and when its tokens end."""

import pytest

from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.request import Request, State
from deepinfer.scheduler.update import end_reason

EOS = 9


def running(prompt: list[int], limits: Limits, score_top: int | None = None) -> Request:
    request = Request("r", prompt, limits, score_top)
    request.start(0, [0])
    return request


def draw(request: Request, *token_ids: int) -> None:
    """A step computes all rows and draws a token, for each of them."""
    for token_id in token_ids:
        request.plan(request.num_due, 0, 0)
        request.land(0)
        request.append(token_id)


def test_the_way_of_a_request() -> None:
    """K01: a preempted request loses its output, or keeps what it no longer owns."""
    request = running([1, 2, 3], Limits(5))
    request.plan(2, 0)
    draw(request, 4)
    assert (request.num_computed, request.num_output) == (3, 1)
    request.preempt()
    assert (request.state, request.num_computed) == (State.WAITING, 0)
    assert (request.slot_id, request.block_ids, request.num_preemptions) == (-1, [], 1)
    assert request.tokens == [1, 2, 3, 4]
    request.start(3, [5])
    assert request.num_due == 4
    draw(request, 5)
    request.finish("length")
    assert (request.state, request.finish_reason) == (State.FINISHED, "length")
    assert (request.slot_id, request.block_ids) == (-1, [])


def test_transitions_that_cannot_be() -> None:
    """K01: a token is appended twice, or to a request that does not run."""
    request = Request("r", [1, 2], Limits(5))
    for step in (
        lambda: request.plan(1, 0),
        lambda: request.land(0),
        lambda: request.append(3),
        lambda: request.expect_drafts(1),
        lambda: request.propose([3], None),
        request.preempt,
    ):
        with pytest.raises(AssertionError, match="'r' is waiting, not running"):
            step()
    request.start(0, [0])
    with pytest.raises(AssertionError, match="not waiting"):
        request.start(1, [1])
    with pytest.raises(AssertionError, match="too early"):
        request.plan(1, 0, 0)
    with pytest.raises(AssertionError, match="beyond its tokens"):
        request.plan(2, 0)
    with pytest.raises(AssertionError, match="never planned"):
        request.land(0)
    request.finish("abort")
    with pytest.raises(AssertionError, match="finished before"):
        request.finish("stop")


def test_steps_that_are_planned_before_tokens_are_known() -> None:
    """K02, K08: who waits for tokens seems to stand elsewhere than it may, or further from its
    end; or drafts of one step are verified by another."""
    request = running([1, 2], Limits(6))
    request.plan(2, 0, 1)
    assert (request.num_due, request.most_tokens, request.tokens_left(100)) == (1, 3, 5)
    request.expect_drafts(3)
    request.plan(4, 3, 0)
    assert (request.num_computed, request.num_due, request.num_drafts) == (3, 1, 0)
    assert (request.most_tokens, request.draw_place) == (7, 0)
    assert (request.tokens_left(100), request.tokens_left(6)) == (4, 2)
    request.land(0)
    request.append(5)
    request.propose([6, 7, 8], None)
    assert (request.num_due, request.most_tokens, request.tokens_left(100)) == (1, 7, 4)
    request.land(3)
    assert request.draft_ids == []
    for token_id in (6, 7):
        request.append(token_id)
        request.accept_draft()
    request.append(9)
    assert (request.tokens, request.num_computed) == ([1, 2, 5, 6, 7, 9], 5)
    assert (request.num_due, request.most_tokens, request.tokens_left(100)) == (1, 6, 2)


def test_a_preempted_request_waits_for_nothing() -> None:
    """K01, K02: what was being drawn for a request when it was preempted counts after it, too."""
    request = running([1, 2], Limits(6))
    request.plan(2, 0, 0)
    request.expect_drafts(3)
    request.plan(4, 3, 0)
    request.expect_drafts(3)
    request.preempt()
    request.start(1, [1])
    assert (request.num_due, request.most_tokens, request.tokens_left(100)) == (2, 2, 6)
    assert (request.num_drafts, request.draft_ids) == (0, [])
    with pytest.raises(AssertionError, match="never planned"):
        request.land(0)


def test_the_prompt_is_not_the_callers_list() -> None:
    """Output tokens appear in the list that the user gave as a prompt."""
    prompt = [1, 2]
    draw(running(prompt, Limits(5)), 3)
    assert prompt == [1, 2]


@pytest.mark.parametrize(
    ("limits", "output", "reason"),
    [
        (Limits(3, eos_ids=frozenset({EOS})), [5, 5], None),
        (Limits(3, eos_ids=frozenset({EOS})), [5, 5, 5], "length"),
        (Limits(1, eos_ids=frozenset({EOS})), [5], "length"),
        (Limits(3, eos_ids=frozenset({EOS})), [EOS], "stop"),
        (Limits(3, eos_ids=frozenset({EOS})), [5, 5, EOS], "stop"),
        (Limits(3, eos_ids=frozenset({EOS}), ignore_eos=True), [EOS], None),
        (
            Limits(3, eos_ids=frozenset({EOS}), ignore_eos=True, stop_token_ids=frozenset({EOS})),
            [EOS],
            "stop",
        ),
        (Limits(3, stop_token_ids=frozenset({4, 6})), [6], "stop"),
        (Limits(3, stop_token_ids=frozenset({4, 6})), [EOS], None),
        (Limits(3, min_tokens=2, eos_ids=frozenset({EOS})), [5, EOS], None),
        (Limits(3, min_tokens=2, eos_ids=frozenset({EOS})), [5, 5, EOS], "stop"),
        (Limits(2, min_tokens=2, eos_ids=frozenset({EOS})), [5, EOS], "length"),
        (Limits(99, eos_ids=frozenset({EOS})), [5, 5, 5, 5, 5], None),
        (Limits(99, eos_ids=frozenset({EOS})), [5, 5, 5, 5, 5, 5], "length"),
    ],
)
def test_end(limits: Limits, output: list[int], reason: str | None) -> None:
    """K08: a token too many or too few at a limit. max_model_len is 8, the prompt has 2 tokens."""
    request = running([1, 2], limits)
    draw(request, *output)
    assert end_reason(request, max_model_len=8) == reason


def test_scores_are_of_each_prompt_token_once() -> None:
    """G10, K01: a recomputed prompt is scored twice, or the last row scores an output token."""
    request = running([1, 2, 3, 4, 5], Limits(5), score_top=0)
    assert list(request.score_range(3)) == [0, 1, 2]
    request.plan(3, 0)
    assert list(request.score_range(2)) == [3]
    request.preempt()
    request.start(0, [0])
    assert list(request.score_range(2)) == []
    request.plan(2, 0)
    assert list(request.score_range(3)) == [3]
    draw(request, 6)
    assert list(request.score_range(1)) == []
    assert list(running([1, 2], Limits(5)).score_range(2)) == []
