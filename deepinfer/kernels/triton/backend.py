"""The ops for NVIDIA GPUs: which of the reference's they replace, and what they do in one go.

Caches are kept packed, experts in FP4, all other weights in bfloat16: the values of the released
formats are exact in it, and cuBLAS is fastest so. Computes in bfloat16 only; float32 is the
reference's business.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.config.words import ActQuant, Storage
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.kernels.reference import quant
from deepinfer.kernels.triton import (
    cache_rows,
    engram,
    expert_weights,
    experts,
    hyper,
    latents,
    linear_fp8,
    packed_fp8,
    route,
    selection,
)
from deepinfer.kernels.triton.attend import attend
from deepinfer.kernels.triton.beside import beside
from deepinfer.kernels.triton.expert_weights import ExpertWeights
from deepinfer.kernels.triton.pool import pool_pairs
from deepinfer.kernels.values import (
    CandidateRule,
    Entered,
    EntryView,
    Gain,
    HyperWeights,
    Rotary,
    Selection,
    Target,
    WeightFiles,
    Written,
)

# What random FP4 codes have as root mean square: of 0, 0.5, 1, 1.5, 2, 3, 4 and 6.
_CODE_RMS = 2.93
_EXPERT_TENSORS = ("gate_up", "gate_up_scales", "down", "down_scales")


@dataclass(frozen=True)
class TritonKernels(KernelSet):
    """act_quant: of the experts' products. is_invariant: a row has the same bits in any batch."""

    act_quant: ActQuant = "off"
    is_invariant: bool = False

    @property
    def storage(self) -> Storage:
        """The released formats."""
        return "packed"

    @property
    def joins(self) -> bool:
        """Yes: a small weight alone is read at a part of the memory's rate."""
        return True

    @property
    def widens(self) -> bool:
        """No: bfloat16 times bfloat16 is added up in float32 without copies."""
        return False

    def few_rows(self, packed: packed_fp8.PackedFp8) -> int:
        """As long as reading half the bytes makes it faster than cuBLAS."""
        return linear_fp8.most_rows(packed)

    def beside(self, branch: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """On a stream of its own, where that costs the host nothing."""
        return beside(branch)

    def packs(self, op: Callable[..., Tensor], weight: Tensor, num_groups: int) -> bool:
        """FP8 weights of whole blocks, where rows may depend on their number."""
        sizes = (len(weight) // num_groups, weight.shape[1])
        is_whole = not any(size % packed_fp8.BLOCK for size in sizes)
        return not self.is_invariant and op in self.of_fp8 and is_whole

    def pack_linear(self, weight: Tensor, num_groups: int) -> packed_fp8.PackedFp8 | None:
        """None of a weight that is not FP8 after all, as others may store it."""
        try:
            return packed_fp8.pack_fp8(weight, num_groups)
        except ValueError:
            return None

    def linear_few_rows(self, x: Tensor, packed: packed_fp8.PackedFp8) -> Tensor:
        """In FP8, as they are kept. Rows are rounded where `linear_quantised` rounds them."""
        if self.act_quant == "fp8" and x.dim() == 2:
            x = experts.round_rows(x)
        return linear_fp8.linear_fp8(x, packed)

    def empty_experts(
        self, num_experts: int, num_inner: int, size: int, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """The tensors of `ExpertWeights`, on the default device. dtype: not used."""
        device = str(torch.get_default_device())
        packed = expert_weights.empty_experts(num_experts, size, num_inner, device)
        return {name: getattr(packed, name) for name in _EXPERT_TENSORS}

    def fill_expert(
        self, weights: Mapping[str, Tensor], expert: int, files: WeightFiles, prefix: str
    ) -> None:
        """From the codes as stored; nothing is decoded."""
        w1, w3, w2 = (
            (files.raw(f"{prefix}{name}.weight"), _exponents(files, f"{prefix}{name}.scale"))
            for name in ("w1", "w3", "w2")
        )
        size, num_inner = len(w2[0]), len(w1[0])
        packed = _packed(tuple(weights.values()), size, num_inner)
        expert_weights.pack_expert(packed, expert, w1, w3, w2)

    def randomise_experts(self, weights: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """Any codes; one scale for all, so that activations keep their size."""
        for name in ("gate_up", "down"):
            codes, scales = weights[name], weights[f"{name}_scales"]
            num_inputs = codes.shape[1] * expert_weights.DEPTH
            codes.random_(-(2**31), 2**31 - 1, generator=generator)
            scales.fill_(127 - round(math.log2(_CODE_RMS * num_inputs**0.5)))

    def choose_experts(
        self, x: Tensor, weight: Tensor, bias: Tensor, topk: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Of few rows in two kernels, one for parts of the logits and one that adds them up."""
        if self.is_invariant or len(x) > route.FEW_ROWS:
            return super().choose_experts(x, weight, bias, topk, scale)
        return self.route(route.logit_parts(x, weight), bias, topk, scale)

    def mix_experts(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        held: tuple[Tensor, ...],
        num_inner: int,
        limit: float,
        first: int | None = None,
        shared: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """In FP4, as they are kept."""
        packed, where = _packed(held, x.shape[1], num_inner), (first or 0, shared)
        return experts.experts(x, ids, weights, packed, limit, *where, act_quant=self.act_quant)

    def pool_members(self, values: Tensor, scores: Tensor, members: Tensor) -> Tensor:
        """One kernel that gathers by itself."""
        return pool_pairs(values, scores, members)

    def engram_gather(self, codes: Tensor, scales: Tensor, row_ids: Tensor) -> Tensor:
        """The device reads a table in pinned host memory by itself."""
        return engram.engram_gather(codes, scales, row_ids)

    def window_rows(
        self, x: Tensor, weight: Tensor, eps: float, rotary: Rotary, into: Target | None = None
    ) -> Tensor:
        """One kernel."""
        return cache_rows.window_rows(x, weight, eps, *rotary, into)

    def latent_rows(
        self,
        latent: Tensor,
        gain: Gain,
        kv: Tensor,
        kv_gain: Gain,
        rotary: Rotary,
        into: Target | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One kernel."""
        return latents.latent_rows(latent, gain, kv, kv_gain, rotary, into)

    def entry_rows(self, latent: Tensor, rotary: Rotary, *, is_fp4: bool) -> Tensor:
        """One kernel."""
        return cache_rows.entry_rows(latent, *rotary, is_fp4)

    def index_rows(self, x: Tensor, weight: Tensor, eps: float, rotary: Rotary) -> Tensor:
        """One kernel."""
        return cache_rows.index_rows(x, weight, eps, *rotary)

    def index_query(self, query: Tensor, rotary: Rotary) -> Tensor:
        """One kernel."""
        return cache_rows.index_query(query, *rotary)

    def select(
        self,
        query: Tensor,
        weights: Tensor,
        keys: Tensor,
        view: EntryView,
        topk: int,
        rule: CandidateRule,
        candidates: Tensor | None = None,
        *,
        makes_candidates: bool = False,
    ) -> Selection:
        """candidates: numbers of blocks, int32 [T, kb], ascending, then -1. Scores are kept in
        bfloat16, to which they are rounded anyway, and given back to nobody."""
        asked = topk, rule, candidates
        return selection.select(
            *(query, weights, keys, view, *asked),
            makes_candidates=makes_candidates,
            is_invariant=self.is_invariant,
        )

    def attend_rotated(
        self, query: Tensor, rotary: Rotary, sink: Tensor, scale: float, *stores: Tensor | None
    ) -> Tensor:
        """Rotation and its inverse are part of the kernel."""
        window, window_index, *entries = stores
        assert window is not None and window_index is not None
        stored = window, window_index, *entries
        return attend(query, rotary, sink, scale, *stored, is_invariant=self.is_invariant)

    def enter_streams(
        self,
        streams: Tensor,
        pre: Tensor,
        written: Written | None,
        mix: HyperWeights,
        norm: Gain,
    ) -> Entered:
        """Two kernels."""
        return hyper.hyper_enter(streams, pre, written, mix, norm[0])

    def prepare_mix(self, fn: Tensor, num_streams: int) -> Tensor:
        """Cut into pieces of bfloat16."""
        return hyper.prepared(fn, num_streams)

    def write_streams(self, streams: Tensor, written: Written | None) -> Tensor:
        """One kernel."""
        return streams if written is None else hyper.hyper_write(streams, written)

    def leave_streams(
        self, streams: Tensor, pre: Tensor, written: Written | None, norm: Gain
    ) -> Tensor:
        """Two kernels."""
        return hyper.hyper_exit(streams, pre, written, *norm)


def _packed(held: tuple[Tensor, ...], size: int, num_inner: int) -> ExpertWeights:
    gate_up, gate_up_scales, down, down_scales = held
    return ExpertWeights(gate_up, gate_up_scales, down, down_scales, size, num_inner)


def _exponents(files: WeightFiles, name: str) -> Tensor:
    """Scales as uint8 exponent codes, however they are spelled in the file."""
    return quant.encode_ue8m0(files.decoded(name))
