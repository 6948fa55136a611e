"""What a request asks to change in the logits before a token is chosen: penalties, bias, bans.

Knows logits and lists of (row, token) pairs. Does not know temperatures, filters or draws, nor why
a token is banned.
"""

import numpy as np
import torch
from torch import Tensor

from deepinfer.sampling.arrays import on_device
from deepinfer.step import Float32, Int32, SamplePlan, TokenLists

# Penalties of any size stay finite: an infinity would look like a broken row.
_LARGEST = torch.finfo(torch.float32).max


def adjust_logits(logits: Tensor, plan: SamplePlan) -> Tensor:
    """Logits after, in this order, repetition penalty, presence and frequency penalty, bias, bans,
    masks.

    logits: float32 [R, V], left as it is; returned itself if no row asks for anything. Rows do not
    see each other, so each has the same bits in any batch.
    """
    steps = (
        (plan.seen, _penalise_seen),
        (plan.produced, _penalise_produced),
        (plan.bias, _add_bias),
        (plan.banned, _ban),
    )
    wanted = [(lists, step) for lists, step in steps if lists.row_ids.size]
    if not wanted and not plan.mask_rows.size:
        return logits
    adjusted = logits.clone()
    for lists, step in wanted:
        place = (_on(logits, lists.row_ids), _on(logits, lists.token_ids))
        adjusted[place] = step(adjusted[place], lists, plan).clamp(max=_LARGEST)
    for row, mask in zip(plan.mask_rows.tolist(), plan.masks, strict=True):
        _keep_allowed(adjusted[row], mask)
    return adjusted


def _keep_allowed(row: Tensor, mask: Int32) -> None:
    """Forbid, in place, every token of float32 [V] whose bit is 0.

    Touches the smaller half: a grammar allows a few tokens, or all but a few. Filling by a mask of
    all V takes six times as long on a CPU.
    """
    bits = np.unpackbits(mask.view(np.uint8), count=len(row), bitorder="little").view(np.bool_)
    if np.count_nonzero(bits) * 2 > len(row):
        row[_on(row, np.flatnonzero(~bits))] = -torch.inf
        return
    allowed = _on(row, np.flatnonzero(bits))
    kept = row[allowed]
    row.fill_(-torch.inf)
    row[allowed] = kept


def _penalise_seen(chosen: Tensor, lists: TokenLists, plan: SamplePlan) -> Tensor:
    """Divide a positive logit, multiply a negative one: both become less likely above 1."""
    penalty = _of_row(chosen, plan.repetition, lists)
    penalised = torch.where(chosen > 0, chosen / penalty, chosen * penalty).clamp(min=-_LARGEST)
    return penalised.masked_fill(chosen == -torch.inf, -torch.inf)


def _penalise_produced(chosen: Tensor, lists: TokenLists, plan: SamplePlan) -> Tensor:
    """Once for a token that was generated, and for each time it was."""
    counts = _weights(chosen, lists)
    once = _of_row(chosen, plan.presence, lists)
    return chosen - once - counts * _of_row(chosen, plan.frequency, lists)


def _add_bias(chosen: Tensor, lists: TokenLists, plan: SamplePlan) -> Tensor:
    return chosen + _weights(chosen, lists)


def _ban(chosen: Tensor, lists: TokenLists, plan: SamplePlan) -> Tensor:
    """Last, so that no bias brings a banned token back."""
    return torch.full_like(chosen, -torch.inf)


def _weights(like: Tensor, lists: TokenLists) -> Tensor:
    assert lists.weights is not None
    return _on(like, lists.weights)


def _of_row(like: Tensor, per_row: Float32, lists: TokenLists) -> Tensor:
    """The row's number for each pair."""
    return _on(like, per_row[lists.row_ids])


def _on(like: Tensor, array: np.ndarray) -> Tensor:
    return on_device(array, like.device)
