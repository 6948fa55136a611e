"""The sets of ops that there are: the reference's, and what backends replace of it."""

from dataclasses import replace
from functools import partial

from deepinfer.config.words import ActQuant
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.kernels.reference import (
    attend,
    compress,
    engram,
    hyper,
    index,
    linear,
    moe,
    norm_rope,
    pick,
    quant,
)


def load_kernels(
    name: str = "reference", *, act_quant: ActQuant = "off", is_invariant: bool = False
) -> KernelSet:
    """The ops of backend `name`: reference, or triton for NVIDIA GPUs.

    act_quant="fp8" rounds the input of every linear whose weight the release stores in FP8 or FP4
    to FP8 in groups of 32 (spec 14.1); "off" leaves it in the compute dtype. is_invariant: a row
    has the same bits in any batch, where a backend has to pay for that. Raises KeyError for an
    unknown name.
    """
    if name == "triton":
        # Late: the package comes with GPUs only.
        from deepinfer.kernels.triton.compose import triton_kernels

        return triton_kernels(_REFERENCE, act_quant, is_invariant=is_invariant)
    kernels = {"reference": _REFERENCE}[name]
    if act_quant == "off":
        return kernels
    quantise = quant.round_trip_fp8
    return replace(
        kernels,
        linear_quantised=partial(linear.linear_quantised, quantise=quantise),
        experts=partial(moe.experts, quantise=quantise),
    )


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
    pick=pick.pick,
)
