"""A device without a model: it stores tokens where the plan says and answers from what it stored.

Its next token is a hash of all tokens of the sequence, kept in the slot as rolling states, so that
a row that is lost, doubled, out of order or in somebody else's slot or block changes the answer or
is noticed at once. Rows of the last step may be taken back, as far as they were drafts.
"""

from collections.abc import Iterable

import numpy as np

from deepinfer.cache.layout import BLOCK_TOKENS
from deepinfer.step import Int32, StepPlan

VOCAB_SIZE = 1000
START = 1


def advance(state: int, token_ids: Iterable[int]) -> int:
    """The rolling state after these tokens."""
    for token_id in token_ids:
        state = (state * 1_000_003 + token_id + 1) % (2**31 - 1)
    return state


def next_token(state: int) -> int:
    """The token that follows."""
    return state % VOCAB_SIZE


class FakeDevice:
    """Blocks of tokens, slots of states. What a freed one holds stays there, as in real life."""

    def __init__(self, num_blocks: int, num_slots: int) -> None:
        self.blocks = np.full((num_blocks, BLOCK_TOKENS), -1, np.int32)
        # After each token; and how far the last step may be taken back.
        self.states: list[list[int]] = [[START] for _ in range(num_slots)]
        self.firm = [0] * num_slots

    def run(self, plan: StepPlan) -> Int32:
        """Store the step's rows; the tokens drawn for its sampled rows, int32 [R]."""
        ends = np.cumsum(plan.num_rows).tolist()
        sampled = set(plan.sample_rows.tolist())
        drawn: list[int] = []
        rows = zip(
            plan.slot_ids.tolist(), plan.num_computed.tolist(), plan.num_rows.tolist(), strict=True
        )
        for place, (slot_id, start, num_rows) in enumerate(rows):
            first = ends[place] - num_rows
            new = plan.token_ids[first : ends[place]]
            self._store(plan.block_tables[place], start, new)
            if start == 0:
                self.states[slot_id], self.firm[slot_id] = [START], 0
            states = self.states[slot_id]
            assert self.firm[slot_id] <= start < len(states), "the slot goes on with another one"
            del states[start + 1 :]
            for token_id in new.tolist():
                states.append(advance(states[-1], [token_id]))
            own = [row for row in range(first, ends[place]) if row in sampled]
            assert own == list(range(ends[place] - len(own), ends[place])), "not the last rows"
            self.firm[slot_id] = start + num_rows - max(len(own) - 1, 0)
            drawn += [next_token(states[start + 1 + row - first]) for row in own]
        assert len(drawn) == len(sampled)
        return np.array(drawn, np.int32)

    def stored(self, block_ids: list[int], num_tokens: int) -> list[int]:
        """The first tokens that a sequence's blocks hold."""
        tokens: list[int] = self.blocks[block_ids].reshape(-1)[:num_tokens].tolist()
        return tokens

    def _store(self, block_table: Int32, start: int, new: Int32) -> None:
        positions = np.arange(start, start + len(new))
        block_ids = block_table[positions // BLOCK_TOKENS]
        assert (block_ids >= 0).all(), "a row without a block"
        self.blocks[block_ids, positions % BLOCK_TOKENS] = new
