"""A device without a model: it stores texts where the plan says and answers from what it stored.

Each row leaves the whole text up to its token, in its slot and in its block, and the next token is
a hash of that text: a row that is lost, doubled, out of order or in somebody else's slot or block
changes the answer or is noticed at once. A slot that starts behind a hit goes on with the text that
it finds in the blocks. Rows of the last step may be taken back, as far as they were drafts.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple, TypeVar

import numpy as np

from deepinfer.cache.layout import BLOCK_TOKENS, SLACK_ROWS
from deepinfer.step import StepPlan
from tests.sim.texts import ROOT, Texts, advance, next_token

VOCAB_SIZE = 1000

T = TypeVar("T")


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
    """Blocks and slots of texts. What a freed one holds stays there, as in real life.

    window, depth: of the layers whose windows a replay has to rebuild.
    """

    def __init__(
        self, num_blocks: int, num_slots: int, seed: int = 0, *, window: int = 8, depth: int = 3
    ) -> None:
        self.texts, self.window, self.depth = Texts(), window, depth
        self.blocks = np.full((num_blocks, BLOCK_TOKENS), -1, np.int64)
        # The text after each token; and how far the last step may be taken back.
        self.slots: list[list[int]] = [[ROOT] for _ in range(num_slots)]
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
        """Forget launched and sampled steps: no later plan follows one of them. Calls that were not
        made yet may be made or not, from one on none."""
        while self._calls and self._rng.random() < 0.5:
            self._calls.popleft()()
        self._calls.clear()
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
            if start == plan.window_starts[place]:
                known = plan.known_ids[plan.known_slots == slot_id].tolist()
                self._begin(slot_id, plan.block_tables[place], start, known)
            starts = int(plan.window_starts[place]), int(plan.entry_starts[place])
            self._run(slot_id, plan.block_tables[place], start, new, starts)
            self.firm[slot_id] = start + len(new) - max(len(own) - 1, 0)
            if own:
                last = start + len(new) - len(own)
                after = [self.texts.states[one] for one in self.slots[slot_id][last + 1 :]]
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
            text = self.slots[slot_id][start + 1 + place]
            state = advance(self.texts.states[text], token_ids[place : place + 1])
            for _ in range(num_drafts):
                is_right = self._rng.random() < sure
                ids.append(next_token(state) if is_right else self._rng.randrange(VOCAB_SIZE))
                state = advance(state, ids[-1:])
            self._proposed[number] = ids
        return [self._proposed[number] for number in sequences]

    def stored(self, block_ids: list[int], num_tokens: int) -> list[int]:
        """The first tokens that a sequence's blocks hold."""
        held = self.blocks[block_ids].reshape(-1)[:num_tokens].tolist()
        return [self.texts.tokens[text] for text in held]

    def save(self, block_ids: Sequence[int]) -> list[bytes]:
        """What blocks hold, as blobs."""
        return [self.blocks[block_id].tobytes() for block_id in block_ids]

    def load(self, block_ids: Sequence[int], blobs: Sequence[bytes]) -> None:
        """Write blobs into blocks."""
        for block_id, blob in zip(block_ids, blobs, strict=True):
            self.blocks[block_id] = np.frombuffer(blob, np.int64)

    def _begin(self, slot_id: int, table: np.ndarray, start: int, known: list[int]) -> None:
        """Nothing of the slot's last tenant is there; of its own text, the tokens just before."""
        text = int(self.blocks[table[(start - 1) // BLOCK_TOKENS], (start - 1) % BLOCK_TOKENS])
        text = text if start else ROOT
        self.slots[slot_id] = [-1] * start + [text]
        self.firm[slot_id] = start
        assert known == (self.texts.last_tokens(text, SLACK_ROWS)), "n-grams of another text"

    def _run(
        self, slot_id: int, table: np.ndarray, start: int, new: list[int], starts: tuple[int, int]
    ) -> None:
        """starts: the first row whose windows are there, the first that writes an entry."""
        slot, texts = self.slots[slot_id], self.texts
        window_start, entry_start = starts
        assert self.firm[slot_id] <= start < len(slot), "the slot goes on with another one"
        del slot[start + 1 :]
        for position, token_id in enumerate(new, start):
            block_id, place = table[position // BLOCK_TOKENS], position % BLOCK_TOKENS
            assert block_id >= 0, "a row without a block"
            if position < entry_start:
                text = int(self.blocks[block_id, place])
                assert texts.tokens[text] == token_id, "a hit on another text"
                assert texts.parents[text] == slot[-1], "a block behind another text"
            else:
                turn = texts.turns[slot[-1]]
                if position == entry_start > 0:
                    turn = self.turn_behind_hit(turn, entry_start, window_start)
                text = texts.longer(slot[-1], token_id, turn)
                self.blocks[block_id, place] = text
            slot.append(text)

    def turn_behind_hit(self, turn: int, num_hit: int, first: int) -> int:
        """Where what follows a hit last turned into an approximation, 0 if it never did.

        turn: of the hit's own text. first: the row at which the replay begins. Behind an earlier
        turn the same rows must see the same, no more and no less.
        """
        exact = max(0, num_hit - self.depth * (self.window - 1))
        if first == (max(exact, turn - self.window) if turn else exact):
            return turn
        assert first == num_hit - self.window, "neither an exact nor a bounded replay"
        return num_hit
