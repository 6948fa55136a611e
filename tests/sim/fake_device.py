"""A device without a model: it stores tokens where the plan says and answers from what it stored.

Its next token is a hash of all tokens of the sequence, kept in the slot as a rolling state, so that
a row that is lost, doubled, out of order or in somebody else's slot or block changes the answer or
is noticed at once.
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
        self.states = [START] * num_slots
        self.lengths = [0] * num_slots

    def run(self, plan: StepPlan) -> Int32:
        """Store the step's rows; the tokens drawn for its sampled rows, int32 [R]."""
        ends = np.cumsum(plan.num_rows).tolist()
        drawn = dict.fromkeys(plan.sample_rows.tolist(), -1)
        rows = zip(
            plan.slot_ids.tolist(), plan.num_computed.tolist(), plan.num_rows.tolist(), strict=True
        )
        for place, (slot_id, start, num_rows) in enumerate(rows):
            new = plan.token_ids[ends[place] - num_rows : ends[place]]
            self._store(plan.block_tables[place], start, new)
            if start == 0:
                self.states[slot_id], self.lengths[slot_id] = START, 0
            assert self.lengths[slot_id] == start, "the slot goes on with another sequence"
            self.states[slot_id] = advance(self.states[slot_id], new.tolist())
            self.lengths[slot_id] += num_rows
            if ends[place] - 1 in drawn:
                drawn[ends[place] - 1] = next_token(self.states[slot_id])
        assert -1 not in drawn.values(), "a sampled row is no sequence's last"
        return np.array(list(drawn.values()), np.int32)

    def stored(self, block_ids: list[int], num_tokens: int) -> list[int]:
        """The first tokens that a sequence's blocks hold."""
        tokens: list[int] = self.blocks[block_ids].reshape(-1)[:num_tokens].tolist()
        return tokens

    def _store(self, block_table: Int32, start: int, new: Int32) -> None:
        positions = np.arange(start, start + len(new))
        block_ids = block_table[positions // BLOCK_TOKENS]
        assert (block_ids >= 0).all(), "a row without a block"
        self.blocks[block_ids, positions % BLOCK_TOKENS] = new
