"""What steers a continuation: when a grammar begins and ends, and how thoughts are cut."""

from itertools import product

import numpy as np
import pytest

from deepinfer.engine.steering import GrammarState, Steering, ThinkingLimit, thinking_limit
from deepinfer.sampling_params import FREE

END, OTHER_END, THINK, THINK_END = 1, 2, 8, 9
VOCAB_SIZE = 40


class Words:
    """A grammar of a few sequences of tokens."""

    def __init__(self, *words: tuple[int, ...]) -> None:
        self._words = words
        self.tokens: tuple[int, ...] = ()

    def _next(self) -> set[int]:
        size = len(self.tokens)
        return {w[size] for w in self._words if w[:size] == self.tokens and len(w) > size}

    def accept_token(self, token_id: int) -> bool:
        if token_id not in self._next():
            return False
        self.tokens = (*self.tokens, token_id)
        return True

    def fill_next_token_bitmask(self, bitmask: np.ndarray, index: int = 0) -> bool:
        bitmask[index] = 0
        for token_id in self._next():
            bitmask[index].view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)
        return True

    def is_completed(self) -> bool:
        return self.tokens in self._words

    def rollback(self, num_tokens: int) -> None:
        assert 0 < num_tokens <= len(self.tokens)
        self.tokens = self.tokens[:-num_tokens]


def allowed(state: GrammarState) -> list[int] | None:
    mask = state.mask()
    if mask is None:
        return None
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[:VOCAB_SIZE]).tolist()


def state_of(*words: tuple[int, ...], **options: object) -> GrammarState:
    return GrammarState(Words(*words), (END, OTHER_END), VOCAB_SIZE, **options)


def test_the_end_comes_only_where_the_text_is_complete() -> None:
    """E14: a stop token ends half an answer, or a complete answer never ends."""
    state = state_of((5, 33), (5, 33, 7))
    assert allowed(state) == [5]
    assert state.add(5)
    assert allowed(state) == [33]
    assert not state.add(END)
    assert state.add(33)
    assert allowed(state) == [END, OTHER_END, 7]
    assert state.may_end
    assert not state.must_end
    assert state.add(OTHER_END)


def test_an_end_token_that_is_text_too() -> None:
    """E14: a stop token is legal inside the text, fires early, and cuts the answer."""
    state = state_of((OTHER_END, 5), (OTHER_END, 5, OTHER_END, 6))
    assert allowed(state) == []  # the end token is never text
    other = state_of((4, 5))
    other.add(4)
    other.add(5)
    assert allowed(other) == [END, OTHER_END]
    assert other.must_end


def test_a_token_that_the_grammar_forbids() -> None:
    """A forced token breaks the text, and the answer goes on as if nothing had happened."""
    state = state_of((5, 6))
    assert not state.add(6)
    assert state.add(5)


@pytest.mark.parametrize("before", [(), (7,), (3,), (3, 3), (4, 3), (3, 7)])
def test_the_grammar_begins_after_the_trigger(before: tuple[int, ...]) -> None:
    """E02, E16: thoughts are constrained, or what follows them is not."""
    state = state_of((5,), trigger_ids=(3, 4))
    for token_id in before:
        assert state.add(token_id)
        assert allowed(state) is None
        assert state.banned() == [END, OTHER_END]
        assert not state.may_end
    for token_id in (3, 4):
        assert not state.is_on
        assert state.add(token_id)
    assert state.is_on
    assert allowed(state) == [5]
    assert state.banned() == []


@pytest.mark.parametrize("trigger", [(3, 3, 4), (3, 4, 3, 4, 7), (3, 3, 3)])
def test_triggers_that_overlap_themselves(trigger: tuple[int, ...]) -> None:
    """A beginning of the trigger inside the trigger is forgotten, and it is never seen."""
    for before in product((3, 4, 7), repeat=4):
        state = state_of((5,), trigger_ids=trigger)
        tokens = (*before, *trigger)
        ends = [
            n for n in range(len(tokens) + 1) if tokens[max(0, n - len(trigger)) : n] == trigger
        ]
        for number, token_id in enumerate(tokens, 1):
            state.add(token_id)
            assert state.is_on == (number >= ends[0])
            if state.is_on:
                break


@pytest.mark.parametrize("bound", [6, END])
def test_the_bound_token_forces_the_trigger(bound: int) -> None:
    """The model says it is done thinking in its own way, and the answer never begins."""
    state = state_of((5,), trigger_ids=(3, 4), bound_id=bound)
    assert state.forced() == FREE
    assert bound not in state.banned()
    state.add(7)
    state.add(bound)
    assert state.forced() == 3
    state.add(3)
    assert state.forced() == 4
    state.add(4)
    assert state.forced() == FREE
    assert allowed(state) == [5]


def test_thoughts_are_cut_at_the_limit() -> None:
    """A limit of n tokens lets n + 1 through, or cuts the answer as well."""
    limit = ThinkingLimit(THINK_END, 2)
    steering = Steering(thinking=limit)
    forced = []
    for token_id in (5, 6, THINK_END, 7, 7, 7):
        forced.append(steering.forced())
        steering.add(token_id)
    assert forced == [FREE, FREE, THINK_END, FREE, FREE, FREE]
    assert ThinkingLimit(THINK_END, 0).forced() == THINK_END


@pytest.mark.parametrize(
    ("prompt", "limited"),
    [
        ([5, THINK], True),
        ([THINK, 5, 5], True),
        ([5, THINK_END], False),
        ([THINK, 5, THINK_END, 6], False),
        ([THINK_END, THINK], True),
        ([5, 6], False),
    ],
)
def test_the_prompt_tells_whether_there_are_thoughts(prompt: list[int], limited: bool) -> None:
    """J09: the limit follows some switch, and not what the prompt says."""
    found = thinking_limit(prompt, 3, (THINK, THINK_END))
    assert (found is not None) == limited
    assert thinking_limit(prompt, None, (THINK, THINK_END)) is None
    assert thinking_limit(prompt, 3, None) is None


def test_a_running_grammar_is_not_interrupted() -> None:
    """The forced end of thoughts lands in the middle of an answer."""
    state = state_of((5, 6, 7))
    steering = Steering(grammar=state, thinking=ThinkingLimit(THINK_END, 1))
    for token_id in (5, 6, 7):
        assert steering.forced() == FREE
        assert steering.add(token_id)


def test_thoughts_that_end_at_the_limit_are_the_trigger() -> None:
    """E16: the limit ends the thoughts, and the grammar does not notice."""
    state = state_of((5,), trigger_ids=(THINK_END,))
    steering = Steering(grammar=state, thinking=ThinkingLimit(THINK_END, 1))
    steering.add(5)
    assert steering.forced() == THINK_END
    steering.add(THINK_END)
    assert allowed(state) == [5]
