"""What became of drafts: counted for people to read. No decision rests on it."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deepinfer.scheduler.draft_schedule import Float64
from deepinfer.step import Float32, Int64

NUM_BINS = 10


def _zeros() -> Int64:
    return np.zeros(0, np.int64)


@dataclass
class DraftStats:
    """Counts since the start. Make more of them with `since`.

    num_steps: steps in which a token was drawn. num_rounds: sequences in them, each counted in each
    step. num_tokens: tokens that were emitted by them.
    num_drafted: drafts proposed. num_verified: of these, drafts that ran as rows.
    accepted_by_slot: int64 [n], accepted drafts by their place in the block, from 0.
    verified_by_slot: int64 [n], the same of verified ones.
    bins, bin_confidence, bin_accepted: calibration. Drafts whose turn came (all before them were
    accepted) in ten bins by confidence: how many, the sum of their confidences, how many accepted.
    """

    num_steps: int = 0
    num_rounds: int = 0
    num_tokens: int = 0
    num_drafted: int = 0
    accepted_by_slot: Int64 = field(default_factory=_zeros)
    verified_by_slot: Int64 = field(default_factory=_zeros)
    bins: Int64 = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    bin_confidence: Float64 = field(default_factory=lambda: np.zeros(NUM_BINS))
    bin_accepted: Int64 = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))

    @property
    def num_verified(self) -> int:
        """Drafts that ran as rows."""
        return int(self.verified_by_slot.sum())

    @property
    def num_accepted(self) -> int:
        """Drafts that were emitted."""
        return int(self.accepted_by_slot.sum())

    @property
    def accepted_len(self) -> float:
        """Tokens of a sequence in a step, on average: 1 and its accepted drafts. 0 before any."""
        return self.num_tokens / self.num_rounds if self.num_rounds else 0.0

    def drafted(self, num_drafts: int) -> None:
        """So many drafts were proposed."""
        self.num_drafted += num_drafts

    def step(self) -> None:
        """A step in which at least one token was drawn."""
        self.num_steps += 1

    def round(
        self, confidence: Float32 | None, num_verified: int, num_accepted: int, num_tokens: int
    ) -> None:
        """A sequence's part of a step.

        confidence: float32 [n] of its drafts, at least `num_verified`; None without any.
        num_accepted: those emitted; the text may have ended with the last of them. num_tokens: all
        that it emitted.
        """
        self.num_rounds += 1
        self.num_tokens += num_tokens
        if confidence is None or not num_verified:
            return
        self.verified_by_slot = _add(self.verified_by_slot, num_verified, num_verified)
        self.accepted_by_slot = _add(self.accepted_by_slot, num_accepted, num_verified)
        # The text may end with an accepted draft: then no token decided about the next.
        num_decided = num_tokens if num_accepted < num_verified else num_verified
        for slot, value in enumerate(np.nan_to_num(confidence[:num_decided]).tolist()):
            place = min(int(value * NUM_BINS), NUM_BINS - 1)
            self.bins[place] += 1
            self.bin_confidence[place] += value
            self.bin_accepted[place] += slot < num_accepted

    def copy(self) -> "DraftStats":
        """As it is now."""
        return deepcopy(self)

    def since(self, before: "DraftStats") -> "DraftStats":
        """What came after `before`, an earlier copy."""
        changes: dict[str, Any] = {
            name: value - _pad(getattr(before, name), value)
            if isinstance(value, np.ndarray)
            else value - getattr(before, name)
            for name, value in vars(self).items()
        }
        return DraftStats(**changes)

    def calibration(self) -> Sequence[tuple[float, float, int]]:
        """(mean confidence, share accepted, number) of each bin that has drafts."""
        return [
            (float(confidence / count), float(accepted / count), int(count))
            for count, confidence, accepted in zip(
                self.bins, self.bin_confidence, self.bin_accepted, strict=True
            )
            if count
        ]


def _add(by_slot: Int64, count: int, least: int) -> Int64:
    """One more in each of the first `count` places, of `least` or more."""
    if len(by_slot) < least:
        by_slot = np.concatenate((by_slot, np.zeros(least - len(by_slot), np.int64)))
    by_slot[:count] += 1
    return by_slot


def _pad(shorter: np.ndarray, longer: np.ndarray) -> np.ndarray:
    return np.concatenate((shorter, np.zeros(len(longer) - len(shorter), shorter.dtype)))
