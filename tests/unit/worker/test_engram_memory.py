"""Engram tables in memory against those in their files."""

from pathlib import Path

import pytest
import torch

from deepinfer.checkpoint.engram_table import EngramTable, open_engram_table
from deepinfer.checkpoint.index import CheckpointIndex, open_index
from deepinfer.checkpoint.load import open_checkpoint
from deepinfer.config.model import ModelConfig
from deepinfer.errors import CheckpointError
from deepinfer.kernels.backends import load_kernels
from deepinfer.worker import engram_memory
from deepinfer.worker.build import build_network
from deepinfer.worker.engram_memory import HeldTable, decide_memory, hold_table, hold_tables

GATHER = load_kernels().engram_gather


@pytest.fixture
def index(tiny_dir: Path, tiny_config: ModelConfig) -> CheckpointIndex:
    return open_index(tiny_dir, tiny_config)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("layer_id", [1, 4])
def test_the_same_rows(
    index: CheckpointIndex, where, layer_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are put in the wrong place, the last one is forgotten, or scales are another's."""
    monkeypatch.setattr(engram_memory, "_COPY_ROWS", 100)
    table = open_engram_table(index, layer_id)
    held = hold_table(table, where, GATHER, "cpu")
    every = torch.arange(table.height)
    assert torch.equal(held.rows(every), table.rows(every))
    some = torch.tensor([[5, 0, 5], [table.height - 1, 7, 5]])
    assert torch.equal(held.rows(some), table.rows(some))


@pytest.mark.parametrize("where", ["file", "host"])
def test_tables_of_a_network(tiny_dir: Path, tiny_config: ModelConfig, where) -> None:
    """203 GB are read at a start that nobody asked for, or stay where they were."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    network = build_network(tiny_config, checkpoint, [0] * 512, load_kernels())
    hold_tables(network, where, "cpu")
    kind = EngramTable if where == "file" else HeldTable
    for layer_id in tiny_config.engram_layer_ids:
        assert isinstance(network.layers[layer_id].engram.table, kind)


def test_where_nothing_is_said(index: CheckpointIndex) -> None:
    """Tables fill a host's memory to the last byte, or stay on disk beside an empty one."""
    tables = [s for name, s in index.specs.items() if ".engram.embed." in name]
    held = sum(spec.num_bytes for spec in tables)
    assert decide_memory("auto", index, 2 * held + 64) == "host"
    assert decide_memory("auto", index, held) == "file"
    for where in ("file", "host", "device"):
        assert decide_memory(where, index, 0) == where


def test_a_table_with_a_nan() -> None:
    """A damaged table is copied, and whoever meets the row gets nonsense."""
    codes = torch.zeros(3, 32, dtype=torch.uint8)
    codes[1, 4] = 0x7F
    table = EngramTable(codes, torch.full((3, 1), 127, dtype=torch.uint8), "layers.1.engram")
    with pytest.raises(CheckpointError, match="NaN"):
        table.stored(0, 3)
    assert table.stored(2, 3)[0].shape == (1, 32)
