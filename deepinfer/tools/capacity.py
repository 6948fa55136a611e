"""What a memory holds of a model, from its configuration alone. Arithmetic; never imports torch.

Two ways of keeping a model are laid side by side: in the released formats, and plain, as this
engine does on a CPU. Counts weights and caches; what a step needs for its own tensors comes on top
and is small beside them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from deepinfer.cache.layout import (
    BLOCK_TOKENS,
    Part,
    block_parts,
    blocks_for,
    slot_parts,
    total_bytes,
)
from deepinfer.checkpoint.formats import DTYPE_BYTES, F32, TensorSpec
from deepinfer.checkpoint.inventory import inventory
from deepinfer.config.model import ModelConfig
from deepinfer.config.words import Storage
from deepinfer.errors import ConfigError
from deepinfer.tools.inspect import GROUPS

# Never in memory: tables are read row by row from their file, images are not read yet.
_NOT_LOADED = r"(vision|aligner)\..*|image_.*|.*\.engram\.embed\..*|.*\.gate\.bias_vl"
# Computed with in float32, and so kept in it; so are both weights of a compressor that has a gate.
_WIDE = (
    r".*norm\.weight|.*\.gate\.weight|(.*\.)?head\.weight|.*\.confidence_head\..*"
    r"|.*\.engram\.[qk]_weight"
)


@dataclass(frozen=True, slots=True)
class Column:
    """One way of keeping a model.

    weights: bytes by group, in the order of GROUPS. left: bytes that are left for caches; below 0
    not even the weights fit. num_tokens: what the blocks hold together when the asked batch has its
    slots. max_context: longest context that every sequence of the asked batch can have. max_batch:
    most sequences of the asked context.
    """

    name: str
    weights: tuple[int, ...]
    block: tuple[Part, ...]
    slot: tuple[Part, ...]
    left: int
    num_tokens: int
    max_context: int
    max_batch: int

    @property
    def weight_bytes(self) -> int:
        """All weights in memory."""
        return sum(self.weights)

    @property
    def token_bytes(self) -> float:
        """Of one token of context, in all layers."""
        return total_bytes(self.block) / BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. disk: bytes of the checkpoint's tensors by group."""

    config: ModelConfig
    memory_bytes: int
    context: int
    batch: int
    disk: tuple[int, ...]
    released: Column
    plain: Column

    @property
    def fits(self) -> bool:
        """This engine holds the asked batch at the asked context."""
        return self.plain.max_batch >= self.batch


def plan(
    config: ModelConfig,
    memory_bytes: int,
    context: int,
    batch: int,
    *,
    dtype: Storage = "bfloat16",
) -> Plan:
    """What `memory_bytes` hold: weights, then a slot for each sequence, then blocks.

    context: tokens of prompt and output of each of the `batch` sequences. dtype: what is computed
    in, which says how weights are kept; caches are bfloat16 all the same. Raises ConfigError for a
    number outside its range.
    """
    longest = config.max_position_embeddings
    _check("--memory", memory_bytes, 1, 2**60)
    _check("--context", context, 1, longest)
    _check("--batch", batch, 1, 2**20)
    specs = inventory(config)
    loaded = {name: spec for name, spec in specs.items() if not re.fullmatch(_NOT_LOADED, name)}
    wide = _wide_names(loaded)
    asked = (config, memory_bytes, context, batch)
    return Plan(
        *asked,
        disk=_by_group({name: spec.num_bytes for name, spec in specs.items()}),
        released=_column(
            "released formats",
            _by_group({name: spec.num_bytes for name, spec in loaded.items()}),
            "packed",
            *asked,
        ),
        plain=_column(
            f"plain {dtype}",
            _by_group(
                {
                    name: _plain_bytes(spec, "float32" if name in wide else dtype)
                    for name, spec in loaded.items()
                }
            ),
            "bfloat16",
            *asked,
        ),
    )


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(
            f"found {value}, expected a whole number from {low} to {high}",
            where=name,
            hint="the model's own context is the longest" if name == "--context" else "correct it",
        )


def _wide_names(specs: Iterable[str]) -> set[str]:
    """Weights that are kept in float32 although the release stores them in fewer bits."""
    names = set(specs)
    gated = {name.removesuffix("wgate.weight") for name in names if name.endswith(".wgate.weight")}
    pooled = {prefix + part for prefix in gated for part in ("wkv.weight", "wgate.weight")}
    return pooled | {name for name in names if re.fullmatch(_WIDE, name)}


def _plain_bytes(spec: TensorSpec, dtype: Storage) -> int:
    """Decoded: scales are gone, and what the release keeps in float32 stays so."""
    if spec.is_scale:
        return 0
    size = DTYPE_BYTES["F32" if spec.format is F32 or dtype == "float32" else "BF16"]
    return prod(spec.value_shape) * size


def _by_group(sizes: dict[str, int]) -> tuple[int, ...]:
    sums = {group: 0 for group, _ in GROUPS}
    for name, num_bytes in sizes.items():
        sums[next(group for group, pattern in GROUPS if re.fullmatch(pattern, name))] += num_bytes
    return tuple(sums.values())


def _column(
    name: str,
    weights: tuple[int, ...],
    storage: Storage,
    config: ModelConfig,
    memory_bytes: int,
    context: int,
    batch: int,
) -> Column:
    block, slot = block_parts(config, storage), slot_parts(config, storage)
    block_bytes, slot_bytes = total_bytes(block), total_bytes(slot)
    left = memory_bytes - sum(weights)
    for_blocks = max(0, left - batch * slot_bytes)
    return Column(
        name=name,
        weights=weights,
        block=block,
        slot=slot,
        left=left,
        num_tokens=for_blocks // block_bytes * BLOCK_TOKENS,
        max_context=min(
            for_blocks // (batch * block_bytes) * BLOCK_TOKENS, config.max_position_embeddings
        ),
        max_batch=max(0, left) // (slot_bytes + blocks_for(context) * block_bytes),
    )
