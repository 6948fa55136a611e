"""The set of Triton kernels as it is asked for: the fields of the reference's that it replaces."""

from dataclasses import fields
from functools import partial

import torch.nn.functional as F

from deepinfer.config.words import ActQuant
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.kernels.triton import cache_rows, dense, engram, experts, linear, pick, route
from deepinfer.kernels.triton.backend import TritonKernels


def triton_kernels(
    reference: KernelSet, act_quant: ActQuant, *, is_invariant: bool
) -> TritonKernels:
    """The set; what it does not override stays the reference's."""
    plain = {field.name: getattr(reference, field.name) for field in fields(reference)}
    quantise = experts.round_rows if act_quant == "fp8" else dense.keep
    product = dense.invariant if is_invariant else F.linear
    overrides = {
        "name": "triton",
        "linear": product,
        "linear_float32": dense.invariant_float32 if is_invariant else dense.linear_float32,
        "linear_quantised": partial(dense.linear_quantised, product, quantise),
        "grouped_linear": linear.grouped_invariant if is_invariant else dense.grouped_linear,
        "rms_norm": cache_rows.rms_norm,
        "route": route.route,
        "swiglu": linear.swiglu,
        "engram_rows": engram.engram_rows,
        "engram_gate": engram.engram_gate,
        "pick": pick.pick,
    }
    return TritonKernels(**{**plain, **overrides}, act_quant=act_quant, is_invariant=is_invariant)
