"""Engram: n-gram hash, table rows, gate (spec 9.3, 9.4)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton.sizes import cdiv, next_power_of_2

_HASH_ROWS = 4
_HASH_WARPS = 4
_GATHER_ROWS = 8
_GATHER_WARPS = 4
_GROUP = 32  # channels of a table row that share a scale
_GATE_WARPS = 8
# Rows that one program gates: they share the gains, which weigh as much as a row. Alone as long as
# a program for each row does not fill the device.
_GATE_ROWS = 4
_FEW_GATES = 1056


def engram_rows(window: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """Table rows of each position's n-grams: int64 [T, columns].

    window int64 [T, n], n at least 2: compressed ids of the token itself and the n - 1 before it;
    multipliers int64 [n]; primes and offsets int64 [columns], ordered by n-gram size 2..n, then
    head. Products wrap around; the remainder has the prime's sign, as torch's.
    """
    num_rows, size = window.shape
    columns = primes.shape[0]
    rows = torch.empty((num_rows, columns), dtype=torch.int64, device=window.device)
    if num_rows:
        _hash[(cdiv(num_rows, _HASH_ROWS),)](
            window.contiguous(),
            multipliers,
            primes,
            offsets,
            rows,
            num_rows,
            SIZE=size,
            HEADS=columns // (size - 1),
            COLUMNS=columns,
            ROWS=_HASH_ROWS,
            WIDTH=next_power_of_2(columns),
            num_warps=_HASH_WARPS,
        )
    return rows


def engram_gather(codes: Tensor, scales: Tensor, row_ids: Tensor) -> Tensor:
    """Decoded rows of a table: bf16 [..., C].

    codes uint8 [height, C] (e4m3) and scales uint8 [height, C / 32] (UE8M0), on the device or in
    pinned host memory, which the device then reads itself; row_ids int64 [...] on the device. An id
    below 0 gives zeros.
    """
    channels = codes.shape[1]
    rows = torch.empty((*row_ids.shape, channels), dtype=torch.bfloat16, device=row_ids.device)
    num_rows = row_ids.numel()
    if num_rows:
        _gather[(cdiv(num_rows, _GATHER_ROWS),)](
            codes,
            scales,
            row_ids.contiguous(),
            rows,
            num_rows,
            GROUPS=channels // _GROUP,
            GROUP=_GROUP,
            ROWS=_GATHER_ROWS,
            WIDTH=next_power_of_2(channels // _GROUP),
            num_warps=_GATHER_WARPS,
        )
    return rows


def engram_gate(
    streams: Tensor, key: Tensor, value: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float
) -> Tensor:
    """Add the gated value to every stream: [T, M, D] in the streams' dtype, float32 inside.

    streams, key bf16 [T, M, D]; value bf16 [T, D], both perhaps parts of one wider row; q_weight,
    k_weight [M, D]. The gate of a stream grows with the agreement of stream and key, both scaled to
    unit mean square.
    """
    num_rows, num_streams, size = streams.shape
    gated = torch.empty(streams.shape, dtype=streams.dtype, device=streams.device)
    if num_rows == 0:
        return gated
    streams, key, value = (
        t if t.stride(-1) == 1 else t.contiguous() for t in (streams, key, value)
    )
    rows = 1 if num_rows * num_streams <= _FEW_GATES else _GATE_ROWS
    _gate[(cdiv(num_rows, rows), num_streams)](
        streams,
        streams.stride(0),
        streams.stride(1),
        key,
        key.stride(0),
        key.stride(1),
        value,
        value.stride(0),
        q_weight.contiguous(),
        k_weight.contiguous(),
        gated,
        num_rows,
        eps,
        size**-0.5,
        D=size,
        M=num_streams,
        ROWS=rows,
        WIDTH=next_power_of_2(size),
        num_warps=_GATE_WARPS,
    )
    return gated


@triton.jit(do_not_specialize=["num_rows"])
def _hash(
    window,
    multipliers,
    primes,
    offsets,
    out,
    num_rows,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = rows < num_rows
    columns = tl.arange(0, WIDTH)
    known = columns < COLUMNS
    folded = tl.load(window + rows * SIZE, mask=there, other=0) * tl.load(multipliers)
    spread = tl.zeros([ROWS, WIDTH], tl.int64)
    for back in tl.static_range(1, SIZE):
        token = tl.load(window + rows * SIZE + back, mask=there, other=0)
        folded = folded ^ (token * tl.load(multipliers + back))
        spread = tl.where((columns // HEADS == back - 1)[None, :], folded[:, None], spread)
    prime = tl.load(primes + columns, mask=known, other=1)[None, :]
    rest = spread % prime
    rest = tl.where(rest < 0, rest + prime, rest)
    row = rest + tl.load(offsets + columns, mask=known, other=0)[None, :]
    place = rows[:, None] * COLUMNS + columns[None, :]
    tl.store(out + place, row, mask=there[:, None] & known[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _gather(
    codes,
    scales,
    row_ids,
    out,
    num_rows,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # int64: a table is larger than 2**31 bytes.
    ids = tl.load(row_ids + rows, mask=rows < num_rows, other=-1)
    groups = tl.arange(0, WIDTH)
    inside = (groups < GROUPS)[None, :]
    there = inside & (ids >= 0)[:, None]
    # Each byte is asked for once: over the bus to host memory, twice is twice as long.
    place = ids[:, None] * GROUPS + groups[None, :]
    scale = tl.load(scales + place, mask=there, other=127).to(tl.int32)
    # Code 0 is 2**-127, a subnormal float32; 255 is NaN.
    bits = tl.where(scale == 0, 1 << 22, scale << 23)
    bits = tl.where(scale == 255, 0x7FC00000, bits)
    channels = tl.arange(0, GROUP)[None, None, :]
    place = place[:, :, None] * GROUP + channels
    code = tl.load(codes + place, mask=there[:, :, None], other=0)
    wide = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    wide = wide * bits.to(tl.float32, bitcast=True)[:, :, None]
    place = rows.to(tl.int64)[:, None] * GROUPS + groups[None, :]
    mask = inside & (rows < num_rows)[:, None]
    place = place[:, :, None] * GROUP + channels
    tl.store(out + place, wide.to(tl.bfloat16), mask=mask[:, :, None])


@triton.jit(do_not_specialize=["num_rows"])
def _gate(
    streams,
    stream_row,
    stream_step,
    key,
    key_row,
    key_step,
    value,
    value_row,
    q_weight,
    k_weight,
    out,
    num_rows,
    eps,
    inverse_root,
    D: tl.constexpr,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    stream = tl.program_id(1)
    columns = tl.arange(0, WIDTH)
    inside = columns < D
    q_gain = tl.load(q_weight + stream * D + columns, mask=inside, other=0.0).to(tl.float32)
    k_gain = tl.load(k_weight + stream * D + columns, mask=inside, other=0.0).to(tl.float32)
    gain = q_gain * k_gain
    for i in range(ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS + i
        mask = columns < tl.where(row < num_rows, D, 0)
        place = streams + row * stream_row + stream * stream_step + columns
        x = tl.load(place, mask=mask, other=0.0).to(tl.float32)
        place = key + row * key_row + stream * key_step + columns
        k = tl.load(place, mask=mask, other=0.0).to(tl.float32)
        added = tl.load(value + row * value_row + columns, mask=mask, other=0.0).to(tl.float32)
        rescale = tl.rsqrt(tl.sum(x * x, 0) / D + eps) * tl.rsqrt(tl.sum(k * k, 0) / D + eps)
        agreement = tl.sum(x * gain * k, 0) * rescale * inverse_root
        # Clamps are written so that NaN stays NaN: a faulty row must not look sound.
        size = tl.abs(agreement)
        root = tl.sqrt_rn(tl.where(size < 1e-6, 1e-6, size))
        root = tl.where(agreement < 0, -root, root)
        gate = 1 / (1 + tl.exp(-tl.where(root < -80.0, -80.0, root)))
        place = out + (row * M + stream) * D + columns
        tl.store(place, (x + gate * added).to(out.dtype.element_ty), mask=mask)
