"""What may happen to a request, and when its tokens end."""

import pytest

from deepinfer.scheduler.request import Limits, Request, State
from deepinfer.scheduler.update import end_reason

EOS = 9


def running(prompt: list[int], limits: Limits, score_top: int | None = None) -> Request:
    request = Request("r", prompt, limits, score_top)
    request.start(0, [0])
    return request


def draw(request: Request, *token_ids: int) -> None:
    """Compute all rows and append a token, for each of them."""
    for token_id in token_ids:
        request.advance(len(request.tokens) - request.num_computed)
        request.append(token_id)


def test_the_way_of_a_request() -> None:
    """K01: a preempted request loses its output, or keeps what it no longer owns."""
    request = running([1, 2, 3], Limits(5))
    request.advance(2)
    request.advance(1)
    request.append(4)
    assert (request.num_computed, request.num_output) == (3, 1)
    request.preempt()
    assert (request.state, request.num_computed) == (State.WAITING, 0)
    assert (request.slot_id, request.block_ids, request.num_preemptions) == (-1, [], 1)
    assert request.tokens == [1, 2, 3, 4]
    request.start(3, [5])
    request.advance(4)
    request.append(5)
    request.finish("length")
    assert (request.state, request.finish_reason) == (State.FINISHED, "length")
    assert (request.slot_id, request.block_ids) == (-1, [])


def test_transitions_that_cannot_be() -> None:
    """K01: a token is appended twice, or to a request that does not run."""
    request = Request("r", [1, 2], Limits(5))
    for step in (lambda: request.advance(1), lambda: request.append(3), request.preempt):
        with pytest.raises(AssertionError, match="'r' is waiting, not running"):
            step()
    request.start(0, [0])
    with pytest.raises(AssertionError, match="not waiting"):
        request.start(1, [1])
    request.advance(1)
    with pytest.raises(AssertionError, match="too early"):
        request.append(3)
    with pytest.raises(AssertionError, match="beyond its tokens"):
        request.advance(2)
    request.finish("abort")
    with pytest.raises(AssertionError, match="finished before"):
        request.finish("stop")


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
    request.advance(3)
    assert list(request.score_range(2)) == [3]
    request.preempt()
    request.start(0, [0])
    assert list(request.score_range(2)) == []
    request.advance(2)
    assert list(request.score_range(3)) == [3]
    request.advance(3)
    request.append(6)
    assert list(request.score_range(1)) == []
    assert list(running([1, 2], Limits(5)).score_range(2)) == []
