"""`Memory`: hands slots and blocks to requests and takes them back, whole or not at all.

Knows who owns what; decides nothing about who should.
"""

import numpy as np

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.layout import BLOCK_TOKENS, blocks_for
from deepinfer.cache.prefix import Chain
from deepinfer.cache.slots import SlotPool
from deepinfer.scheduler.prefix_cache import PrefixCache
from deepinfer.scheduler.request import Request
from deepinfer.step import Int32

# Running requests for one spare block when another is admitted. Without spare blocks the pool is
# full at once, and requests are preempted over and over. Simulated, 64 at once of 1,000 tokens on
# 256 blocks: without, 41 % of the rows are computed again; with one for every two, 2.5 %, in 4 %
# more steps; with one for each, 0.7 %, in 11 % more.
_RUNNING_PER_SPARE = 2


def spare_blocks(num_running: int) -> int:
    """Blocks to leave over when another request is admitted beside so many."""
    return num_running // _RUNNING_PER_SPARE


class Memory:
    """The two pools and the block tables.

    tables: int32 [num_slots, blocks of the longest sequence], the blocks of the slot's sequence in
        order, -1 beyond its last. Written only where a block comes or goes, so that a step reads
        its tables with one index.
    """

    def __init__(
        self,
        blocks: BlockPool,
        slots: SlotPool,
        max_model_len: int,
        prefix: PrefixCache | None = None,
    ) -> None:
        """prefix: None finds nothing of what others left."""
        self.blocks = blocks
        self.slots = slots
        self.prefix = prefix
        # For whoever drives the device. Blocks to write before the next step's rows run, with what;
        # blocks that are whole since the last step, and their keys.
        self.to_load: list[tuple[int, bytes]] = []
        self.to_save: list[tuple[int, bytes]] = []
        self.tables: Int32 = np.full((slots.num_slots, blocks_for(max_model_len)), -1, np.int32)

    def admit(self, request: Request, num_spare: int) -> bool:
        """Start a waiting request with a slot and blocks for all its tokens, if they are free.

        With room for one token more, which it will soon have, and `num_spare` blocks left over.
        """
        if not self.slots.num_free:
            return False
        num_blocks = blocks_for(len(request.tokens) + 1)
        chain = None if self.prefix is None else self.prefix.find(request, self.blocks)
        shared = {} if chain is None else self._share(chain)
        if num_blocks - len(shared) + num_spare > self.blocks.num_free:
            self.blocks.free(list(shared.values()))
            return False
        blobs = {} if chain is None else self._blobs(chain, shared)
        slot_id, new = self.slots.allocate(), self.blocks.allocate(num_blocks - len(shared))
        assert slot_id is not None, "a slot was free"
        assert new is not None, "blocks were free"
        left = iter(new)
        block_ids = [shared[i] if i in shared else next(left) for i in range(num_blocks)]
        request.start(slot_id, block_ids)
        self.tables[slot_id, :num_blocks] = block_ids
        if self.prefix is not None and chain is not None:
            for i, blob in blobs.items():
                self.blocks.register(block_ids[i], chain.keys[i])
                self.to_load.append((block_ids[i], blob))
            self.prefix.start(request, chain)
        return True

    def _share(self, chain: Chain) -> dict[int, int]:
        """Own the blocks of a chain that are on the device, by their number in it: before anything
        is allocated, which could evict them."""
        found = {i: self.blocks.find(key) for i, key in enumerate(chain.keys)}
        shared = {i: block_id for i, block_id in found.items() if block_id is not None}
        self.blocks.share(list(shared.values()))
        return shared

    def _blobs(self, chain: Chain, shared: dict[int, int]) -> dict[int, bytes]:
        """What the tiers have of the rest. The chain ends, and `shared` with it, where they turn
        out to have nothing."""
        blobs: dict[int, bytes] = {}
        for i, key in enumerate(chain.keys):
            if i in shared:
                continue
            blob = None
            if self.prefix is not None and self.prefix.tiers is not None:
                blob = self.prefix.tiers.get(key)
            if blob is None:
                chain.cut(i)
                behind = [number for number in shared if number > i]
                self.blocks.free([shared.pop(number) for number in behind])
                return blobs
            blobs[i] = blob
        return blobs

    def commit(self, request: Request, num_stored: int) -> None:
        """So many tokens of a running request are stored for good: others may find them."""
        if self.prefix is None:
            return

        tiers = self.prefix.tiers

        def publish(number: int, key: bytes) -> None:
            own = request.block_ids[number]
            found = self.blocks.register(own, key)
            if found == own:
                if tiers is not None and not tiers.has(key):
                    self.to_save.append((own, key))
            else:
                # The other one is found: with it the request's later blocks can be found, too.
                self.blocks.share([found])
                self.blocks.free([own])
                request.block_ids[number] = found
                self.tables[request.slot_id, number] = found

        self.prefix.commit(request, num_stored, publish)

    def forget_all(self) -> None:
        """Steps were broken off: what their blocks hold is anybody's guess."""
        self.blocks.clear()
        self.to_load, self.to_save = [], []

    def distrust(self, request: Request) -> None:
        """Nobody may find what the request has left."""
        if self.prefix is not None:
            self.prefix.distrust(request, self.blocks)
            self.to_save = [one for one in self.to_save if self.blocks.find(one[1]) is not None]

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
