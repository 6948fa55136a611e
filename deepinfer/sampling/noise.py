"""The random numbers of sampling: a pure function of (seed, choice, position, token).

Counter-based, so nothing is consumed in order: a token's noise is the same alone and in any batch,
with and without drafts, and on every device. The generator is SplitMix64 with a key in place of its
state: mix(x) below is its finaliser, and the key of a row folds seed, choice and position in one
after another.
"""

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


def gumbel_noise(seed: Tensor, choice: Tensor, position: Tensor, vocab_size: int) -> Tensor:
    """Gumbel(0, 1) noise of every token, float64 [T, vocab_size].

    seed, choice, position: int64 [T], a seed's bits taken as they are; choice numbers the
    continuations of one request; position is the absolute position of the token to be drawn.
    """
    key = _mix(_mix(_mix(seed) ^ choice) ^ position)
    tokens = torch.arange(1, vocab_size + 1, device=key.device)
    bits = _mix(key[:, None] + tokens * _signed(_GOLDEN))
    # The top 52 bits plus a half: never 0 and never 1, so both logarithms are finite.
    uniform = (_shift_right(bits, 12).to(torch.float64) + 0.5) * 2.0**-52
    return -torch.log(-torch.log(uniform))


def _mix(x: Tensor) -> Tensor:
    """A bijection of 64-bit words: every input bit changes about half of the output bits."""
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        x = (x ^ _shift_right(x, shift)) * _signed(multiplier)
    return x ^ _shift_right(x, _SHIFTS[2])


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift; torch's own drags the sign along."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """A 64-bit word as the int64 with the same bits; int64 products wrap, as wanted."""
    return word - (1 << 64) if word >> 63 else word
