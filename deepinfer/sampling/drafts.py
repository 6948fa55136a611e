"""Drafts: how they are drawn, and the token of a row that verifies one (spec 11.3, 11.4).

Knows logits and numbers of rows. Does not know blocks of drafts, how many are verified, or where a
request's tokens end: each row yields one token, and whoever asked takes them in order until one
differs from its draft. Tokens after that one mean nothing, and nothing may be concluded from them.

Two ways. *Coupled*: the row's token is the target's own, drawn as if there were no draft, and the
draft was drawn with the same noise, so they are often equal. *Rejection*: the draft was drawn from
a distribution p with noise of its own; it stays with probability min(1, q / p) of it, where q is
the row's distribution, else the token is drawn from max(q - p, 0). Both yield tokens that are
distributed as q; rejection keeps more drafts, coupled gives one answer for one seed.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepinfer.kernels.reference.noise import ACCEPT, RESIDUAL, draft_key, row_key, uniform
from deepinfer.sampling.arrays import on_device, together
from deepinfer.sampling.draw import Pick, greedy, temper_and_filter
from deepinfer.step import Int64, SamplePlan


class Proposed(NamedTuple):
    """What drafts were drawn from, of some rows.

    rows: int64 [n] on the host, ascending. logprobs: float32 [n, V], natural logarithms, -inf for
    tokens that could not be drawn. A draft that was not drawn at all has 0 at itself and -inf else.
    """

    rows: Int64
    logprobs: Tensor


class Drafted(NamedTuple):
    """Drafts of A sequences.

    token_ids: int64 [A]. proposed: of those that will be accepted by rejection; its rows number
    the sequences.
    """

    token_ids: Tensor
    proposed: Proposed


def draft_tokens(
    logits: Tensor, plan: SamplePlan, rows: Int64, anchors: Tensor, i: int, *, pick: Pick
) -> Drafted:
    """Draft number i, from 0, of each of A sequences.

    logits: float32 [A, V], the draft module's. rows: int64 [A] on the host, a row of `plan` of each
    sequence: temperature and filters are its; penalties, bias, bans and masks are not applied.
    anchors: int64 [A], positions: draft i stands 1 + i behind.

    At temperature 0 the likeliest token; else a draw, with the noise that the target will use at
    this position, or for rejection with noise of this position and anchor alone.
    """
    token_ids = greedy(logits)
    drawn = np.flatnonzero(plan.temperature[rows] > 0.0)
    if not drawn.size:
        return Drafted(token_ids, Proposed(drawn, logits[:0]))
    rows, place = rows[drawn], _on(logits, drawn)
    kept = _distribution(logits[place], plan, rows)
    seed, choice = together(numbers_of(plan, rows)[:2], logits.device)
    anchor = anchors[place]
    key = row_key(seed, choice, anchor + 1 + i)
    tested = np.flatnonzero(plan.is_rejection[rows]) if plan.is_rejection.size else rows[:0]
    among = _on(logits, tested)
    logprobs = kept[among].log_softmax(-1).to(torch.float32)
    if tested.size:
        seed, choice, anchor = seed[among], choice[among], anchor[among]
        key[among] = draft_key(seed, choice, anchor + 1 + i, anchor)
        # Drawn from the rounded values, so that what is kept is exactly what was drawn from.
        kept[among] = logprobs.to(torch.float64)
    token_ids[place] = pick(kept, key)
    return Drafted(token_ids, Proposed(drawn[tested], logprobs))


def rejection_rows(plan: SamplePlan) -> Int64:
    """Rows whose token is found by `verify`: int64, ascending."""
    if not (plan.draft_ids.size and plan.is_rejection.size):
        return np.empty(0, np.int64)
    has_draft = (plan.draft_ids >= 0) & (plan.forced < 0)
    return np.flatnonzero(plan.is_rejection & has_draft & (plan.temperature > 0.0))


def verify(
    logits: Tensor, plan: SamplePlan, rows: Int64, proposed: Proposed, *, pick: Pick
) -> Tensor:
    """Tokens of `rejection_rows`: the draft, or another in its place.

    logits: float32 [n, V] of these rows, adjusted; rows: int64 [n]. proposed: of these rows, and
    maybe of others. Returns int64 [n]; for a row in which nothing takes part, one of no meaning.

    The rule is exact, without the factor on p by which spec 11.4 keeps the residual from being
    empty: a draft that is rejected has q < p, so q > p elsewhere. Only where rounding hides that,
    or p could not have drawn the draft, is the token drawn from q.
    """
    which = np.searchsorted(proposed.rows, rows)
    assert np.array_equal(proposed.rows[which], rows)
    q = _distribution(logits, plan, rows).softmax(-1)
    p = proposed.logprobs[_on(logits, which)].to(torch.float64).softmax(-1)
    token_ids = _on(logits, plan.draft_ids[rows].astype(np.int64))
    q_of_draft, p_of_draft = (x.gather(-1, token_ids[:, None])[:, 0] for x in (q, p))
    words = numbers_of(plan, rows)
    keys = row_key(*words, ACCEPT), row_key(*words, RESIDUAL)
    accept_key, residual_key = together(keys, logits.device)
    is_possible = p_of_draft > 0.0  # false for NaN, too
    stays = is_possible & (uniform(accept_key) * p_of_draft < q_of_draft)
    # For all rows, those whose draft stays too: to leave these out, the host would have to wait.
    weights = _residual(q, p)
    is_usable = is_possible & (weights.amax(-1) > 0.0)
    weights = torch.where(is_usable[:, None], weights, q)
    other_ids = pick(weights.log(), residual_key)
    return torch.where(stays, token_ids, other_ids)


def _residual(q: Tensor, p: Tensor) -> Tensor:
    """What the drafts that stay leave of q: weights, float64 [n, V]."""
    return (q - p).clamp(min=0.0)


def _distribution(logits: Tensor, plan: SamplePlan, rows: Int64) -> Tensor:
    """float64 [n, V], new: temperature and filters of the plan's rows on their logits."""
    numbers = (plan.temperature, plan.top_k, plan.top_p, plan.min_p)
    return temper_and_filter(logits, *(number[rows] for number in numbers))


def numbers_of(plan: SamplePlan, rows: Int64) -> tuple[Int64, Int64, Int64]:
    """Seed, choice and position of the plan's rows: int64 [n] each, on the host."""
    seed, choice, position = (
        number[rows].astype(np.int64) for number in (plan.seeds, plan.choices, plan.positions)
    )
    return seed, choice, position


def _on(like: Tensor, array: np.ndarray) -> Tensor:
    return on_device(array, like.device)
