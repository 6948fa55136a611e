"""Takes checkpoint folders apart and puts them together wrongly, for tests.

Files are read and written here without the package, so that a fault common to its reader and writer
would show.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deepinfer.checkpoint.formats import TensorSpec
from deepinfer.checkpoint.index import open_index
from deepinfer.config.model import ModelConfig
from deepinfer.errors import CheckpointError

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in a file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def split(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data of one safetensors file."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def join(path: Path, header: dict[str, Any] | bytes, data: bytes) -> None:
    """Write a safetensors file from a header, however wrong, and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_tensors(folder: Path) -> dict[str, Stored]:
    """All tensors of all files of a folder."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        header, data = split(path)
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors[name] = Stored(entry["dtype"], tuple(entry["shape"]), data[begin:end])
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    """One file; wide types first, so that all are aligned."""
    width = {"F32": 4, "I32": 4, "BF16": 2, "F16": 2}
    header: dict[str, Any] = {}
    data = bytearray()
    for name, t in sorted(tensors.items(), key=lambda item: -width.get(item[1].dtype, 1)):
        span = [len(data), len(data) + len(t.data)]
        header[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": span}
        data += t.data
    join(path, header, bytes(data))


def repack(folder: Path, edit: Callable[[dict[str, Stored]], None]) -> None:
    """Change the tensors of a folder and store them in a single file without an index."""
    tensors = read_tensors(folder)
    edit(tensors)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    write_tensors(folder / "model.safetensors", tensors)


def edit_header(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of one file and leave its data as it is."""
    header, data = split(path)
    edit(header)
    join(path, header, data)


def edit_index(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the index of a folder."""
    path = folder / INDEX
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))


def shard_of(folder: Path, name: str) -> Path:
    """The file that holds a tensor, as the index says."""
    file: str = json.loads((folder / INDEX).read_text())["weight_map"][name]
    return folder / file


def clone(folder: Path, to: Path) -> Path:
    """A copy that may be damaged."""
    return shutil.copytree(folder, to / "checkpoint")


def write_sparse(path: Path, specs: Iterable[TensorSpec]) -> None:
    """A file of all tensors in `specs`, zeros that take no space on the disk."""
    header: dict[str, Any] = {}
    offset = 0
    for spec in sorted(specs, key=lambda spec: {"F32": 0, "BF16": 1}.get(spec.dtype, 2)):
        span = [offset, offset + spec.num_bytes]
        header[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": span}
        offset = span[1]
    join(path, header, b"")
    os.truncate(path, path.stat().st_size + offset)


def refused(folder: Path, config: ModelConfig, *words: str) -> CheckpointError:
    """The error of opening `folder`; it must hold every one of `words` and a way out."""
    with pytest.raises(CheckpointError) as caught:
        open_index(folder, config)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert caught.value.hint
    return caught.value
