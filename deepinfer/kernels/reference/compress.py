"""Gated pooling of the tokens of one entry (spec 7.3, ratio 2)."""

from torch import Tensor


def pool_pairs(values: Tensor, scores: Tensor) -> Tensor:
    """Per channel, the softmax of `scores` over the members weighs `values`: float32 [E, r, C] x 2
    -> [E, C].
    """
    return (scores.softmax(1) * values).sum(1)
