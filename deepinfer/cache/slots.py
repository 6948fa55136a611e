"""`SlotPool`: one slot for each running sequence.

Knows ids only: neither what a slot holds nor whose it is.
"""


class SlotPool:
    """Slots 0 .. num_slots - 1, each free or taken."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._taken = [False] * num_slots

    @property
    def num_free(self) -> int:
        """Slots that nobody has."""
        return len(self._free)

    def allocate(self) -> int | None:
        """A free slot, taken now; None if there is none."""
        if not self._free:
            return None
        slot_id = self._free.pop()
        self._taken[slot_id] = True
        return slot_id

    def free(self, slot_id: int) -> None:
        """Give a taken slot back."""
        assert 0 <= slot_id < self.num_slots, f"there is no slot {slot_id}"
        assert self._taken[slot_id], f"slot {slot_id} is free already"
        self._taken[slot_id] = False
        self._free.append(slot_id)
