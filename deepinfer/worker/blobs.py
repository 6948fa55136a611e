"""Blocks as bytes and back: what the tiers behind the device keep.

A blob is all that one block holds of all source layers, one part after another, in the pools' own
format. Knows where it lies; not when to move it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from deepinfer.sampling.arrays import fetch, on_device
from deepinfer.worker.pools import Pools


def blob_bytes(pools: Pools) -> int:
    """Bytes of a blob."""
    return sum(pool[0].nbytes for pool in _parts(pools))


@torch.inference_mode()
def start_save(pools: Pools, block_ids: Sequence[int]) -> Callable[[], list[bytes]]:
    """Take blocks as they are now. The function that it returns waits for their blobs."""
    at = _ids(pools, block_ids)
    parts = [pool[at].flatten(1).view(torch.uint8) for pool in _parts(pools)]
    wait = fetch([torch.cat(parts, 1)])
    return lambda: [row.tobytes() for row in wait()[0]]


@torch.inference_mode()
def load(pools: Pools, block_ids: Sequence[int], blobs: Sequence[bytes]) -> None:
    """Write blobs into blocks."""
    at = _ids(pools, block_ids)
    rows = np.stack([np.frombuffer(blob, np.uint8) for blob in blobs])
    assert rows.shape[1] == blob_bytes(pools), "a blob of another model"
    first = 0
    for pool in _parts(pools):
        size = pool[0].nbytes
        part = on_device(np.ascontiguousarray(rows[:, first : first + size]), pool.device)
        pool.index_copy_(0, at, part.view(pool.dtype).view(-1, *pool.shape[1:]))
        first += size


def _parts(pools: Pools) -> list[Tensor]:
    """Entries and index keys of all source layers."""
    return [held[layer] for held in (pools.entries, pools.keys) for layer in sorted(held)]


def _ids(pools: Pools, block_ids: Sequence[int]) -> Tensor:
    return on_device(np.array(block_ids, np.int64), pools.token_ids.device)
