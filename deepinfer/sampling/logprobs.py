"""How likely the model found tokens, before anybody's temperature, penalty or filter.

Knows logits. Does not know how a token was chosen.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# In place of minus infinity, which JSON cannot write, and of NaN in a broken row.
LOWEST_LOGPROB = -9999.0

_ID_BITS = 32


class Scored(NamedTuple):
    """`Scores` of n rows as long as they are on the device."""

    chosen: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


def score(logits: Tensor, token_ids: Tensor, num_top: int) -> Scored:
    """Log-probability and rank of each row's token, and the num_top likeliest tokens of each row.

    logits: float32 [n, V]; token_ids: int64 [n]. At most V likeliest tokens are reported. Nothing
    is below LOWEST_LOGPROB.
    """
    logprobs = logits.log_softmax(-1)
    of_token = logits.gather(-1, token_ids[:, None])
    top_ids = likeliest(logits, min(num_top, logits.shape[-1]))
    return Scored(
        chosen=_finite(logprobs.gather(-1, token_ids[:, None]).squeeze(-1)),
        ranks=(1 + (logits > of_token).sum(-1)).to(torch.int32),
        top_ids=top_ids.to(torch.int32),
        top_logprobs=_finite(logprobs.gather(-1, top_ids)),
    )


def join_scores(parts: Sequence[Scored]) -> Scored:
    """Scores of rows that were looked at a few at a time, with the same num_top."""
    return Scored(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def spread_scores(asked: Scored, rows: Tensor, num_rows: int) -> Scored:
    """Scores of `num_rows` rows, of which `asked` has those that asked, int64 [n].

    Every other one has LOWEST_LOGPROB, rank 0 and tokens -1.
    """
    empty = (LOWEST_LOGPROB, 0, -1, LOWEST_LOGPROB)
    return Scored(
        *(
            column.new_full((num_rows, *column.shape[1:]), value).index_copy(0, rows, column)
            for column, value in zip(asked, empty, strict=True)
        )
    )


def likeliest(logits: Tensor, num_top: int) -> Tensor:
    """Ids of the likeliest tokens, best first, the lower id first on a tie: int64 [n, num_top].

    torch.topk may return any of equal values, and sorting a vocabulary takes a hundred times as
    long. So logit and id become one whole number, of which no two are equal.
    """
    bits = (logits + 0.0).view(torch.int32).to(torch.int64)  # + 0.0: -0.0 equals 0.0
    # The bits of negative floats grow as the floats fall.
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    lower_id_first = (1 << _ID_BITS) - 1 - ids
    keys = (order << _ID_BITS) + lower_id_first
    return (1 << _ID_BITS) - 1 - (keys.topk(num_top, dim=-1).values & ((1 << _ID_BITS) - 1))


def _finite(logprobs: Tensor) -> Tensor:
    finite = torch.nan_to_num(logprobs, nan=LOWEST_LOGPROB, neginf=LOWEST_LOGPROB)
    return finite.clamp(min=LOWEST_LOGPROB)
