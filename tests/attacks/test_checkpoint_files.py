"""Damaged and hostile files: each refused for its own reason before a weight is read."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.config.model import ModelConfig
from tests.shards import INDEX, edit_header, edit_index, join, refused, shard_of, split

Edit = Callable[[dict[str, Any]], object]
SINK = "layers.0.attn.attn_sink"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def entry(name: str, **values: Any) -> Edit:
    return lambda header: header[name].update(values)


def without(name: str, key: str) -> Edit:
    return lambda header: header[name].pop(key)


def put(name: str, value: Any) -> Edit:
    return lambda header: header.update({name: value})


HEADER_EDITS: dict[str, tuple[Edit, str]] = {
    "no dtype": (without(SINK, "dtype"), "not an object of dtype"),
    "no shape": (without(SINK, "shape"), "not an object of dtype"),
    "no offsets": (without(SINK, "data_offsets"), "not an object of dtype"),
    "extra key": (entry(SINK, stride=1), "not an object of dtype"),
    "entry is a list": (put(SINK, [1, 2]), "not an object of dtype"),
    "entry is null": (put(SINK, None), "not an object of dtype"),
    "unknown dtype": (entry(SINK, dtype="F4"), "unknown dtype 'F4'"),
    "dtype is a number": (entry(SINK, dtype=32), "unknown dtype 32"),
    "negative shape": (entry(SINK, shape=[-4]), "shape [-4]"),
    "two negative sizes": (entry(SINK, shape=[-2, -2]), "shape [-2, -2]"),
    "shape of floats": (entry(SINK, shape=[4.0]), "shape [4.0]"),
    "shape of booleans": (entry(SINK, shape=[True, 4]), "shape [True, 4]"),
    "shape is a number": (entry(SINK, shape=4), "shape 4"),
    "shape is a text": (entry(SINK, shape="4"), "shape '4'"),
    "huge shape": (entry(SINK, shape=[2**62, 2**62]), "takes"),
    "another shape": (entry(SINK, shape=[5]), "but F32 [5] takes 20"),
    "another dtype": (entry(SINK, dtype="BF16"), "but BF16 [4] takes 8"),
    "negative offset": (entry(SINK, data_offsets=[-16, 0]), "data_offsets [-16, 0]"),
    "falling offsets": (entry(SINK, data_offsets=[16, 0]), "data_offsets [16, 0]"),
    "one offset": (entry(SINK, data_offsets=[16]), "data_offsets [16]"),
    "three offsets": (entry(SINK, data_offsets=[0, 8, 16]), "data_offsets [0, 8, 16]"),
    "offsets of floats": (entry(SINK, data_offsets=[0.0, 16.0]), "data_offsets [0.0, 16.0]"),
    "offsets of booleans": (entry(SINK, data_offsets=[False, True]), "data_offsets [False, True]"),
    "offset beyond 64 bits": (entry(SINK, data_offsets=[2**70, 2**70 + 16]), "hole"),
    "overlap": (entry("layers.0.hc_attn_scale", data_offsets=[0, 12]), "overlaps"),
    "hole": (lambda h: h.pop(SINK), "hole"),
    "metadata of numbers": (put("__metadata__", {"format": 1}), "__metadata__"),
    "metadata is a list": (put("__metadata__", []), "__metadata__"),
}


@pytest.mark.parametrize("case", HEADER_EDITS)
def test_header_claims(tiny_copy: Path, tiny_config: ModelConfig, case: str) -> None:
    """Guards against mapping bytes that the header only pretends to have."""
    edit, words = HEADER_EDITS[case]
    path = shard_of(tiny_copy, SINK)
    edit_header(path, edit)
    refused(tiny_copy, tiny_config, path.name, words)


RAW_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "too short"),
    "seven bytes": (b"\x01" * 7, "too short"),
    "length of 2**63": (b"\0" * 7 + b"\x80" + b"{}", "claims a header"),
    "length past the end": ((100).to_bytes(8, "little") + b"{}", "claims a header"),
    "not JSON": ((8).to_bytes(8, "little") + b"no json!", "not valid JSON"),
    "not UTF-8": ((8).to_bytes(8, "little") + b'{"\xff": 0}', "not valid JSON"),
    "a list": ((8).to_bytes(8, "little") + b"[]      ", "not a JSON object"),
    "deep": ((100_000).to_bytes(8, "little") + b"[" * 100_000, "not valid JSON"),
    "no header": ((0).to_bytes(8, "little") + b"data", "not valid JSON"),
    "git-lfs": (LFS, "git-lfs pointer"),
    "a page of HTML": (b"<!DOCTYPE html><html>404</html>", "claims a header"),
}


@pytest.mark.parametrize("case", RAW_FILES)
def test_files_that_are_no_shards(tiny_copy: Path, tiny_config: ModelConfig, case: str) -> None:
    """N10: an unfinished or wrong download is called that, not a missing tensor."""
    content, words = RAW_FILES[case]
    path = shard_of(tiny_copy, SINK)
    path.write_bytes(content)
    refused(tiny_copy, tiny_config, path.name, words)


def test_header_longer_than_the_format_allows(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """Guards against reading a gigabyte of JSON because a (sparse) file says so."""
    path = shard_of(tiny_copy, SINK)
    with path.open("wb") as file:
        file.write((2**30).to_bytes(8, "little"))
        file.truncate(2**31)
    refused(tiny_copy, tiny_config, path.name, "claims a header of 1,073,741,824")


@pytest.mark.parametrize("name", [SINK, "dtype"])
def test_duplicate_names(tiny_copy: Path, tiny_config: ModelConfig, name: str) -> None:
    """Guards against taking the last of two definitions without a word."""
    path = shard_of(tiny_copy, SINK)
    header, data = split(path)
    text = (
        '{"%s": {"dtype": "F32", "dtype": "F32"}}'
        if name == "dtype"
        else '{"%s": {"dtype": "F32"}, "layers.0.attn.attn_sink": {}}'
    )
    join(path, (text % SINK).encode(), data)
    assert SINK in header
    refused(tiny_copy, tiny_config, path.name, f"'{name}' twice")


def test_truncated_and_too_long(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """N10: a shard cut short says so; bytes nobody claims are refused too."""
    path = shard_of(tiny_copy, SINK)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    refused(tiny_copy, tiny_config, path.name, "truncated")
    path.write_bytes(whole + b"\0")
    refused(tiny_copy, tiny_config, path.name, "1 bytes after the last tensor")


def test_unaligned(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """Guards against a map that torch cannot view as 4-byte numbers."""
    path = shard_of(tiny_copy, SINK)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    path.write_bytes((size + 1).to_bytes(8, "little") + raw[8 : 8 + size] + b" " + raw[8 + size :])
    refused(tiny_copy, tiny_config, path.name, "not aligned")


def test_pipes_and_folders(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """Guards against waiting for ever on a pipe that bears a shard's name."""
    path = shard_of(tiny_copy, SINK)
    path.unlink()
    os.mkfifo(path)
    refused(tiny_copy, tiny_config, path.name, "not a regular file")
    path.unlink()
    path.mkdir()
    refused(tiny_copy, tiny_config, path.name, "not a regular file")


def test_no_permission(
    tiny_copy: Path, tiny_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N10: a file that may not be read is told from one that is not there."""
    locked = shard_of(tiny_copy, SINK)
    real_open = Path.open

    def deny(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == locked:
            raise PermissionError(13, "Permission denied", str(self))
        return real_open(self, *args, **kwargs)

    # Tests may run as root, whom no file mode stops.
    monkeypatch.setattr(Path, "open", deny)
    refused(tiny_copy, tiny_config, locked.name, "no permission")


WRONG_FILE_NAMES = [
    "../x.safetensors",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "",
    ".",
    "..",
    "a\0b",
    5,
    None,
]


@pytest.mark.parametrize("file", WRONG_FILE_NAMES, ids=repr)
def test_index_that_points_elsewhere(
    tiny_copy: Path, tiny_config: ModelConfig, file: object
) -> None:
    """Guards against reading files outside the folder at the word of an index."""
    edit_index(tiny_copy, lambda index: index["weight_map"].update({SINK: file}))
    refused(tiny_copy, tiny_config, INDEX, SINK, "name of a file in the same folder")


RAW_INDEXES: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", "not valid JSON"),
    "deep": (b"[" * 100_000, "not valid JSON"),
    "a list": (b"[]", "not a JSON object"),
    "no map": (b"{}", "no weight_map"),
    "empty map": (b'{"weight_map": {}}', "no weight_map"),
    "map is a list": (b'{"weight_map": []}', "no weight_map"),
    "twice": (b'{"weight_map": {"a": "x", "a": "x"}}', "'a' twice"),
    "both prefixes": (b'{"weight_map": {"a": "x", "model.a": "x"}}', "both a and model.a"),
    "git-lfs": (LFS, "git-lfs pointer"),
}


@pytest.mark.parametrize("case", RAW_INDEXES)
def test_damaged_index(tiny_copy: Path, tiny_config: ModelConfig, case: str) -> None:
    """N10: a damaged index is reported as that."""
    content, words = RAW_INDEXES[case]
    (tiny_copy / INDEX).write_bytes(content)
    refused(tiny_copy, tiny_config, words)
