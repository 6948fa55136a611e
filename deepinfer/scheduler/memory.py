"""`Memory`: hands slots and blocks to requests and takes them back, whole or not at all.

Knows who owns what; decides nothing about who should.
"""

import numpy as np

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.layout import BLOCK_TOKENS, blocks_for
from deepinfer.cache.slots import SlotPool
from deepinfer.scheduler.request import Request
from deepinfer.step import Int32


class Memory:
    """The two pools and the block tables.

    tables: int32 [num_slots, blocks of the longest sequence], the blocks of the slot's sequence in
        order, -1 beyond its last. Written only where a block comes or goes, so that a step reads
        its tables with one index.
    """

    def __init__(self, blocks: BlockPool, slots: SlotPool, max_model_len: int) -> None:
        self.blocks = blocks
        self.slots = slots
        self.tables: Int32 = np.full((slots.num_slots, blocks_for(max_model_len)), -1, np.int32)

    def admit(self, request: Request, num_spare: int) -> bool:
        """Start a waiting request with a slot and blocks for all its tokens, if they are free.

        With room for one token more, which it will soon have, and `num_spare` blocks left over.
        """
        num_blocks = blocks_for(len(request.tokens) + 1)
        if not self.slots.num_free or num_blocks + num_spare > self.blocks.num_free:
            return False
        slot_id, block_ids = self.slots.allocate(), self.blocks.allocate(num_blocks)
        assert slot_id is not None, "a slot was free"
        assert block_ids is not None, "blocks were free"
        request.start(slot_id, block_ids)
        self.tables[slot_id, :num_blocks] = block_ids
        return True

    def grow(self, request: Request) -> bool:
        """Give a running request the block that its last token needs, wherever that may come to
        stand; False if none is free."""
        return self.reach(request, request.most_tokens) >= request.most_tokens

    def reach(self, request: Request, num_tokens: int) -> int:
        """Give a running request the blocks for so many tokens, as far as any are free.

        Returns for how many tokens, up to `num_tokens`, it has blocks then.
        """
        num_blocks = len(request.block_ids)
        wanted = min(blocks_for(num_tokens) - num_blocks, self.blocks.num_free)
        if wanted > 0:
            block_ids = self.blocks.allocate(wanted)
            assert block_ids is not None, "blocks were free"
            request.block_ids += block_ids
            self.tables[request.slot_id, num_blocks : num_blocks + wanted] = block_ids
        return min(num_tokens, len(request.block_ids) * BLOCK_TOKENS)

    def trim(self, request: Request) -> None:
        """Take back the blocks that neither a running request's tokens need nor a planned step."""
        num_blocks = blocks_for(request.most_tokens)
        if len(request.block_ids) > num_blocks:
            spare = request.block_ids[num_blocks:]
            del request.block_ids[num_blocks:]
            self.tables[request.slot_id, num_blocks : num_blocks + len(spare)] = -1
            self.blocks.free(spare)

    def release(self, request: Request) -> None:
        """Take back what a request owns. It must stop running at once."""
        if request.slot_id < 0:
            return
        self.tables[request.slot_id, : len(request.block_ids)] = -1
        self.blocks.free(request.block_ids)
        self.slots.free(request.slot_id)
