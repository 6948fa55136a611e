"""Takes one sequence's keys and values out of the pools, and puts them into other blocks and slots.

The prefill/decode split and the cache tiers move sequences this way. Knows where things lie, not
when to move them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.worker.pools import Pools

# The tensors of `Pools` by what their first axis counts.
_PER_SLOT = ("window", "draft_window", "pending", "token_ids")
_PER_BLOCK = ("entries", "keys")

# (field of Pools, layer id or None) -> tensor
Part = tuple[str, int | None]


@dataclass(frozen=True)
class SequenceState:
    """All that is stored of a sequence: its slot's part of some tensors, its blocks' of others."""

    slot: dict[Part, Tensor]
    blocks: dict[Part, Tensor]

    @property
    def num_bytes(self) -> int:
        """Bytes to move."""
        return sum(tensor.nbytes for tensor in (*self.slot.values(), *self.blocks.values()))


@torch.inference_mode()
def export_sequence(pools: Pools, slot_id: int, block_ids: Sequence[int]) -> SequenceState:
    """Copies, on the pools' device: later steps may write to the slot and the blocks."""
    blocks = _ids(pools, block_ids)
    return SequenceState(
        slot={part: pool[slot_id].clone() for part, pool in _parts(pools, _PER_SLOT)},
        blocks={part: pool[blocks] for part, pool in _parts(pools, _PER_BLOCK)},
    )


@torch.inference_mode()
def import_sequence(
    pools: Pools, slot_id: int, block_ids: Sequence[int], state: SequenceState
) -> None:
    """Write a state into a slot and into blocks, as many as it came from, of pools of any size."""
    blocks = _ids(pools, block_ids)
    for part, pool in _parts(pools, _PER_SLOT):
        pool[slot_id] = state.slot[part]
    for part, pool in _parts(pools, _PER_BLOCK):
        pool[blocks] = state.blocks[part].to(pool.device)


def _parts(pools: Pools, names: Sequence[str]) -> Iterator[tuple[Part, Tensor]]:
    for name in names:
        held = getattr(pools, name)
        if isinstance(held, dict):
            yield from (((name, layer_id), pool) for layer_id, pool in held.items())
        else:
            yield (name, None), held


def _ids(pools: Pools, block_ids: Sequence[int]) -> Tensor:
    return torch.tensor(block_ids, dtype=torch.int64, device=pools.token_ids.device)
