"""From the logits of the sampled rows to their tokens: the steps of this folder, put together.

Knows arrays and tensors of rows. Does not know requests.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepinfer.kernels.reference.noise import row_key
from deepinfer.sampling.arrays import on_device
from deepinfer.sampling.drafts import Proposed, numbers_of, rejection_rows, verify
from deepinfer.sampling.draw import Pick, draw
from deepinfer.sampling.logits import adjust_logits
from deepinfer.sampling.logprobs import Scored, score, spread_scores
from deepinfer.step import SamplePlan


class Drawn(NamedTuple):
    """The sampled rows' part of a `StepResult`, on the device.

    token_ids: int64 [R]. bad_rows: bool [R]. logprobs: of all rows if any row asked.
    """

    token_ids: Tensor
    bad_rows: Tensor
    logprobs: Scored | None


def sample(
    logits: Tensor, plan: SamplePlan, proposed: Proposed | None = None, *, pick: Pick
) -> Drawn:
    """A token for each row, and the log-probabilities that were asked for.

    logits: float32 [R, V] on any device, left as it is. A row with a logit that is NaN or +inf, or
    with no finite one, is bad: token 0, its neighbours untouched. So is a row whose tokens are all
    banned. A forced token wins over everything but a broken row.

    proposed: what the drafts were drawn from, of all `rejection_rows` of the plan. A bad row may
    follow a row that differs from its draft; then it says nothing, like the token of any such row.
    """
    adjusted = adjust_logits(logits, plan)
    best, token_ids = adjusted.max(-1)
    # A ban can hide a NaN, so the model's own logits are looked at as well.
    is_broken = ~(best if adjusted is logits else logits.amax(-1)).isfinite()
    forced = on_device(plan.forced, logits.device, torch.int64)
    is_bad = is_broken | (~best.isfinite() & (forced < 0))
    tested = rejection_rows(plan)
    drawn = np.setdiff1d(np.flatnonzero(plan.temperature > 0.0), tested, assume_unique=True)
    if drawn.size:
        token_ids[on_device(drawn, logits.device)] = _draw_rows(adjusted, plan, drawn, pick)
    if tested.size:
        assert proposed is not None
        place = on_device(tested, logits.device)
        token_ids[place] = verify(adjusted[place], plan, tested, proposed, pick=pick)
    token_ids = torch.where(forced >= 0, forced, token_ids).masked_fill(is_bad, 0)
    return Drawn(token_ids, is_bad, _score_rows(logits, token_ids, plan))


def _draw_rows(logits: Tensor, plan: SamplePlan, rows: np.ndarray, pick: Pick) -> Tensor:
    all_rows = len(rows) == len(logits)
    return draw(
        logits if all_rows else logits[on_device(rows, logits.device)],
        on_device(row_key(*numbers_of(plan, rows)), logits.device),
        temperature=plan.temperature[rows],
        top_k=plan.top_k[rows],
        top_p=plan.top_p[rows],
        min_p=plan.min_p[rows],
        pick=pick,
    )


def _score_rows(logits: Tensor, token_ids: Tensor, plan: SamplePlan) -> Scored | None:
    rows = np.flatnonzero(plan.num_logprobs >= 0)
    if not rows.size:
        return None
    place = on_device(rows, logits.device)
    asked = score(logits[place], token_ids[place], int(plan.num_logprobs.max()))
    return spread_scores(asked, place, len(logits))
