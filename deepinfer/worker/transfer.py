"""Takes one sequence's keys and values out of the pools, and puts them into other blocks and slots.

The prefill/decode split and the cache tiers move sequences this way. Knows where things lie, not when
to move them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from deepinfer.worker.pools import Pools


@dataclass(frozen=True)
class SequenceState:
    """All that is stored of one sequence: its slot's and its blocks' part of each tensor of `Pools`."""

    window: dict[int, Tensor]
    pending: dict[int, Tensor]
    token_ids: Tensor
    entries: dict[int, Tensor]
    keys: dict[int, Tensor]


@torch.inference_mode()
def export_sequence(pools: Pools, slot_id: int, block_ids: Sequence[int]) -> SequenceState:
    """Copies, on the pools' device: later steps may write to the slot and the blocks."""
    blocks = torch.tensor(block_ids, dtype=torch.int64, device=pools.token_ids.device)
    return SequenceState(
        window={layer: pool[slot_id].clone() for layer, pool in pools.window.items()},
        pending={layer: pool[slot_id].clone() for layer, pool in pools.pending.items()},
        token_ids=pools.token_ids[slot_id].clone(),
        entries={layer: pool[blocks] for layer, pool in pools.entries.items()},
        keys={layer: pool[blocks] for layer, pool in pools.keys.items()},
    )


@torch.inference_mode()
def import_sequence(
    pools: Pools, slot_id: int, block_ids: Sequence[int], state: SequenceState
) -> None:
    """Write a state into a slot and blocks, as many as it was exported with, of pools of any size."""
    blocks = torch.tensor(block_ids, dtype=torch.int64, device=pools.token_ids.device)
    pools.token_ids[slot_id] = state.token_ids
    for layer, ring in state.window.items():
        pools.window[layer][slot_id] = ring
    for layer, rows in state.pending.items():
        pools.pending[layer][slot_id] = rows
    for layer, entries in state.entries.items():
        pools.entries[layer].index_copy_(0, blocks, entries.to(pools.entries[layer].device))
        pools.keys[layer].index_copy_(0, blocks, state.keys[layer].to(pools.keys[layer].device))


def state_bytes(state: SequenceState) -> int:
    """Bytes to move."""
    parts = [getattr(state, f.name) for f in fields(state)]
    tensors = [t for part in parts for t in (part.values() if isinstance(part, dict) else [part])]
    return sum(tensor.nbytes for tensor in tensors)
