"""What becomes of the product that an attention sublayer starts with, in one kernel.

The query's latents are normed, the window's keys and values made and stored: neither waits for the
other.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.triton import cache_rows, chain
from deepinfer.kernels.triton.cache_formats import FP8
from deepinfer.kernels.triton.sizes import next_power_of_2
from deepinfer.kernels.values import Gain, Rotary, Target


def latent_rows(
    latent: Tensor, gain: Gain, kv: Tensor, kv_gain: Gain, rotary: Rotary, into: Target | None
) -> tuple[Tensor, Tensor]:
    """`rms_norm` of latents bf16 [T, L] and `window_rows` of kv bf16 [T, C], to the bit.

    gain, kv_gain: weights [L] and [C], each with eps. Rows may lie apart.
    """
    warps = cache_rows.norm_warps(latent.shape[1])
    if warps != cache_rows.encode_warps(kv.shape[1]) or min(latent.stride(1), kv.stride(1)) != 1:
        # Another number of warps would give other bits.
        normed = cache_rows.rms_norm(latent, *gain)
        return normed, cache_rows.window_rows(kv, *kv_gain, *rotary, into)
    normed = torch.empty(latent.shape, dtype=latent.dtype, device=latent.device)
    rows = cache_rows.empty_window(kv) if into is None else into.store
    if len(latent):
        _latents_kernel[(len(latent), 2)](
            *(latent, gain[0], normed, latent.stride(0), gain[1]),
            *(kv, kv_gain[0], *rotary, rows, None if into is None else into.rows),
            *(kv.stride(0), kv_gain[1]),
            L=latent.shape[1],
            BLOCK=next_power_of_2(latent.shape[1]),
            C=kv.shape[1],
            R=rotary.cos.shape[1],
            NATIVE=kv.is_cuda,
            **chain.launch(kv.device),
            num_warps=warps,
        )
    return normed, rows


@triton.jit
def _latents_kernel(
    latent, gain, normed, latent_stride, latent_eps,
    kv, kv_gain, cos, sin, out, places, stride, eps,
    L: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr, R: tl.constexpr, NATIVE: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    chain.start(CHAINED)
    # What takes longer comes first.
    if tl.program_id(1) == 0:
        cache_rows._encode_kernel(
            kv, kv_gain, cos, sin, out, places, stride, eps, 1,
            C, R, True, FP8, NATIVE, False,
        )  # fmt: skip
    else:
        cache_rows._norm_kernel(
            latent, gain, normed, latent_stride, latent_eps, L, BLOCK, NATIVE, False,
        )  # fmt: skip
