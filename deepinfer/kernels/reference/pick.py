"""A draw from a distribution by the Gumbel-max trick; ties go to the lowest id.

A row has the same bits alone and in any batch, on any device whose log depends on its argument
alone: all else is whole numbers and comparisons.
"""

import torch
from torch import Tensor

from deepinfer.kernels.reference.noise import gumbel_noise

# Up to this share of tokens taking part, to find them is faster than to draw noise for all.
_FEW = 1 / 3


def pick(kept: Tensor, key: Tensor) -> Tensor:
    """A draw from softmax(kept), by the numbers of each row's key.

    kept: float64 [T, V], -inf for tokens that do not take part; key: int64 [T]. Returns int64 [T].
    The argmax of log-probability plus Gumbel noise is a draw from the distribution, and a constant
    that is missing in all of a row changes no argmax. A row with a NaN, or in which nothing takes
    part, gives a token of no meaning, from 0 to V - 1.
    """
    num_rows, vocab_size = kept.shape
    if num_rows == 0:
        return torch.empty(0, dtype=torch.int64, device=kept.device)
    # Noise is a function of the token's id: to leave some out changes nothing, but the time.
    if (place := _few_places(kept)) is not None:
        noisy = kept[place] + gumbel_noise(key[place[0]], place[1])
        return kept.index_put(place, noisy).max(-1).indices
    token_ids = torch.arange(vocab_size, device=kept.device)
    return (kept + gumbel_noise(key[:, None], token_ids)).max(-1).indices


def _few_places(kept: Tensor) -> tuple[Tensor, Tensor] | None:
    """Row and id of each token that takes part, if these are few; None elsewhere, and always on
    another device than the CPU: to count them, the host would have to wait for it."""
    if kept.device.type != "cpu":
        return None
    takes_part = kept.isfinite()
    if int(takes_part.count_nonzero()) > _FEW * kept.numel():
        return None
    rows, token_ids = takes_part.nonzero(as_tuple=True)
    return rows, token_ids
