"""Reads the header of one safetensors file, trusting nothing in it.

The layout: 8 bytes of length (little endian), that many bytes of JSON, then the data. Every claim
of the JSON is checked against the file before anybody maps the data. Knows nothing of models; never
imports torch.
"""

import json
import os
import stat
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeGuard

from deepinfer.checkpoint.formats import DTYPE_BYTES
from deepinfer.errors import CheckpointError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
LFS_MARK = b"version https://git-lfs"
FETCH_AGAIN = "the download is damaged or unfinished: fetch this file again"
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True)
class Location:
    """Where the bytes of one tensor lie. `offset` counts from the start of the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def read_header(path: Path) -> dict[str, Location]:
    """The tensors of one file in the order of their bytes, by the names the file uses.

    Raises CheckpointError with the file's name: not a regular file, not readable, a git-lfs
    pointer, truncated, or any claim that does not hold (types, shapes, offsets; overlaps, holes).
    """
    raw, file_bytes = _read_bytes(path)
    entries = parse_object(path, raw)
    notes = entries.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(v, str) for v in notes.values()):
        _refuse(path, "__metadata__ in the header is not an object of strings")
    data_start = LENGTH_BYTES + len(raw)
    located = [_locate(path, name, entry, data_start) for name, entry in entries.items()]
    located.sort(key=lambda item: (item[1].offset, item[1].num_bytes))
    _check_cover(path, located, data_start, file_bytes)
    return dict(located)


def open_file(path: Path) -> BinaryIO:
    """Open `path` for reading if it is a regular file (or a symlink to one).

    Raises CheckpointError. Asked before opening: opening a pipe would wait for ever.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            _refuse(path, "not a regular file")
        return path.open("rb")
    except FileNotFoundError:
        _refuse(path, "the file does not exist", FETCH_AGAIN)
    except PermissionError:
        _refuse(
            path,
            "no permission to read it",
            "make the file readable for the user who starts the engine",
        )
    except OSError as error:
        _refuse(path, f"cannot be opened: {error.strerror}", "check the disk and the path")


def refuse_lfs_pointer(path: Path, start: bytes) -> None:
    """Raise CheckpointError if a file begins as git-lfs's stand-in for a large file does."""
    if start.startswith(LFS_MARK):
        _refuse(
            path,
            "a git-lfs pointer of a few lines, not the file itself",
            "run `git lfs pull` in the folder, or fetch the checkpoint with huggingface_hub",
        )


def parse_object(path: Path, raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`, in which no name may stand twice. Raises CheckpointError."""
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except _DuplicateKey as error:
        _refuse(path, f"names {error} twice in one JSON object")
    except (ValueError, RecursionError) as error:
        _refuse(path, f"not valid JSON ({type(error).__name__})")
    if not isinstance(value, dict):
        _refuse(path, "not a JSON object")
    return value


class _DuplicateKey(Exception):
    """A JSON object names a key twice; which of the two holds would be a guess."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        raise _DuplicateKey(repr(next(n for n in names if names.count(n) > 1)))
    return found


def _read_bytes(path: Path) -> tuple[bytes, int]:
    """The header's JSON bytes, and the size of the whole file."""
    with open_file(path) as file:
        file_bytes = os.fstat(file.fileno()).st_size
        start = file.read(len(LFS_MARK))
        refuse_lfs_pointer(path, start)
        if len(start) < LENGTH_BYTES:
            _refuse(path, f"{file_bytes} bytes, too short for a header")
        header_bytes = int.from_bytes(start[:LENGTH_BYTES], "little")
        if header_bytes > min(MAX_HEADER_BYTES, file_bytes - LENGTH_BYTES):
            _refuse(path, f"claims a header of {header_bytes:,} bytes in a file of {file_bytes:,}")
        file.seek(LENGTH_BYTES)
        return file.read(header_bytes), file_bytes


def _locate(path: Path, name: str, entry: object, data_start: int) -> tuple[str, Location]:
    """One entry of the header, checked on its own."""
    if not isinstance(entry, dict) or set(entry) != _ENTRY_KEYS:
        _refuse(path, f"the entry of {name} is not an object of dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        _refuse(path, f"{name} has the unknown dtype {dtype!r}", "known: " + ", ".join(DTYPE_BYTES))
    if not _are_counts(shape):
        _refuse(path, f"{name} has the shape {shape!r}, expected a list of whole numbers")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(path, f"{name} has the data_offsets {offsets!r}, expected a rising pair")
    begin, num_bytes = data_start + offsets[0], offsets[1] - offsets[0]
    expected = prod(shape) * DTYPE_BYTES[dtype]
    if num_bytes != expected:
        _refuse(path, f"{name} has {num_bytes} bytes, but {dtype} {shape} takes {expected}")
    if begin % DTYPE_BYTES[dtype]:
        _refuse(
            path,
            f"{name} ({dtype}) starts at byte {begin}, which is not aligned to its type",
            "write the file again with a current version of the safetensors library",
        )
    return name, Location(path, dtype, tuple(shape), begin, num_bytes)


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(x) is int and x >= 0 for x in value)


def _check_cover(
    path: Path, located: list[tuple[str, Location]], data_start: int, file_bytes: int
) -> None:
    """The tensors follow each other without holes or overlaps, and end where the file ends."""
    position = data_start
    for name, place in located:
        if place.offset != position:
            what = (
                "overlaps the tensor before it"
                if place.offset < position
                else "leaves a hole before it"
            )
            _refuse(path, f"{name} {what}")
        position += place.num_bytes
    if position > file_bytes:
        _refuse(path, f"truncated: {file_bytes:,} bytes, the header promises {position:,}")
    if position < file_bytes:
        _refuse(path, f"{file_bytes - position:,} bytes after the last tensor belong to none")


def _refuse(path: Path, what: str, hint: str = FETCH_AGAIN) -> NoReturn:
    raise CheckpointError(what, where=str(path), hint=hint)
