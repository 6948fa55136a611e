"""The memory of all sequences: blocks and slots as tensors, and the store that a forward sees.

Blocks hold entries and index keys of the source layers; slots hold windows, what the compressor has
pending, and the last token ids. Who owns which is the host's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.cache.layout import BLOCK_TOKENS, SLACK_ROWS, vector_bytes
from deepinfer.config.layers import plan_layers
from deepinfer.config.model import ModelConfig
from deepinfer.config.words import Storage
from deepinfer.kernels.values import Target
from deepinfer.worker.step_index import StepIndex


@dataclass(frozen=True)
class Pools:
    """All tensors, by layer id. Rows are values, [.., C] and [.., Ci], or bytes where caches are
    packed (spec 14.2 to 14.4: codes, then scales).

    window: [num_slots + 1, W + SLACK_ROWS, C], position p in row p modulo the ring. The last slot
        is no sequence's: rows that pad a step leave there what they have.
    draft_window: the same for the draft blocks, by their number.
    pending: float32 [num_slots + 1, SLACK_ROWS, 2, C], values and scores, position p modulo
        SLACK_ROWS.
    token_ids: int32 [num_slots + 1, SLACK_ROWS], the same way.
    entries: [num_blocks + 1, 128 / ratio, C]; keys: [num_blocks + 1, 128 / ratio, Ci]. The last
        block is no sequence's: see `index_step`.
    """

    window: dict[int, Tensor]
    draft_window: dict[int, Tensor]
    pending: dict[int, Tensor]
    token_ids: Tensor
    entries: dict[int, Tensor]
    keys: dict[int, Tensor]

    @property
    def spare_slot(self) -> int:
        """The slot that is no sequence's."""
        return len(self.token_ids) - 1

    @property
    def spare_block(self) -> int:
        """The block that is no sequence's."""
        return len(next(iter(self.entries.values()))) - 1 if self.entries else 0


def make_pools(
    config: ModelConfig,
    num_blocks: int,
    num_slots: int,
    *,
    storage: Storage = "bfloat16",
    device: str = "cpu",
) -> Pools:
    """Allocate, zeroed. Values in the caches' formats are exact in bfloat16, whatever is computed
    in.
    """
    dtype = torch.uint8 if storage == "packed" else getattr(torch, storage)

    def zeros(*shape: int, kept_as: torch.dtype = dtype) -> Tensor:
        return torch.zeros(*shape, dtype=kept_as, device=device)

    plans, head = plan_layers(config), config.head_dim
    vector = vector_bytes(config, storage)
    entry, key = vector.entry // dtype.itemsize, vector.index_key // dtype.itemsize
    sources = {plan.layer_id: BLOCK_TOKENS // plan.ratio for plan in plans if plan.owns_kv}
    num_rings = num_slots + 1
    ring = (num_rings, config.sliding_window + SLACK_ROWS, vector.window // dtype.itemsize)
    return Pools(
        window={plan.layer_id: zeros(*ring) for plan in plans},
        draft_window={block: zeros(*ring) for block in range(config.num_nextn_predict_layers)},
        pending={
            plan.layer_id: zeros(num_rings, SLACK_ROWS, 2, head, kept_as=torch.float32)
            for plan in plans
            if plan.owns_kv and plan.ratio > 1
        },
        token_ids=zeros(num_rings, SLACK_ROWS, kept_as=torch.int32),
        entries={layer: zeros(num_blocks + 1, rows, entry) for layer, rows in sources.items()},
        keys={layer: zeros(num_blocks + 1, rows, key) for layer, rows in sources.items()},
    )


class PagedStore:
    """`KVStore` over the pools, for the rows of one step. Every layer must ask once, in order."""

    def __init__(self, pools: Pools, index: StepIndex, ratios: Mapping[int, int]) -> None:
        """ratios: of the layers that make entries, by layer id."""
        self._pools, self._index, self._ratios = pools, index, ratios

    def target(self, layer_id: int) -> Target | None:
        """The layer's ring if the new rows fit in beside all they see."""
        if self._index.history is not None:
            return None
        return Target(self._pools.window[layer_id].flatten(0, 1), self._index.window_write)

    def window(self, layer_id: int, kv: Tensor) -> Tensor:
        """History, then the rows, of a step that has no `target`."""
        ring, index = self._pools.window[layer_id].flatten(0, 1), self._index
        assert index.history is not None
        # Read before written: a long chunk overwrites the very positions that its first rows see.
        history = ring.index_select(0, index.history)
        ring.index_copy_(
            0, index.window_write, kv.index_select(0, index.window_rows).to(ring.dtype)
        )
        return torch.cat((history.to(kv.dtype), kv))

    def pending(self, layer_id: int, values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The rows, then for each sequence the position before its first row."""
        pool, index = self._pools.pending[layer_id].flatten(0, 1), self._index
        old = pool[index.slack_read]
        new = torch.stack((values[index.slack_rows], scores[index.slack_rows]), 1)
        pool.index_copy_(0, index.slack_write, new)
        return torch.cat((values, old[:, 0])), torch.cat((scores, old[:, 1]))

    def entries(self, layer_id: int, entries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's blocks, with the new entries written."""
        write = self._index.entries[self._ratios[layer_id]].write
        entry_pool = self._pools.entries[layer_id].flatten(0, 1)
        key_pool = self._pools.keys[layer_id].flatten(0, 1)
        entry_pool.index_copy_(0, write, entries.to(entry_pool.dtype))
        key_pool.index_copy_(0, write, keys.to(key_pool.dtype))
        return entry_pool, key_pool
