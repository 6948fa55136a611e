"""The random numbers of sampling: a pure function of (seed, choice, position, stream, token).

Counter-based, so nothing is consumed in order: a token's noise is the same alone and in any batch,
with and without drafts, and on every device. The generator is SplitMix64 with a key in place of its
state: mix(x) below is its finaliser, and the key of a row folds seed, choice and position in one
after another, then the stream.
Keys are made of tensors or, where all is known on the host, of arrays: a dozen small steps there,
four times as many kernels on a device.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = TypeVar("Words", Tensor, npt.NDArray[np.int64])
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)

# Streams: what the numbers of a position are for. Those of different streams are independent.
TARGET = 0  # the token that the full model draws
DRAFT = 1  # a draft that is not drawn with the target's numbers
ACCEPT = 2  # whether such a draft stays
RESIDUAL = 3  # the token in its place if not


def row_key(seed: Words, choice: Words, position: Words, stream: int = TARGET) -> Words:
    """The key of each row's numbers: int64 [T].

    seed, choice, position: int64 [T], a seed's bits taken as they are; choice numbers the
    continuations of one request; position is the absolute position of the token to be drawn.
    """
    key = _mix(_mix(_mix(seed) ^ choice) ^ position)
    # Without one more round: the target's numbers are older than the streams, and keep their bits.
    return key if stream == TARGET else _mix(key ^ stream)


def draft_key(seed: Words, choice: Words, position: Words, anchor: Words) -> Words:
    """The key of the DRAFT stream: int64 [T]. Arguments as for `row_key`.

    anchor: int64 [T], the anchor's position. A position may be drafted again after a later anchor.
    By then the first draft has been seen, by the confidence of its successors for one; if the
    second were drawn with the same numbers, its verification would depend on its own value.
    """
    return _mix(row_key(seed, choice, position, DRAFT) ^ anchor)


def gumbel_noise(key: Tensor, token_ids: Tensor) -> Tensor:
    """Gumbel(0, 1) noise of tokens of rows with these keys, float64.

    key, token_ids: int64 of shapes that broadcast, to the shape of the result.
    """
    return -torch.log(-torch.log(_uniform(key, token_ids)))


def uniform(key: Tensor) -> Tensor:
    """One number for each key, float64 [T], above 0 and below 1."""
    return _uniform(key, torch.zeros_like(key))


def _uniform(key: Tensor, token_ids: Tensor) -> Tensor:
    bits = _mix(key + (token_ids + 1) * _signed(_GOLDEN))
    # The top 52 bits plus a half: never 0 and never 1, so both logarithms are finite.
    return (_shift_right(bits, 12).to(torch.float64) + 0.5) * 2.0**-52


def _mix(x: Words) -> Words:
    """A bijection of 64-bit words: every input bit changes about half of the output bits."""
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        x = (x ^ _shift_right(x, shift)) * _signed(multiplier)
    return x ^ _shift_right(x, _SHIFTS[2])


def _shift_right(x: Words, bits: int) -> Words:
    """Logical shift; that of int64 drags the sign along."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """A 64-bit word as the int64 with the same bits; int64 products wrap, as wanted."""
    return word - (1 << 64) if word >> 63 else word
