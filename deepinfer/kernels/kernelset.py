"""`KernelSet`: one function for each op of the model, chosen once and passed to who needs it.

The reference set (torch) is complete and right. A backend is a set of overrides: an op it lacks is
slow, never wrong. Knows nothing of layers, requests or files.

Shape letters: T rows, D hidden_size, M hyper-connection streams, H heads, C head_dim, W window,
N entries of a sequence, K selected entries, E experts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.config.words import ActQuant
from deepinfer.kernels.reference import (
    attend,
    compress,
    engram,
    hyper,
    index,
    linear,
    moe,
    norm_rope,
    quant,
)


class Rotary(NamedTuple):
    """cos and sin of each row's angles, float32 [T, qk_rope_head_dim / 2] each."""

    cos: Tensor
    sin: Tensor

    def inverse(self) -> "Rotary":
        """The rotation back."""
        return Rotary(self.cos, -self.sin)


@dataclass(frozen=True)
class KernelSet:
    """The ops. Signatures, shapes and rounding are documented at the reference functions."""

    name: str
    # linear layers: weights the release stores plain, and those it stores in FP8
    linear: Callable[..., Tensor]
    linear_float32: Callable[..., Tensor]
    linear_quantised: Callable[..., Tensor]
    grouped_linear: Callable[..., Tensor]
    # element-wise
    rms_norm: Callable[..., Tensor]
    rotate: Callable[..., Tensor]
    # the caches' formats
    round_trip_window: Callable[[Tensor], Tensor]
    round_trip_entry: Callable[[Tensor], Tensor]
    round_trip_index: Callable[[Tensor], Tensor]
    # hyper-connections
    hyper_mix: Callable[..., tuple[Tensor, Tensor, Tensor]]
    hyper_collapse: Callable[..., Tensor]
    hyper_expand: Callable[..., Tensor]
    # attention
    pool_pairs: Callable[..., Tensor]
    index_scores: Callable[..., Tensor]
    select_entries: Callable[..., Tensor]
    candidate_entries: Callable[..., Tensor]
    attend: Callable[..., Tensor]
    # experts
    route: Callable[..., tuple[Tensor, Tensor]]
    swiglu: Callable[..., Tensor]
    experts: Callable[..., Tensor]
    # Engram
    engram_rows: Callable[..., Tensor]
    engram_gate: Callable[..., Tensor]


def load_kernels(name: str = "reference", *, act_quant: ActQuant = "off") -> KernelSet:
    """The ops of backend `name`.

    act_quant="fp8" rounds the input of every linear whose weight the release stores in FP8 or FP4
    to FP8 in groups of 32 (spec 14.1); "off" leaves it in the compute dtype. Raises KeyError for an
    unknown name.
    """
    kernels = {"reference": _REFERENCE}[name]
    if act_quant == "off":
        return kernels
    quantise = quant.round_trip_fp8
    return replace(
        kernels,
        linear_quantised=partial(linear.linear_quantised, quantise=quantise),
        experts=partial(moe.experts, quantise=quantise),
    )


def rotary(positions: Tensor, frequencies: Tensor) -> Rotary:
    """cos and sin for int64 positions [T] and float32 frequencies [R]; the angle is a float32
    product.
    """
    angles = positions.to(torch.float32)[:, None] * frequencies
    return Rotary(angles.cos(), angles.sin())


_REFERENCE = KernelSet(
    name="reference",
    linear=linear.linear,
    linear_float32=linear.linear_float32,
    linear_quantised=linear.linear_quantised,
    grouped_linear=linear.grouped_linear,
    rms_norm=norm_rope.rms_norm,
    rotate=norm_rope.rotate,
    round_trip_window=quant.round_trip_fp8,
    round_trip_entry=quant.round_trip_nvfp4,
    round_trip_index=quant.round_trip_mxfp4,
    hyper_mix=hyper.hyper_mix,
    hyper_collapse=hyper.hyper_collapse,
    hyper_expand=hyper.hyper_expand,
    pool_pairs=compress.pool_pairs,
    index_scores=index.index_scores,
    select_entries=index.select_entries,
    candidate_entries=index.candidate_entries,
    attend=attend.attend,
    route=moe.route,
    swiglu=moe.swiglu,
    experts=moe.experts,
    engram_rows=engram.engram_rows,
    engram_gate=engram.engram_gate,
)
