"""Logits -> tokens: every row on its own; ties go to the lowest id.

Knows temperatures and filters. Does not know penalties or log-probabilities, nor how the op `pick`
of a kernel set draws from what is kept.

A row has the same bits alone and in any batch, on any device whose exp depends on its argument
alone: all else is a comparison, or a sum of whole numbers, whose order does not matter.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer.sampling.arrays import on_device

# Probabilities as whole numbers, the likeliest token's being 2**44: a vocabulary of 2**18 sums up
# without overflow, and less than 2e-8 of the total is rounded away.
_ONE = 2**44

Pick = Callable[[Tensor, Tensor], Tensor]  # the op of the kernel set
Numbers = npt.ArrayLike  # one for all rows, or one a row; on the host, where the branches are taken


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row, the lowest id on a tie: float32 [T, V] -> int64 [T]."""
    return logits.max(-1).indices


def draw(
    logits: Tensor,
    key: Tensor,
    *,
    temperature: Numbers,
    top_k: Numbers = -1,
    top_p: Numbers = 1.0,
    min_p: Numbers = 0.0,
    pick: Pick,
) -> Tensor:
    """A token of each row from the filtered distribution: float32 [T, V] -> int64 [T].

    key: int64 [T], of `row_key`. temperature, top_k, top_p, min_p: see `temper_and_filter`.
    """
    return pick(temper_and_filter(logits, temperature, top_k, top_p, min_p), key)


def temper_and_filter(
    logits: Tensor, temperature: Numbers, top_k: Numbers, top_p: Numbers, min_p: Numbers
) -> Tensor:
    """Logits of the distribution that a row draws from: float32 [T, V] -> float64 [T, V], new.

    temperature: above 0. top_k, top_p, min_p: see `filter_logits`.
    """
    tempered = logits.to(torch.float64) / _column(temperature, logits)
    return filter_logits(tempered, top_k, top_p, min_p)


def filter_logits(logits: Tensor, top_k: Numbers, top_p: Numbers, min_p: Numbers = 0.0) -> Tensor:
    """-inf for tokens that do not take part: float64 [T, V]. The likeliest always does.

    First top_k, then top_p among what is left, then min_p; top_k of 0, -1 or more than there are,
    top_p of 1 and min_p of 0 are off, and rows with all off are as they were. top_p keeps the
    likeliest tokens, as many as are needed to reach top_p of the probability that top_k left.
    min_p keeps tokens at least min_p times as probable as the likeliest. Among equal logits the
    lower id ranks first.
    """
    num_rows, vocab_size = logits.shape
    k, p, least = (np.broadcast_to(np.asarray(x), num_rows) for x in (top_k, top_p, min_p))
    k = np.where((k < 1) | (k > vocab_size), vocab_size, k)
    kept = _on_rows(np.flatnonzero((k < vocab_size) | (p < 1.0)), _keep_likeliest, logits, k, p)
    return _on_rows(np.flatnonzero(least > 0.0), _keep_probable, kept, least)


def _on_rows(
    rows: np.ndarray, keep: Callable[..., Tensor], logits: Tensor, *numbers: np.ndarray
) -> Tensor:
    """`keep` for some of the rows, with their numbers; the others cost nothing."""
    if rows.size == 0:
        return logits
    place = on_device(rows, logits.device)
    return logits.index_copy(0, place, keep(logits[place], *(number[rows] for number in numbers)))


def _keep_likeliest(logits: Tensor, top_k: np.ndarray, top_p: np.ndarray) -> Tensor:
    """Both filters keep a beginning of the ranking, so they come down to a number of tokens."""
    k, p = _column(top_k, logits), _column(top_p, logits)
    ranked = logits.topk(int(top_k.max()), dim=-1).values
    rank = torch.arange(ranked.shape[-1], device=logits.device)
    mass = (torch.exp(ranked - ranked[:, :1]) * _ONE).to(torch.int64).masked_fill(rank >= k, 0)
    before = mass.cumsum(-1) - mass
    # At a top_p of 1 only rounding could leave a token out.
    within_p = (before < p * mass.sum(-1, keepdim=True)) | (p >= 1.0)
    count = ((rank < k) & within_p).sum(-1, keepdim=True).clamp(min=1)
    last = ranked.gather(-1, count - 1)
    above, equal = logits > last, logits == last
    room = count - above.sum(-1, keepdim=True)
    return logits.masked_fill(~(above | equal & (equal.cumsum(-1) <= room)), -torch.inf)


def _keep_probable(logits: Tensor, min_p: np.ndarray) -> Tensor:
    of_best = torch.exp(logits - logits.amax(-1, keepdim=True))
    return logits.masked_fill(of_best < _column(min_p, logits), -torch.inf)


def _column(numbers: Numbers, like: Tensor) -> Tensor:
    """One number a row, [T, 1], real numbers as float64."""
    array = np.asarray(numbers)
    wide = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    return on_device(np.broadcast_to(wide, len(like)), like.device)[:, None]
