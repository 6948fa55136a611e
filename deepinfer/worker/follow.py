"""What a step leaves on the device for the one after it: last tokens, and how far sequences got.

The host plans a step before it knows the tokens of the one before. It says which sequences follow
one of that step's (`StepPlan.follows`); here their tokens and positions are put in. Nothing waits.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.sampling.arrays import together
from deepinfer.step import Int64, SamplePlan, StepPlan


@dataclass(frozen=True)
class Starts:
    """Positions of the first rows of B sequences.

    exact: int64 [B] on the device. least, most: int64 [B] on the host, equal where all is known.
    """

    exact: Tensor
    least: Int64
    most: Int64


@dataclass(frozen=True)
class Sampled:
    """A step whose tokens were drawn, for S sequences.

    token_ids: int64 [R]. first_rows, num_drafts: int64 [S] on the host, the first of a sequence's
    rows of the sample plan, and how many drafts they verified. num_accepted: int64 [S], the drafts
    before the first row that drew another token. last_ids: int64 [S], the token of that row.
    """

    plan: StepPlan
    sample_plan: SamplePlan
    token_ids: Tensor
    first_rows: Int64
    num_drafts: Int64
    num_accepted: Tensor
    last_ids: Tensor

    def slots(self, sequences: np.ndarray) -> Int64:
        """Slots of some of the S sequences."""
        at = self.plan.sample_rows[self.first_rows[sequences]]
        ends = np.cumsum(self.plan.num_rows, dtype=np.int64)
        return self.plan.slot_ids[np.searchsorted(ends, at, side="right")].astype(np.int64)


@dataclass(frozen=True)
class Proposed:
    """Drafts of some sequences of a `Sampled`. rows: int64 [S] on the host, the row of a sequence
    in token_ids, -1 for none. token_ids: int64 [A, n]."""

    rows: Int64
    token_ids: Tensor


def take_sample(plan: StepPlan, sample_plan: SamplePlan, token_ids: Tensor) -> Sampled:
    """What the tokens int64 [R] of a step mean for the sequences that they were drawn for."""
    num_rows = len(token_ids)
    drafts = sample_plan.draft_ids
    ends = np.flatnonzero(drafts < 0) + 1 if drafts.size else np.arange(1, num_rows + 1)
    num_drafts = np.diff(ends, prepend=0) - 1
    first_rows = ends - 1 - num_drafts
    most = int(num_drafts.max(initial=0))
    if not most:
        # Each row is a sequence's first.
        none, last_ids = torch.zeros_like(token_ids), token_ids
        return Sampled(plan, sample_plan, token_ids, first_rows, num_drafts, none, last_ids)
    at = np.minimum(first_rows[:, None] + np.arange(most), num_rows - 1)
    drafted = np.where(np.arange(most) < num_drafts[:, None], drafts[at], -1)
    first, places, wanted = together((first_rows, at, drafted), token_ids.device)
    equal = token_ids[places] == wanted
    num_accepted = equal.to(torch.int64).cumprod(-1).sum(-1)
    last_ids = token_ids[first + num_accepted]
    return Sampled(plan, sample_plan, token_ids, first_rows, num_drafts, num_accepted, last_ids)


def follow(
    plan: StepPlan, sampled: Sampled | None, proposed: Proposed | None, device: str
) -> tuple[Starts, Tensor]:
    """Where the plan's sequences start, and its tokens int64 [T], with what it left open put in."""
    least = plan.num_computed.astype(np.int64)
    places = np.flatnonzero(plan.follows >= 0)
    if not places.size:
        exact, token_ids = together((least, plan.token_ids), device)
        return Starts(exact, least, least), token_ids
    assert sampled is not None
    followed = plan.follows[places]
    first_rows = (np.cumsum(plan.num_rows, dtype=np.int64) - plan.num_rows)[places]
    most = least.copy()
    most[places] += sampled.num_drafts[followed]
    num_drafts = plan.num_rows[places].astype(np.int64) - 1
    which = np.repeat(np.arange(len(places)), num_drafts)
    number = np.arange(len(which)) - np.repeat(np.cumsum(num_drafts) - num_drafts, num_drafts)
    draft_rows = first_rows[which] + 1 + number
    if which.size:
        assert proposed is not None
        drafts_of = proposed.rows[followed[which]]
        assert (drafts_of >= 0).all(), "a sequence verifies drafts that were never made"
    else:
        drafts_of = which
    exact, token_ids, at, of_step, first, *of_drafts = together(
        (least, plan.token_ids, places, followed, first_rows, draft_rows, drafts_of, number), device
    )
    exact.index_add_(0, at, sampled.num_accepted[of_step])
    token_ids.index_copy_(0, first, sampled.last_ids[of_step])
    if which.size:
        assert proposed is not None
        rows, row_of, number_of = of_drafts
        token_ids.index_copy_(0, rows, proposed.token_ids[row_of, number_of])
    return Starts(exact, least, most), token_ids
