"""What ops take and return besides plain tensors, and how a weight is filled at random.

Knows no op. Shape letters: T rows, D hidden_size, M hyper-connection streams, H heads, C head_dim,
W window, N entries of a sequence, K selected entries, E experts.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Rotary(NamedTuple):
    """cos and sin of each row's angles, float32 [T, qk_rope_head_dim / 2] each."""

    cos: Tensor
    sin: Tensor

    def inverse(self) -> "Rotary":
        """The rotation back."""
        return Rotary(self.cos, -self.sin)


Gain = tuple[Tensor, float]
"""Of an RMS norm: weight and eps."""


class Target(NamedTuple):
    """Where new rows go: a store [*, C] without gaps, and the place in it of each of T rows, int64
    [T], no two alike but where nobody reads."""

    store: Tensor
    rows: Tensor


class EntryView(NamedTuple):
    """Which entries the T rows of a forward see, and where these lie in a store.

    Entry j of sequence b is row blocks[b, j // per_block] * per_block + j % per_block of the store.
    blocks: int64 [B, n], any block of the store where the sequence has none. sequence_ids,
    num_visible: int64 [T], a row's sequence, and how many of its entries the row sees. groups: rows
    whose scores are computed together, as in `Batch`.
    """

    blocks: Tensor
    per_block: int
    sequence_ids: Tensor
    num_visible: Tensor
    groups: tuple[Tensor, ...]

    @property
    def num_entries(self) -> int:
        """How many entries a sequence has room for."""
        return self.blocks.shape[1] * self.per_block


class CandidateRule(NamedTuple):
    """Blocks of `block_size` entries; the best `topk_blocks` of them are kept (spec 7.5)."""

    block_size: int
    topk_blocks: int


class Selection(NamedTuple):
    """Entries that rows attend to.

    scores: float32 [T, N], -inf where an entry is not visible; None where a backend keeps none.
    selected: int64 [T, K], entry numbers within the row's sequence, ascending, then -1; likewise.
    rows: int [T, K], the same as rows of the store. candidates: what later selections may choose
    from, as the backend keeps it (bool [T, N] in the reference); None where none were made.
    """

    scores: Tensor | None
    selected: Tensor | None
    rows: Tensor
    candidates: Tensor | None


class HyperWeights(NamedTuple):
    """Of one sublayer's hyper-connection, as `hyper_mix` takes them."""

    fn: Tensor
    scale: Tensor
    base: Tensor
    norm_eps: float
    eps: float
    num_iters: int


class Written(NamedTuple):
    """What a sublayer leaves to be written into the streams: y [T, D], post float32 [T, M], comb
    float32 [T, M, M]."""

    y: Tensor
    post: Tensor
    comb: Tensor


class Entered(NamedTuple):
    """A sublayer's start: streams [T, M, D] with all that came before, its normed input u [T, D],
    and its own coefficients, float32 (`hyper_mix`)."""

    streams: Tensor
    u: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor


class WeightFiles(Protocol):
    """Tensors of a checkpoint by released name."""

    def raw(self, name: str) -> Tensor:
        """As stored; scales of the released type as uint8 exponent codes."""
        ...

    def decoded(self, name: str) -> Tensor:
        """The numbers that it stands for."""
        ...


def randomise(weight: Tensor, generator: torch.Generator) -> None:
    """Fill a weight [.., in] so that activations keep their size from layer to layer, as in a
    trained network."""
    weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=generator)


def rotary(positions: Tensor, frequencies: Tensor) -> Rotary:
    """cos and sin for int64 positions [T] and float32 frequencies [R]; the angle is a float32
    product.
    """
    angles = positions.to(torch.float32)[:, None] * frequencies
    return Rotary(angles.cos(), angles.sin())
