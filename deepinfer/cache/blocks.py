"""`BlockPool`: which blocks are free, and how many owners each of the others has.

Knows ids only: neither what a block holds nor who owns it.
"""

from collections import deque
from collections.abc import Sequence


class BlockPool:
    """Blocks 0 .. num_blocks - 1. Every operation takes constant time for each block it names.

    The block that was freed first is handed out first, so that what was freed last stays whole for
    longest.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_owners = [0] * num_blocks
        self._free = deque(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks without an owner."""
        return len(self._free)

    def num_owners(self, block_id: int) -> int:
        """Owners of a block, 0 if it is free."""
        self._check_known(block_id)
        return self._num_owners[block_id]

    def allocate(self, num_blocks: int) -> list[int] | None:
        """So many free blocks, each with one owner now; None, and no change, if there are fewer."""
        if num_blocks > len(self._free):
            return None
        block_ids = [self._free.popleft() for _ in range(num_blocks)]
        for block_id in block_ids:
            self._num_owners[block_id] = 1
        return block_ids

    def share(self, block_ids: Sequence[int]) -> None:
        """One more owner for each block; all have an owner already."""
        for block_id in block_ids:
            self._check_owned(block_id)
            self._num_owners[block_id] += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """One owner less for each block; a block without owners is free.

        A sequence's blocks are given in order and freed from its end: the start of a sequence is
        what another one may begin with, and should be handed out last.
        """
        for block_id in reversed(block_ids):
            self._check_owned(block_id)
            self._num_owners[block_id] -= 1
            if not self._num_owners[block_id]:
                self._free.append(block_id)

    def _check_known(self, block_id: int) -> None:
        assert 0 <= block_id < self.num_blocks, f"there is no block {block_id}"

    def _check_owned(self, block_id: int) -> None:
        self._check_known(block_id)
        assert self._num_owners[block_id], f"block {block_id} is free already"
