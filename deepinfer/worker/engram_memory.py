"""Engram tables that are held in memory: the host's, where a GPU gathers rows by itself, or the
device's. A table that stays in its file is `deepinfer.checkpoint.engram_table`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.checkpoint.engram_table import EngramTable
from deepinfer.checkpoint.formats import FP8_ROWS
from deepinfer.checkpoint.index import CheckpointIndex
from deepinfer.config.words import EngramMemory
from deepinfer.model.network import Network

# Share of the host's memory that tables may take where nothing is said: what a process pins nobody
# else can have.
_HOST_SHARE = 0.5
_COPY_ROWS = 1 << 20


@dataclass(frozen=True)
class HeldTable:
    """One layer's table. codes: uint8 [height, dim], e4m3; scales: uint8 [height, dim / 32],
    exponents; gather: `KernelSet.engram_gather`."""

    codes: Tensor
    scales: Tensor
    gather: Callable[[Tensor, Tensor, Tensor], Tensor]

    def rows(self, row_ids: Tensor) -> Tensor:
        """int64 [...] -> [..., dim] on the device of `row_ids`."""
        return self.gather(self.codes, self.scales, row_ids)


def decide_memory(wanted: EngramMemory, index: CheckpointIndex, memory_bytes: int) -> EngramMemory:
    """file, host or device. memory_bytes: of the host."""
    if wanted != "auto":
        return wanted
    tables = [spec for spec in index.specs.values() if spec.format is FP8_ROWS]
    held = sum(spec.num_bytes * 33 // 32 for spec in tables)  # a scale for each 32
    return "host" if held <= _HOST_SHARE * memory_bytes else "file"


def hold_tables(network: Network, where: EngramMemory, device: str) -> None:
    """Put the tables of a network that was built from files into memory. where: file leaves them,
    host or device. Raises CheckpointError for a NaN.
    """
    for plan, layer in zip(network.plans, network.layers, strict=True):
        if plan.engram_id is not None and where != "file":
            gather = network.kernels.engram_gather
            layer.engram.table = hold_table(layer.engram.table, where, gather, device)


def asks_host(network: Network) -> bool:
    """Whether the host fetches rows of a table, so that no step can be recorded."""
    return any(
        isinstance(layer.engram.table, EngramTable)
        for plan, layer in zip(network.plans, network.layers, strict=True)
        if plan.engram_id is not None
    )


def hold_table(
    table: EngramTable,
    where: EngramMemory,
    gather: Callable[[Tensor, Tensor, Tensor], Tensor],
    device: str,
) -> HeldTable:
    """A copy of a table in memory."""
    width, num_scales = table.row_bytes
    # Pinned, so that the device reads it; allocated whole, filled part by part.
    place = {"device": device} if where == "device" else {"pin_memory": device == "cuda"}
    codes = torch.empty(table.height, width, dtype=torch.uint8, **place)
    scales = torch.empty(table.height, num_scales, dtype=torch.uint8, **place)
    for first in range(0, table.height, _COPY_ROWS):
        last = min(first + _COPY_ROWS, table.height)
        some_codes, some_scales = table.stored(first, last)
        codes[first:last].copy_(some_codes)
        scales[first:last].copy_(some_scales)
    return HeldTable(codes, scales, gather)
