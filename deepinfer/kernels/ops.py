"""The ops of the model, one field for each, and how their backend wants things kept."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from deepinfer.config.words import Storage


@dataclass(frozen=True)
class Ops:
    """Signatures, shapes and rounding are documented at the reference functions."""

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
    # what is drawn
    pick: Callable[[Tensor, Tensor], Tensor]

    @property
    def storage(self) -> Storage:
        """How the rows of the caches are kept that these ops make and read."""
        return "bfloat16"

    @property
    def joins(self) -> bool:
        """Whether products with the same rows are better made as one."""
        return False

    @property
    def widens(self) -> bool:
        """Whether `linear_float32` computes from float32 copies of weights that are kept so."""
        return True

    @property
    def of_fp8(self) -> tuple[Callable[..., Tensor], ...]:
        """Ops whose weights the release stores in FP8, one scale for 32 x 32."""
        return self.linear_quantised, self.grouped_linear
