"""From the logits of the sampled rows to their tokens: the steps of this folder, put together.

Knows arrays and tensors of rows. Does not know requests.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepinfer.sampling.drafts import Proposed, rejection_rows, verify
from deepinfer.sampling.draw import draw
from deepinfer.sampling.logits import adjust_logits
from deepinfer.sampling.logprobs import LOWEST_LOGPROB, score
from deepinfer.step import Bool, Int32, SamplePlan, Scores


class Sampled(NamedTuple):
    """The sampled rows' part of a `StepResult`."""

    token_ids: Int32
    bad_rows: Bool
    logprobs: Scores | None


def sample(logits: Tensor, plan: SamplePlan, proposed: Proposed | None = None) -> Sampled:
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
    forced = torch.tensor(plan.forced, dtype=torch.int64, device=logits.device)
    is_bad = is_broken | (~best.isfinite() & (forced < 0))
    tested = rejection_rows(plan)
    drawn = np.setdiff1d(np.flatnonzero(plan.temperature > 0.0), tested, assume_unique=True)
    if drawn.size:
        token_ids[torch.tensor(drawn, device=logits.device)] = _draw_rows(adjusted, plan, drawn)
    if tested.size:
        assert proposed is not None
        place = torch.tensor(tested, device=logits.device)
        token_ids[place] = verify(adjusted[place], plan, tested, proposed)
    token_ids = torch.where(forced >= 0, forced, token_ids).masked_fill(is_bad, 0)
    return Sampled(
        token_ids=token_ids.to(torch.int32).cpu().numpy(),
        bad_rows=is_bad.cpu().numpy(),
        logprobs=_score_rows(logits, token_ids, plan),
    )


def _draw_rows(logits: Tensor, plan: SamplePlan, rows: np.ndarray) -> Tensor:
    all_rows = len(rows) == len(logits)
    return draw(
        logits if all_rows else logits[torch.tensor(rows, device=logits.device)],
        temperature=plan.temperature[rows],
        top_k=plan.top_k[rows],
        top_p=plan.top_p[rows],
        min_p=plan.min_p[rows],
        seed=plan.seeds[rows],
        choice=plan.choices[rows],
        position=plan.positions[rows],
    )


def _score_rows(logits: Tensor, token_ids: Tensor, plan: SamplePlan) -> Scores | None:
    """Scores of all rows; a row that did not ask has LOWEST_LOGPROB, rank 0 and tokens -1."""
    rows = np.flatnonzero(plan.num_logprobs >= 0)
    if not rows.size:
        return None
    place = torch.tensor(rows, device=logits.device)
    asked = score(logits[place], token_ids[place], int(plan.num_logprobs.max()))
    num_rows, num_top = len(logits), asked.top_ids.shape[1]
    scores = Scores(
        chosen=np.full(num_rows, LOWEST_LOGPROB, np.float32),
        ranks=np.zeros(num_rows, np.int32),
        top_ids=np.full((num_rows, num_top), -1, np.int32),
        top_logprobs=np.full((num_rows, num_top), LOWEST_LOGPROB, np.float32),
    )
    for name, values in vars(asked).items():
        getattr(scores, name)[rows] = values
    return scores
