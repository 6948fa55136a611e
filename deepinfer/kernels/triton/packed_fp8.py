"""FP8 weights of dense products, packed once at load for the tensor core's registers.

The release stores such weights as e4m3 codes with a power of two for each 32 x 32 block; the engine
keeps their values in bfloat16. `pack_fp8` finds the codes again, exactly.

A unit is 16 outputs by a block of 32 inputs, 128 words of four codes, as one warp reads it with one
load of 16 bytes a thread: what a thread reads is what it feeds the tensor core with. A word holds
two pairs of codes (of neighbouring inputs, the left one in the lower half). A pair's codes lie in
both halves of the word alike: the first's where a bfloat16 has its sign, the last four bits of its
exponent and the first three of its mantissa (bits 15 and 10 to 4); the second's in what is left.
Read as bfloat16 they lack a factor of 2**120, which the block's own factor brings along.
"""

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 32  # inputs and outputs that share a scale
_OUTPUTS = 64  # outputs of a group are padded to a multiple of it: the shortest tile
_INPUTS = 256  # inputs are padded to a multiple of it: every tile has a step that divides it
_LARGEST = 448.0  # of e4m3
# Scales are 2**-126 to 2**7. Below, bfloat16 has no numbers that e4m3 would lack at 2**-126; above,
# the factor would overflow.
_LEAST, _GREATEST = -126, 7
_MISSING = 120  # exponent that the bits of a code lack as bfloat16
_SLICE = 1 << 22  # elements that are packed at a time


class PackedFp8(NamedTuple):
    """An FP8 weight of G groups, [G * out, in], on one device.

    words int32 [G * ceil(out / 64) * 4, blocks, 128], factors int32 [.. * 2, blocks]: twice the
    bfloat16 2**120 times the scale of 32 outputs. blocks = ceil(in / 256) * 8. Zeros where padded.
    """

    words: Tensor
    factors: Tensor
    groups: int
    num_outputs: int
    num_inputs: int


def pack_fp8(weight: Tensor, groups: int = 1) -> PackedFp8:
    """Codes and scales of a bfloat16 weight [G * out, in], on its device.

    Raises ValueError if out or in is no multiple of 32, or if a block of 32 x 32 is not e4m3 values
    times one power of two of -126 to 7. Waits for the device: it is a step of loading.
    """
    total, num_inputs = weight.shape
    num_outputs = total // groups
    if total % (groups * BLOCK) or num_inputs % BLOCK:
        raise ValueError(f"FP8 weight of {groups} x {num_outputs} x {num_inputs}: not blocks of 32")
    tall = -(-num_outputs // _OUTPUTS) * _OUTPUTS
    blocks = -(-num_inputs // _INPUTS) * (_INPUTS // BLOCK)
    words = weight.new_zeros((groups, tall // 16, blocks, 128), dtype=torch.int32)
    factors = weight.new_zeros((groups, tall // BLOCK, blocks), dtype=torch.int32)
    used = num_inputs // BLOCK
    height = max(_SLICE // (num_inputs * BLOCK), 1) * BLOCK
    for group, rows in enumerate(weight.chunk(groups)):
        for first in range(0, num_outputs, height):
            codes, scales = _encode(rows[first : first + height])
            unit, block = first // 16, first // BLOCK
            packed = _words(codes)
            words[group, unit : unit + len(packed), :used] = packed
            # The same in both halves: the product is of pairs.
            twice = (scales + (127 + _MISSING) << 7) * 0x10001
            factors[group, block : block + len(twice), :used] = twice
    if weight.is_cuda:  # a chained kernel reads weights without waiting for what wrote them
        torch.cuda.synchronize(weight.device)
    return PackedFp8(words.flatten(0, 1), factors.flatten(0, 1), groups, num_outputs, num_inputs)


def _encode(weight: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes uint8 [out, in] and exponents of the scales int32 [out / 32, in / 32]."""
    values = weight.float().unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    largest, exponent = torch.frexp(values.abs().amax((1, 3)))
    # 448 is 0.875 * 2**9. A block of zeros may have any scale.
    exponent = exponent - 9 + (largest > _LARGEST / 2**9).int()
    exponent = exponent.clamp(_LEAST, _GREATEST)
    # By bits: a device's power function need not be exact.
    up, down = (
        (e.int() + 127 << 23).view(torch.float32)[:, None, :, None] for e in (-exponent, exponent)
    )
    codes = (values * up).to(torch.float8_e4m3fn)
    if not torch.equal(codes.float() * down, values):
        raise ValueError("a weight said to be FP8 has a block that e4m3 cannot express")
    return codes.view(torch.uint8).flatten(2).flatten(0, 1), exponent.int()


def _words(codes: Tensor) -> Tensor:
    """Codes uint8 [out, in] as words int32 [out / 16, in / 32, 128]."""
    # [unit, half of it, row in 8, block, lane of 4, u, pair, half of the pair]
    parts = codes.int().unflatten(1, (-1, 4, 2, 2, 2)).unflatten(0, (-1, 2, 8))
    first, second = parts.unbind(-2)
    first = (first & 0x80) << 8 | (first & 0x7F) << 4
    second = (second & 0x80) << 4 | (second & 0x70) << 8 | second & 0x0F
    words = (first | second).to(torch.int16).contiguous().view(torch.int32)[..., 0]
    return words.permute(0, 3, 2, 4, 5, 1).flatten(2)


def pairs_of(x: Tensor, packed: PackedFp8) -> Tensor:
    """Rows for `packed`, bf16 [T, in] or [T, G, in], as pairs of numbers, int32 [T, G, in / 2].

    Raises ValueError for another number of groups or inputs.
    """
    rows = x[:, None] if x.dim() == 2 else x
    if list(rows.shape[1:]) != [packed.groups, packed.num_inputs]:
        raise ValueError(
            f"rows of {list(rows.shape[1:])}: the weight takes {packed[2]} x {packed[4]}"
        )
    # Every row must start at a whole pair.
    if rows.stride(2) != 1 or any(n % 2 for n in (rows.storage_offset(), *rows.stride()[:2])):
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.view(torch.int32)
