"""Between the device's blocks and the tiers behind them: what is copied, and when.

A block is copied to the tiers as soon as it is whole, so nothing has to be saved in a hurry when
room is needed. Knows blocks, keys and blobs. Calls take their turn on the lane: a block is read
before a later step can overwrite it, and written before the rows that read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from deepinfer.cache.tiers import Tiers
from deepinfer.scheduler.memory import Memory
from deepinfer.worker.lane import Lane, Pending


@dataclass
class Tiering:
    """The traffic of one engine."""

    memory: Memory
    lane: Lane
    _saves: list[tuple[Sequence[bytes], Pending[list[bytes]]]] = field(default_factory=list)

    @property
    def _tiers(self) -> Tiers | None:
        return None if self.memory.prefix is None else self.memory.prefix.tiers

    def load(self) -> None:
        """Before a step is launched: write the blocks that it found in a tier."""
        found, self.memory.to_load = self.memory.to_load, []
        if found:
            block_ids, blobs = zip(*found, strict=True)
            self.lane.load(block_ids, blobs)

    def save(self) -> None:
        """After a step was taken in: have the blocks copied that are whole now."""
        new, self.memory.to_save = self.memory.to_save, []
        if new:
            block_ids, keys = zip(*new, strict=True)
            self._saves.append((keys, self.lane.save(block_ids)))

    def store(self) -> None:
        """Hand the tiers what was copied; waits for the copies."""
        saves, self._saves = self._saves, []
        for keys, pending in saves:
            assert self._tiers is not None  # or nothing is saved
            for key, blob in zip(keys, pending.result(), strict=True):
                self._tiers.put(key, blob)

    def lose(self) -> None:
        """The steps under way were broken off."""
        self._saves = []

    def close(self) -> None:
        """Write what is still to be written."""
        if self._tiers is not None:
            self._tiers.close()
