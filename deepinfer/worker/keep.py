"""Which rows of a step the decoder half runs: a plan of these alone (spec 7.9, "compact").

Knows positions on the host. A sequence whose start only the device knows is past its prompt, and so
past its decoder start: all its rows are kept.
"""

from dataclasses import dataclass, replace

import numpy as np

from deepinfer.sampling.arrays import together
from deepinfer.step import Int64, StepPlan
from deepinfer.worker.follow import Starts


@dataclass(frozen=True)
class Kept:
    """rows: int64 [R], places of the kept rows among all, ascending. plan, starts: of the kept rows
    of those sequences that have any; sampled and scored rows are counted among them. Nothing in the
    plan follows a step: what there was to put in is known."""

    rows: Int64
    plan: StepPlan
    starts: Starts


def keep_rows(plan: StepPlan, starts: Starts) -> Kept | None:
    """What is left of a step without the rows before their sequence's decoder start; None if all
    is. Entries are made of all rows elsewhere."""
    counts = plan.num_rows.astype(np.int64)
    num_left_out = np.clip(plan.decoder_starts - starts.least, 0, counts)
    if not num_left_out.any():
        return None
    first_row = np.cumsum(counts) - counts
    sequence = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(sequence)) - first_row[sequence]
    is_kept = place >= num_left_out[sequence]
    number = np.cumsum(is_kept) - 1
    left = np.flatnonzero(counts > num_left_out)
    shift, at = together((num_left_out, left), starts.exact.device)
    kept_plan = replace(
        plan,
        slot_ids=plan.slot_ids[left],
        num_computed=plan.num_computed[left] + num_left_out[left].astype(np.int32),
        num_rows=(counts - num_left_out)[left].astype(np.int32),
        block_tables=plan.block_tables[left],
        decoder_starts=plan.decoder_starts[left],
        window_starts=plan.window_starts[left],
        entry_starts=plan.entry_starts[left],
        token_ids=plan.token_ids[is_kept],
        sample_rows=_among_kept(plan.sample_rows, is_kept, number),
        score_rows=_among_kept(plan.score_rows, is_kept, number),
        follows=np.full(len(left), -1, np.int32) if plan.follows.size else plan.follows,
    )
    kept_starts = Starts(
        (starts.exact + shift)[at],
        (starts.least + num_left_out)[left],
        (starts.most + num_left_out)[left],
    )
    return Kept(np.flatnonzero(is_kept), kept_plan, kept_starts)


def _among_kept(rows: np.ndarray, is_kept: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Places of rows among all -> among the kept ones."""
    assert is_kept[rows].all(), "a row that is sampled or scored was left out"
    return number[rows].astype(np.int32)
