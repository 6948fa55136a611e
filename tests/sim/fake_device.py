"""A device without a model: it stores tokens where the plan says and answers from what it stored.

Its next token is a hash of all tokens of the sequence, kept in the slot as rolling states, so that
a row that is lost, doubled, out of order or in somebody else's slot or block changes the answer or
is noticed at once. Rows of the last step may be taken back, as far as they were drafts.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple, TypeVar

import numpy as np

from deepinfer.cache.layout import BLOCK_TOKENS
from deepinfer.step import StepPlan

VOCAB_SIZE = 1000
START = 1

T = TypeVar("T")


def advance(state: int, token_ids: Iterable[int]) -> int:
    """The rolling state after these tokens."""
    for token_id in token_ids:
        state = (state * 1_000_003 + token_id + 1) % (2**31 - 1)
    return state


def next_token(state: int) -> int:
    """The token that follows."""
    return state % VOCAB_SIZE


class Drawn(NamedTuple):
    """What a step drew for a sequence: a token behind its last one, and one behind each draft.

    start: position of its last token. draft_ids: of the rows behind that one.
    """

    slot_id: int
    start: int
    token_ids: list[int]
    draft_ids: list[int]

    @property
    def num_accepted(self) -> int:
        """Drafts before the first that is not the token in its place."""
        pairs = zip(self.token_ids, self.draft_ids, strict=False)
        return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


class FakeDevice:
    """Blocks of tokens, slots of states. What a freed one holds stays there, as in real life."""

    def __init__(self, num_blocks: int, num_slots: int, seed: int = 0) -> None:
        self.blocks = np.full((num_blocks, BLOCK_TOKENS), -1, np.int32)
        # After each token; and how far the last step may be taken back.
        self.states: list[list[int]] = [[START] for _ in range(num_slots)]
        self.firm = [0] * num_slots
        self._rng = random.Random(seed)
        # Of the step that was launched last, and of the one that was sampled last.
        self._launched: list[Drawn] | None = None
        self._sampled: list[Drawn] = []
        self._proposed: dict[int, list[int]] = {}
        self._calls: deque[Callable[[], None]] = deque()

    def call(self, function: Callable[[], T]) -> Callable[[], T]:
        """Have a function called at some time, after those before it; returns how to wait for it.

        Nothing that the caller changes meanwhile may reach it.
        """
        found: list[T] = []
        self._calls.append(lambda: found.append(function()))
        while self._calls and self._rng.random() < 0.3:
            self._calls.popleft()()

        def result() -> T:
            while not found:
                self._calls.popleft()()
            return found[0]

        return result

    def catch_up(self) -> None:
        """Make all calls."""
        while self._calls:
            self._calls.popleft()()

    def lose_step(self) -> None:
        """Forget launched and sampled steps: no later plan follows one of them."""
        self.catch_up()
        self._launched, self._sampled, self._proposed = None, [], {}

    def launch(self, plan: StepPlan) -> None:
        """Store the step's rows; those that follow the step before, where that has led to."""
        assert self._launched is None, "its tokens were never drawn"
        num_rows = plan.num_rows.tolist()
        ends = np.cumsum(plan.num_rows).tolist()
        follows = plan.follows.tolist() or [-1] * len(num_rows)
        sampled = set(plan.sample_rows.tolist())
        self._launched = []
        for place, end in enumerate(ends):
            first, start = end - num_rows[place], int(plan.num_computed[place])
            new = plan.token_ids[first:end].tolist()
            own = [row for row in range(first, end) if row in sampled]
            assert own == list(range(end - len(own), end)), "not the last rows"
            if follows[place] >= 0:
                assert len(own) == len(new), "a row before one that is known"
                before = self._sampled[follows[place]]
                start += before.num_accepted
                new = [before.token_ids[before.num_accepted]]
                if len(own) > 1:
                    new += self._proposed[follows[place]][: len(own) - 1]
                assert len(new) == len(own), "more drafts than were made"
            slot_id = int(plan.slot_ids[place])
            self._store(plan.block_tables[place], start, new)
            self._run(slot_id, start, new, max(len(own) - 1, 0))
            if own:
                last = start + len(new) - len(own)
                after = self.states[slot_id][last + 1 :]
                drafts = new[len(new) - len(own) + 1 :]
                self._launched.append(Drawn(slot_id, last, list(map(next_token, after)), drafts))

    def sample(self) -> list[Drawn]:
        """What the launched step drew, of each sequence that draws."""
        assert self._launched is not None, "nothing was launched"
        self._sampled, self._launched, self._proposed = self._launched, None, {}
        return self._sampled

    def draft(self, sequences: Sequence[int], num_drafts: int, sure: float) -> list[list[int]]:
        """Drafts behind what was drawn for some of the sampled: each right with this chance."""
        for number in sequences:
            slot_id, start, token_ids, _ = drawn = self._sampled[number]
            place, ids = drawn.num_accepted, []
            state = advance(self.states[slot_id][start + 1 + place], token_ids[place : place + 1])
            for _ in range(num_drafts):
                is_right = self._rng.random() < sure
                ids.append(next_token(state) if is_right else self._rng.randrange(VOCAB_SIZE))
                state = advance(state, ids[-1:])
            self._proposed[number] = ids
        return [self._proposed[number] for number in sequences]

    def stored(self, block_ids: list[int], num_tokens: int) -> list[int]:
        """The first tokens that a sequence's blocks hold."""
        tokens: list[int] = self.blocks[block_ids].reshape(-1)[:num_tokens].tolist()
        return tokens

    def _run(self, slot_id: int, start: int, new: list[int], num_drafts: int) -> None:
        if start == 0:
            self.states[slot_id], self.firm[slot_id] = [START], 0
        states = self.states[slot_id]
        assert self.firm[slot_id] <= start < len(states), "the slot goes on with another one"
        del states[start + 1 :]
        for token_id in new:
            states.append(advance(states[-1], [token_id]))
        self.firm[slot_id] = start + len(new) - num_drafts

    def _store(self, block_table: np.ndarray, start: int, new: list[int]) -> None:
        positions = np.arange(start, start + len(new))
        block_ids = block_table[positions // BLOCK_TOKENS]
        assert (block_ids >= 0).all(), "a row without a block"
        self.blocks[block_ids, positions % BLOCK_TOKENS] = new
