"""FP4 weights of the routed experts, re-tiled once at load for the grouped product.

A 32-bit word holds eight weights of one output channel, in four pairs of neighbouring columns, the
left column in the low half. The bits of an e2m1 weight are the sign, the last two bits of the
exponent and the first of the mantissa of a bfloat16: bits 15 and 8 to 6. So a pair is one shift and
one mask away from two bfloat16, and the thread that reads a word is the one whose registers feed
the tensor core with it: nothing passes through shared memory twice.

Three pairs fit into a word like that, each around its own centre: turning the word brings centre
c to 7. Their 24 bits leave 8 over, in places that suit no fourth. Two words, left and right, are
made for each other instead: what the two leave over, laid into one word, is two such pairs.

Within 128 input columns, column = 64 b3 + 32 b2 + 16 b1 + 8 b0 + 2 lane + half: pair 2 b1 + b0 of
the left (b2 = 0) or the right word number 2 lane + b3 of the channel; b3 and b2 number the group of
a scale. The four words that a thread needs lie together: one load of 16 bytes. Words of all
channels for the same 128 columns are contiguous, however many channels a program takes.
"""

from itertools import product
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.reference.quant import decode_ue8m0, fp4_value

DEPTH = 128  # input columns of a tile
ROWS = 256  # output channels are padded to a multiple of it: the tallest tile
GROUP = 32  # columns of a scale
_HALF = 8  # channels of gate, then as many of up: their sums meet in one thread's registers

# Scale codes that are kept exactly. Around 127 (a factor of one), and more than weights ever need.
LEAST_CODE, GREATEST_CODE = 87, 167
# A stored scale is the exponent field of a bfloat16. The bits of a code, read as bfloat16, are the
# weight times 2**-126; the product must stay below 2**128 for the greatest code. What is missing,
# 2**39, is applied to the float32 sum.
_STORED = 87
REST = 2.0**39
# Centres of the pairs of a left and of a right word. The last of each lies in what both leave over.
_CENTRES = ((3, 9, 13, 1), (5, 11, 15, 7))
_MIXED = 3
_FROM_LEFT = 0x80C180C1  # the bits of the word of leftovers that the left word has room for

Coded = tuple[Tensor, Tensor]
"""A matrix as the checkpoint stores it: e2m1 codes int8 [out, in/2] and scales uint8 [out, in/32].
"""


class ExpertWeights(NamedTuple):
    """Packed weights of E experts of hidden size D and intermediate size I, on one device.

    gate_up int32 [E, D/128, 2I, 16], gate_up_scales uint8 [E, D/128, 2I, 4]: eight channels of w1,
    the same eight of w3, and so on. down int32 [E, I/128, D, 16], down_scales uint8
    [E, I/128, D, 4]. Inputs are padded to a multiple of 128 and outputs to one of 256, with zeros.
    """

    gate_up: Tensor
    gate_up_scales: Tensor
    down: Tensor
    down_scales: Tensor
    hidden: int
    width: int


def empty_experts(num_experts: int, hidden: int, width: int, device: str) -> ExpertWeights:
    """Room for `num_experts` experts, each zero until `pack_expert` fills it.

    Raises ValueError unless both sizes are multiples of 32.
    """
    if hidden % GROUP or width % GROUP:
        raise ValueError(f"sizes of an expert must be multiples of {GROUP}: {hidden}, {width}")

    def room(columns: int, channels: int) -> tuple[Tensor, Tensor]:
        shape = num_experts, -(-columns // DEPTH), -(-channels // ROWS) * ROWS
        words = torch.zeros(*shape, DEPTH // 8, dtype=torch.int32, device=device)
        return words, torch.zeros(*shape, DEPTH // GROUP, dtype=torch.uint8, device=device)

    return ExpertWeights(*room(hidden, 2 * width), *room(width, hidden), hidden, width)


def pack_expert(into: ExpertWeights, expert: int, w1: Coded, w3: Coded, w2: Coded) -> None:
    """Fill one expert of `into`; the parts may lie on any device, the work is done on into's.

    w1, w3 [I, D] and w2 [D, I] as the checkpoint stores them. Raises ValueError for a scale code
    outside 87..167 of a group that is not all zero. Waits for the device: it is a step of loading.
    """
    device = into.gate_up.device
    codes, scales = (
        torch.stack([part.to(device).unflatten(0, (-1, _HALF)) for part in parts], 1).flatten(0, 2)
        for parts in zip(w1, w3, strict=True)
    )
    for words, stored, matrix in (
        (into.gate_up[expert], into.gate_up_scales[expert], (codes, scales)),
        (into.down[expert], into.down_scales[expert], (w2[0].to(device), w2[1].to(device))),
    ):
        channels = matrix[0].shape[0]
        words[:, :channels], stored[:, :channels] = _pack(*matrix)


def pack_experts(w1: Coded, w3: Coded, w2: Coded) -> ExpertWeights:
    """As `pack_expert`, for experts that are stacked already: each tensor has E in front."""
    num_experts, hidden, half_width = w2[0].shape
    packed = empty_experts(num_experts, hidden, 2 * half_width, str(w2[0].device))
    for expert in range(num_experts):
        parts = [(codes[expert], scales[expert]) for codes, scales in (w1, w3, w2)]
        pack_expert(packed, expert, *parts)
    return packed


def unpack_expert(weights: ExpertWeights, expert: int) -> tuple[Tensor, Tensor, Tensor]:
    """w1, w3 [I, D] and w2 [D, I] of one expert in float32: exactly what the checkpoint says."""
    both = _unpack(weights.gate_up[expert], weights.gate_up_scales[expert])
    both = both[: 2 * weights.width, : weights.hidden].unflatten(0, (-1, 2, _HALF))
    down = _unpack(weights.down[expert], weights.down_scales[expert])
    down = down[: weights.hidden, : weights.width]
    return both[:, 0].flatten(0, 1), both[:, 1].flatten(0, 1), down


def _pack(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Codes int8 [N, K/2], scales uint8 [N, K/32] -> int32 [K/128, N, 16], uint8 [K/128, N, 4]."""
    byte = codes.view(torch.uint8)
    nibbles = torch.stack((byte & 15, byte >> 4), -1).flatten(-2)
    # A group of zeros may carry any scale: encoders give it the least there is.
    is_zero = ((nibbles & 7) == 0).unflatten(-1, (-1, GROUP)).all(-1)
    scales = torch.where(is_zero, 127, scales.view(torch.uint8))
    for code in torch.stack(scales.aminmax()).tolist():
        if not LEAST_CODE <= code <= GREATEST_CODE:
            raise ValueError(
                f"scale code {code} of an FP4 weight is outside {LEAST_CODE}..{GREATEST_CODE}"
            )
    missing = -nibbles.shape[1] % DEPTH
    nibbles = torch.nn.functional.pad(nibbles, (0, missing))
    stored = torch.nn.functional.pad(scales + _STORED, (0, missing // GROUP))
    # [N, K/128, b3, b2, b1, b0, lane, half]
    parts = nibbles.unflatten(1, (-1, 2, 2, 2, 2, 4, 2)).to(torch.int32)
    table = torch.zeros(4, 2, 2, 4, 2, dtype=torch.int64)  # bit, word, b2, pair, half
    for b2, number, half, bit in product(range(2), range(4), range(2), range(4)):
        word, place = _place(b2, number, half, bit)
        table[bit, word, b2, number, half] = 1 << place
    table = table.to(codes.device, torch.int32).view(4, 2, 2, 2, 2, 1, 2)
    words = parts.new_zeros(*parts.shape[:3], 4, 2)  # lane, word
    # Bit by bit, for the sake of memory. No two weights share a place: a sum is as good as an or.
    for bit in range(4):
        ones = parts >> bit & 1
        for word in range(2):
            words[..., word] += (ones * table[bit, word]).sum((3, 4, 5, 7), dtype=torch.int32)
    return words.permute(1, 0, 3, 2, 4).flatten(2), stored.unflatten(1, (-1, 4)).transpose(0, 1)


def _place(b2: int, number: int, half: int, bit: int) -> tuple[int, int]:
    """Where a bit of a weight lies: in the left word (0) or the right (1), and the place there."""
    target = 16 * half + (15 if bit == 3 else 6 + bit)
    place = (target + _CENTRES[b2][number] - 7) % 32
    if number == _MIXED:
        return 1 - (_FROM_LEFT >> place & 1), place
    return b2, place


def _unpack(words: Tensor, stored: Tensor) -> Tensor:
    """The inverse of `_pack`, decoded: float32 [N, K]."""
    sides = words.unflatten(2, (4, 2, 2)).permute(1, 0, 3, 2, 4)  # [N, K/128, b3, lane, b2]
    codes = words.new_zeros(*sides.shape[:3], 2, 4, 4, 2)  # b2, pair, lane, half
    for b2, number, half, bit in product(range(2), range(4), range(2), range(4)):
        word, place = _place(b2, number, half, bit)
        codes[:, :, :, b2, number, :, half] |= (sides[..., word] >> place & 1) << bit
    scale = decode_ue8m0((stored.to(torch.int32) - _STORED).clamp_min(0))
    values = fp4_value(codes).flatten(2, 3).flatten(3)  # [N, K/128, group, 32]
    return (values * scale.transpose(0, 1)[..., None]).flatten(1)


@triton.jit
def _turn(word, count: tl.constexpr):
    return (word >> count) | (word << (32 - count))


@triton.jit
def _four(first, second, third, fourth):
    """Four tensors to one with two more axes: number = 2 * the first of them + the second."""
    return tl.join(tl.join(first, third), tl.join(second, fourth))


@triton.jit
def spread(words):
    """int32 [C, W] -> pairs of bfloat16, uint32 [C, W / 2, b1, b0, b2], to be scaled."""
    words = tl.reshape(words.to(tl.uint32, bitcast=True), (words.shape[0], words.shape[1] // 2, 2))
    left, right = tl.split(words)
    mixed = (left & 0x80C180C1) | (right & 0x7F3E7F3E)
    lefts = _four(left << 4, _turn(left, 2), _turn(left, 6), mixed << 6)
    rights = _four(right << 2, _turn(right, 4), _turn(right, 8), mixed)
    return tl.join(lefts, rights) & 0x81C081C0


@triton.jit
def unpack_tile(words, scales, CHANNELS: tl.constexpr, NATIVE: tl.constexpr):
    """int32 [CHANNELS, 16] and uint8 [CHANNELS, 4] -> bfloat16 [CHANNELS, 128], without 2**39."""
    pairs = tl.reshape(spread(words), (CHANNELS, 4, 2, 2, 2, 2))  # the second is b3
    factor = scales.to(tl.uint32) * 0x00800080  # the same power of two in both halves
    factor = tl.reshape(factor, (CHANNELS, 1, 2, 1, 1, 2))
    if NATIVE:
        # Triton has no arithmetic on pairs: two products would cost three instructions more.
        scaled = tl.inline_asm_elementwise(
            "mul.rn.bf16x2 $0, $1, $2;",
            "=r,r,r",
            [pairs, factor],
            dtype=tl.uint32,
            is_pure=True,
            pack=1,
        )
        low = scaled.to(tl.uint16).to(tl.bfloat16, bitcast=True)
        high = (scaled >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        scale = (factor << 16).to(tl.float32, bitcast=True)
        low = ((pairs << 16).to(tl.float32, bitcast=True) * scale).to(tl.bfloat16)
        high = ((pairs & 0xFFFF0000).to(tl.float32, bitcast=True) * scale).to(tl.bfloat16)
    tile = tl.join(low, high)  # [CHANNELS, lane, b3, b1, b0, b2, half]
    return tl.reshape(tl.permute(tile, (0, 2, 5, 3, 4, 1, 6)), (CHANNELS, 128))
