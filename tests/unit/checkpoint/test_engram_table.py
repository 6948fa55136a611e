"""Rows of an Engram table against the decoded whole, and a table far larger than memory."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from deepinfer.checkpoint.engram_table import EngramTable, open_engram_table
from deepinfer.checkpoint.formats import TensorSpec
from deepinfer.checkpoint.header import read_header
from deepinfer.checkpoint.index import CheckpointIndex
from deepinfer.checkpoint.inventory import inventory
from deepinfer.checkpoint.load import open_checkpoint
from deepinfer.config.model import ModelConfig
from deepinfer.errors import CheckpointError
from tests.shards import join

NAME = "layers.1.engram.embed"


@pytest.mark.parametrize("layer_id", [1, 4])
@pytest.mark.parametrize("shape", [(7,), (3, 6), (2, 3, 4), (0, 6)])
def test_rows_equal_the_whole(
    tiny_dir: Path, tiny_config: ModelConfig, layer_id: int, shape: tuple[int, ...]
) -> None:
    """Guards against rows or scales out of step after repeated and unsorted ids."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    whole = checkpoint.decoded(f"layers.{layer_id}.engram.embed.weight")
    table = open_engram_table(checkpoint.index, layer_id)
    ids = torch.randint(table.height, shape, generator=torch.Generator().manual_seed(layer_id))
    ids[..., -1:] = ids[..., :1]
    assert table.height == whole.shape[0]
    assert torch.equal(table.rows(ids), whole[ids])
    assert torch.equal(table.rows(torch.arange(table.height)), whole)


@pytest.mark.parametrize("row_id", [-1, 10**9])
def test_ids_outside_the_table(tiny_dir: Path, tiny_config: ModelConfig, row_id: int) -> None:
    """Guards against a wrong hash that would silently read some other row, or past the table."""
    table = open_engram_table(open_checkpoint(tiny_dir, tiny_config).index, 1)
    with pytest.raises(IndexError):
        table.rows(torch.tensor([row_id]))


def test_damage_is_found_in_the_rows_read() -> None:
    """Guards against NaN rows: the table is too large to be checked when it is opened."""
    codes = torch.full((4, 64), 0x38, dtype=torch.uint8)  # 1.0
    codes[1, 5] = 0x7F
    scale = torch.full((4, 2), 128, dtype=torch.uint8)
    scale[2, 1] = 255
    table = EngramTable(codes.view(torch.float8_e4m3fn), scale, NAME)
    assert torch.equal(table.rows(torch.tensor([3, 0])), torch.full((2, 64), 2.0))
    for row_id in (1, 2):
        with pytest.raises(CheckpointError, match=NAME):
            table.rows(torch.tensor([row_id]))


def sparse_table(path: Path, spec: TensorSpec, scale: TensorSpec, rows: dict[int, bytes]) -> None:
    """A file of the released size; only `rows` and their scales (2.0) take space on the disk."""
    size, scale_size = spec.num_bytes, scale.num_bytes
    entries = {
        spec.name: {"dtype": "F8_E4M3", "shape": spec.shape, "data_offsets": [0, size]},
        scale.name: {
            "dtype": "F8_E8M0",
            "shape": scale.shape,
            "data_offsets": [size, size + scale_size],
        },
    }
    join(path, entries, b"")
    start = path.stat().st_size
    os.truncate(path, start + size + scale_size)
    with path.open("r+b") as file:
        for row_id, codes in rows.items():
            file.seek(start + row_id * spec.shape[1])
            file.write(codes)
            file.seek(start + size + row_id * scale.shape[1])
            file.write(bytes([128] * scale.shape[1]))


def test_a_table_larger_than_memory(tmp_path: Path, released_config: ModelConfig) -> None:
    """Guards against loading, or reserving memory for, the 101 GB of a released table."""
    specs = inventory(released_config)
    weight, scale = specs[NAME + ".weight"], specs[NAME + ".scale"]
    height, dim = weight.shape
    wanted = {0: bytes([0x38] * dim), height - 1: bytes([0x40] * dim), height // 2: bytes(dim)}
    path = tmp_path / "model.safetensors"
    sparse_table(path, weight, scale, wanted)
    assert path.stat().st_size > 101e9

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table = open_engram_table(CheckpointIndex(tmp_path, read_header(path), specs), 1)
    rows = table.rows(torch.tensor([[height - 1, 0], [height // 2, 0]]))
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert np.array_equal(rows[..., 0].numpy(), [[4.0, 2.0], [0.0, 2.0]])
    assert rows.shape == (2, 2, dim)
    assert grown_kb < 50_000
