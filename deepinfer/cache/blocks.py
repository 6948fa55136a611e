"""`BlockPool`: which blocks have owners, and what is kept in the others until it is overwritten.

Knows ids and keys only: neither what a block holds, nor who owns it, nor what a key is made of.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """Blocks 0 .. num_blocks - 1. Every operation takes constant time for each block it names.

    A block is owned, by one or more; or kept: nobody owns it, its content has a key and may be
    wanted again; or empty. Kept and empty blocks are free. Empty ones are handed out first, the
    one that was freed first before the others; then kept ones, the one that has had no owner for
    longest before the others. What was freed last stays whole for longest.

    on_evict(block_id, key): called by `allocate` for each kept block that it hands out, before it
    returns: the content is whole until the new owner writes. It must not use the pool.

    num_registered, num_duplicates, num_evicted: keys taken, keys that another block had already,
    kept blocks handed out; counted from the start. Whoever looks up for a request counts hits.
    """

    def __init__(
        self, num_blocks: int, on_evict: Callable[[int, bytes], None] | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self.num_registered = self.num_duplicates = self.num_evicted = 0
        self._on_evict = on_evict
        self._num_owners = [0] * num_blocks
        self._key_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._empty = deque(range(num_blocks))
        self._kept: OrderedDict[int, None] = OrderedDict()  # the next to be evicted first

    @property
    def num_free(self) -> int:
        """Blocks without an owner."""
        return len(self._empty) + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Blocks without an owner whose content can be found."""
        return len(self._kept)

    def num_owners(self, block_id: int) -> int:
        """Owners of a block, 0 if it is free."""
        self._check_known(block_id)
        return self._num_owners[block_id]

    def key(self, block_id: int) -> bytes | None:
        """The key that the block is found by, if it has one."""
        self._check_known(block_id)
        return self._key_of[block_id]

    def find(self, key: bytes) -> int | None:
        """The block with this content, owned or kept. Share it before anything is allocated."""
        return self._block_of.get(key)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """So many free blocks, each with one owner now; None, and no change, if there are fewer."""
        if num_blocks > self.num_free:
            return None
        block_ids = [
            self._empty.popleft() if self._empty else self._evict() for _ in range(num_blocks)
        ]
        for block_id in block_ids:
            self._num_owners[block_id] = 1
        return block_ids

    def share(self, block_ids: Sequence[int]) -> None:
        """One more owner for each block; all are owned already, or kept."""
        for block_id in block_ids:
            self._check_known(block_id)
            if block_id in self._kept:
                del self._kept[block_id]
            else:
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
            if self._num_owners[block_id]:
                continue
            if self._key_of[block_id] is None:
                self._empty.append(block_id)
            else:
                self._kept[block_id] = None

    def register(self, block_id: int, key: bytes) -> int:
        """An owned block is complete, and its content has this key from now on.

        Returns the block that is found by the key: this one, unless an earlier one has the key.
        Then this one stays its owner's own, without a key; the owner may share the other instead.
        """
        self._check_owned(block_id)
        own_key = self._key_of[block_id]
        assert own_key is None or own_key == key, f"block {block_id} has another key"
        found = self._block_of.setdefault(key, block_id)
        if found != block_id:
            self.num_duplicates += 1
        elif own_key is None:
            self._key_of[block_id] = key
            self.num_registered += 1
        return found

    def forget(self, keys: Iterable[bytes]) -> None:
        """Nothing is found by these keys any more; those that no block has are passed over.

        An owned block stays with its owners. A kept one is empty; that is no eviction.
        """
        for key in keys:
            block_id = self._block_of.pop(key, None)
            if block_id is None:
                continue
            self._key_of[block_id] = None
            if block_id in self._kept:
                del self._kept[block_id]
                self._empty.append(block_id)

    def clear(self) -> None:
        """Forget all keys. Owners of blocks that are out of date must not register them again."""
        self.forget(list(self._block_of))

    def _evict(self) -> int:
        block_id, _ = self._kept.popitem(last=False)
        key = self._key_of[block_id]
        assert key is not None, f"block {block_id} was kept without a key"
        self._key_of[block_id] = None
        del self._block_of[key]
        self.num_evicted += 1
        if self._on_evict is not None:
            self._on_evict(block_id, key)
        return block_id

    def _check_known(self, block_id: int) -> None:
        assert 0 <= block_id < self.num_blocks, f"there is no block {block_id}"

    def _check_owned(self, block_id: int) -> None:
        self._check_known(block_id)
        assert self._num_owners[block_id], f"block {block_id} is free already"
