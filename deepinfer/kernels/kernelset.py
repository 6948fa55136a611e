"""`KernelSet`: one function for each op of the model, chosen once and passed to who needs it.

The reference set (torch) is complete and right. A backend is a set of overrides: an op it lacks is
slow, never wrong. The fields are single ops (`Ops`); the methods are what a backend may do in one
go, and compose the fields where it does not. Knows nothing of layers, requests or files.

Shape letters: see `deepinfer.kernels.values`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.kernels.ops import Ops
from deepinfer.kernels.reference import index, quant
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
    randomise,
)


@dataclass(frozen=True)
class KernelSet(Ops):
    """The ops, and what is made of them."""

    def few_rows(self, packed: Any) -> int:
        """Up to so many rows are multiplied by what `pack_linear` made."""
        raise NotImplementedError

    def packs(self, op: Callable[..., Tensor], weight: Tensor, num_groups: int) -> bool:
        """Whether `pack_linear` makes anything of a weight that `op` multiplies with."""
        return False

    def pack_linear(self, weight: Tensor, num_groups: int) -> Any:
        """A weight [out, in], or [G * out, in], once more, for few rows; None if it cannot be."""
        raise NotImplementedError

    def linear_few_rows(self, x: Tensor, packed: Any) -> Tensor:
        """x [T, in], or [T, G, in], times such a weight: what `op` gives, but for the order of
        additions."""
        raise NotImplementedError

    def beside(self, branch: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A branch of a layer that may run beside what is asked for until its result is wanted, by
        the function that this returns."""
        return branch

    def empty_experts(
        self, num_experts: int, num_inner: int, size: int, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """What `experts` takes as weights, by name and in this order, not filled: w1 and w3
        [E, I, D], w2 [E, D, I]."""
        wide = (num_experts, num_inner, size)
        shapes = {"w1": wide, "w3": wide, "w2": (num_experts, size, num_inner)}
        return {name: torch.empty(shape, dtype=dtype) for name, shape in shapes.items()}

    def fill_expert(
        self, weights: Mapping[str, Tensor], expert: int, files: WeightFiles, prefix: str
    ) -> None:
        """Put one expert of a checkpoint, `<prefix>w1.weight` and so on, into `empty_experts`."""
        for name, stacked in weights.items():
            stacked[expert].copy_(files.decoded(f"{prefix}{name}.weight"))

    def choose_experts(
        self, x: Tensor, weight: Tensor, bias: Tensor, topk: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        """`route` of rows x [T, D], by the router's weight [E, D]."""
        return self.route(self.linear_float32(x, weight), bias, topk, scale)

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
        """`experts` with the weights of `empty_experts`, in its order; what `shared` gives, [T, D],
        is added to the rounded sum, and asked for when that is made.

        first: the number of the first expert that is held; one before it, or after the last, adds
        nothing. None: all are held.
        """
        if first is not None:
            ids = ids - first
            ids = ids.masked_fill((ids < 0) | (ids >= len(held[0])), -1)
        mixed = self.experts(x, ids, weights, *held, limit)
        return mixed if shared is None else mixed + shared()

    def randomise_experts(self, weights: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """Fill `empty_experts` with random numbers (`randomise`)."""
        for stacked in weights.values():
            randomise(stacked, generator)

    def pool_members(self, values: Tensor, scores: Tensor, members: Tensor) -> Tensor:
        """`pool_pairs` of some rows: values, scores float32 [R, C], members int64 [E, r]."""
        return self.pool_pairs(values[members], scores[members])

    def engram_gather(self, codes: Tensor, scales: Tensor, row_ids: Tensor) -> Tensor:
        """Rows of a table, e4m3 codes uint8 [height, C] and exponent codes uint8 [height, C / 32],
        on any device: int64 [...] -> [..., C] on the device of `row_ids`."""
        return quant.gather_fp8_rows(codes, scales, row_ids)

    def window_rows(
        self, x: Tensor, weight: Tensor, eps: float, rotary: Rotary, into: Target | None = None
    ) -> Tensor:
        """x [T, C] -> normed, rotated, as the window caches keep them.

        into: they are written there, and its store is returned.
        """
        rows = self.round_trip_window(self.rotate(self.rms_norm(x, weight, eps), *rotary))
        if into is None:
            return rows
        return into.store.index_copy_(0, into.rows, rows.to(into.store.dtype))

    def latent_rows(
        self,
        latent: Tensor,
        gain: Gain,
        kv: Tensor,
        kv_gain: Gain,
        rotary: Rotary,
        into: Target | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`rms_norm` of the query's latents [T, L], and `window_rows` of kv [T, C]. gain, kv_gain:
        weight and eps."""
        return self.rms_norm(latent, *gain), self.window_rows(kv, *kv_gain, rotary, into)

    def entry_rows(self, latent: Tensor, rotary: Rotary, *, is_fp4: bool) -> Tensor:
        """Normed latents [E, C] -> rotated, as the entry caches keep them."""
        rotated = self.rotate(latent, *rotary)
        return self.round_trip_entry(rotated) if is_fp4 else self.round_trip_window(rotated)

    def index_rows(self, x: Tensor, weight: Tensor, eps: float, rotary: Rotary) -> Tensor:
        """x [E, Ci] -> normed, rotated, as the caches of index keys keep them."""
        return self.round_trip_index(self.rotate(self.rms_norm(x, weight, eps), *rotary))

    def index_query(self, query: Tensor, rotary: Rotary) -> Tensor:
        """query [T, Hi, Ci] -> rotated and rounded as an index key, in query's dtype."""
        return self.round_trip_index(self.rotate(query, *rotary))

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
        """The best `topk` entries of each row, among `candidates` if there are any.

        query [T, Hi, Ci] of `index_query`, weights [T, Hi]; keys: the store of index keys.
        makes_candidates: make them as well, by the rule, from all that is visible.
        """
        scores = index.scores_of_rows(self.index_scores, query, weights, keys, view)
        visible = torch.arange(scores.shape[1], device=keys.device) < view.num_visible[:, None]
        scores = scores.masked_fill(~visible, -torch.inf)
        # A layer that makes candidates still selects among all that is visible itself.
        allowed = visible if candidates is None else candidates
        selected = self.select_entries(scores, allowed, topk)
        made = None
        if makes_candidates:
            made = self.candidate_entries(scores, view.num_visible, *rule)
        return Selection(scores, selected, index.store_rows(selected, view), made)

    def attend_rotated(
        self,
        query: Tensor,
        rotary: Rotary,
        sink: Tensor,
        scale: float,
        *stores: Tensor | None,
    ) -> Tensor:
        """`attend` for a query [T, H, C] that is not rotated yet; the result is turned back.

        Keys and values are one vector, so what is mixed of them comes rotated.
        """
        mixed = self.attend(self.rotate(query, *rotary), sink, scale, *stores)
        return self.rotate(mixed, *rotary.inverse())

    def write_streams(self, streams: Tensor, written: Written | None) -> Tensor:
        """Streams [T, M, D] with what the sublayer before left for them."""
        if written is None:
            return streams
        return self.hyper_expand(written.y, streams, written.post, written.comb)

    def enter_streams(
        self,
        streams: Tensor,
        pre: Tensor,
        written: Written | None,
        mix: HyperWeights,
        norm: Gain,
    ) -> Entered:
        """What is between two sublayers: `written` goes into the streams, the new sublayer's
        coefficients come out of them, and its input, collapsed with the PRECEDING one's `pre`.

        norm: weight [D] and eps.
        """
        streams = self.write_streams(streams, written)
        fn, scale, base, norm_eps, eps, iters = mix
        coefficients = self.hyper_mix(
            streams, fn, scale, base, norm_eps=norm_eps, eps=eps, num_iters=iters
        )
        u = self.rms_norm(self.hyper_collapse(streams, pre), *norm)
        return Entered(streams, u, *coefficients)

    def prepare_mix(self, fn: Tensor, num_streams: int) -> Tensor:
        """`HyperWeights.fn` as `enter_streams` is fastest with it: fn itself, or a tensor that only
        this backend can read."""
        return fn

    def leave_streams(
        self, streams: Tensor, pre: Tensor, written: Written | None, norm: Gain
    ) -> Tensor:
        """The last collapse, normed: [T, D]. norm: weight [D] and eps."""
        return self.rms_norm(self.hyper_collapse(self.write_streams(streams, written), pre), *norm)
