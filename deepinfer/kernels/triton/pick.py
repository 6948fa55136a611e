"""A draw from a distribution by the Gumbel-max trick: kept values read once, noise in registers.

The uniform numbers have the reference's bits. The logarithms are float64 but another library's: the
last bit of a noise may differ from the reference's on a CPU, which changes a draw only where the
two best sums lie within 1e-15 of each other, relatively.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton.sizes import cdiv, next_power_of_2

# A warp skips tiles in which nothing takes part, or nothing can be the best. Small ones: a filter
# leaves a few hundred tokens, anywhere. Four are on their way from memory at once.
_TILE = 64
_TILES = 4
# Tokens of one program: among more of them, a tile beats all before less often. How a row is split
# does not change its best.
_SPAN = 2048

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND = tl.constexpr(0x94D049BB133111EB)


def pick(kept: Tensor, key: Tensor) -> Tensor:
    """A draw from softmax(kept), by the numbers of each row's key.

    kept: float64 [T, V], -inf for tokens that do not take part; key: int64 [T]. Returns int64 [T].
    A row with a NaN, or in which nothing takes part, gives a token of no meaning, from 0 to V - 1.
    """
    num_rows, vocab_size = kept.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=kept.device)
    if num_rows == 0:
        return token_ids
    span = min(_SPAN, vocab_size)
    num_parts = cdiv(vocab_size, span)
    sums = torch.empty((num_rows, num_parts), dtype=torch.float64, device=kept.device)
    ids = torch.empty((num_rows, num_parts), dtype=torch.int32, device=kept.device)
    _best_of_part[(num_rows * num_parts,)](
        kept.contiguous(),
        key.contiguous(),
        sums,
        ids,
        V=vocab_size,
        PARTS=num_parts,
        SPAN=span,
        TILE=_TILE,
        TILES=_TILES,
        num_warps=1,
    )
    _best_of_row[(num_rows,)](
        sums,
        ids,
        token_ids,
        PARTS=num_parts,
        WIDTH=next_power_of_2(num_parts),
        num_warps=1,
    )
    return token_ids


@triton.jit
def _mix(x):
    """The bijection of SplitMix64. Of unsigned words: shifts bring zeros, products wrap."""
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return x ^ (x >> 31)


@triton.jit
def _noise(bits):
    """Gumbel noise, float64."""
    uniform = ((bits >> 12).to(tl.float64) + 0.5) * 2.0**-52
    return -tl.log(-tl.log(uniform))


@triton.jit
def _most_noise(bits):
    """No less than `_noise`, and little more where that is large, for far fewer instructions.

    -log(u) is at least 1 - u, of which the upper 31 bits are taken. The bits of a float, read as a
    number, are its exponent and then a straight line below log2. 0.01 is more than all that
    float32 rounds.
    """
    rest = (0x7FFFFFFF - (bits >> 33).to(tl.int32)).to(tl.float32)
    below_log2 = rest.to(tl.int32, bitcast=True).to(tl.float32) * 2.0**-23 - 127.0
    return 0.6931472 * (31.01 - below_log2)


@triton.jit
def _any(flags):
    return tl.max(flags.to(tl.int32), 0) > 0


@triton.jit
def _best_of_part(
    kept,
    key,
    sums,
    ids,
    V: tl.constexpr,
    PARTS: tl.constexpr,
    SPAN: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    program = tl.program_id(0)
    row, part = program // PARTS, program % PARTS
    kept += row.to(tl.int64) * V
    word = tl.load(key + row).to(tl.uint64, bitcast=True)
    lanes = tl.arange(0, TILE)
    # A token of no meaning, but one that exists, where nothing takes part.
    most, best_id = tl.full([], float("-inf"), tl.float64), tl.full([], 0, tl.int32)
    for start in range(0, SPAN, TILES * TILE):
        first = part * SPAN + start + lanes
        values = ()
        for n in tl.static_range(TILES):
            tokens = first + n * TILE
            value = tl.load(kept + tokens, mask=tokens < V, other=float("-inf"))
            values += (value,)
        for n in tl.static_range(TILES):
            value, tokens = values[n], first + n * TILE
            if _any(value > float("-inf")):
                bits = _mix(word + (tokens + 1).to(tl.uint64) * _GOLDEN)
                # Rounding keeps the order: a sum with more noise is no less.
                if _any(value + _most_noise(bits) > most):
                    noisy = value + _noise(bits)
                    here = tl.max(noisy, 0)
                    here_id = tl.min(tl.where(noisy == here, tokens, V - 1), 0)
                    # Tokens ascend: of equal sums the first stays.
                    best_id = tl.where(here > most, here_id, best_id)
                    most = tl.where(here > most, here, most)
    tl.store(sums + program, most)
    tl.store(ids + program, best_id)


@triton.jit
def _best_of_row(sums, ids, token_ids, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    parts = tl.arange(0, WIDTH)
    is_part = parts < PARTS
    place = row.to(tl.int64) * PARTS + parts
    best = tl.load(sums + place, mask=is_part, other=float("-inf"))
    best_id = tl.load(ids + place, mask=is_part, other=2**31 - 1)
    most = tl.max(best, 0)
    chosen = tl.min(tl.where(best == most, best_id, 2**31 - 1), 0)
    tl.store(token_ids + row, chosen.to(tl.int64))
