"""Hostile and damaged checkpoints: each is refused, with its own reason, before any weight is read."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from deepinfer.checkpoint.index import open_index
from deepinfer.checkpoint.inventory import inventory
from deepinfer.config.model import ModelConfig
from deepinfer.errors import CheckpointError
from tests.shards import (
    INDEX,
    Stored,
    clone,
    edit_header,
    edit_index,
    join,
    read_tensors,
    repack,
    shard_of,
    split,
    write_tensors,
)

Edit = Callable[[dict[str, Any]], object]
SINK = "layers.0.attn.attn_sink"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@pytest.fixture
def folder(tiny_dir: Path, tmp_path: Path) -> Path:
    return clone(tiny_dir, tmp_path)


def refused(folder: Path, config: ModelConfig, *words: str) -> CheckpointError:
    """The error of opening `folder`; it must hold every one of `words` and a way out."""
    with pytest.raises(CheckpointError) as caught:
        open_index(folder, config)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint
    return caught.value


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
def test_header_claims(folder: Path, tiny_config: ModelConfig, case: str) -> None:
    """Guards against mapping bytes that the header only pretends to have."""
    edit, words = HEADER_EDITS[case]
    path = shard_of(folder, SINK)
    edit_header(path, edit)
    refused(folder, tiny_config, path.name, words)


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
def test_files_that_are_no_shards(folder: Path, tiny_config: ModelConfig, case: str) -> None:
    """N10: an unfinished or wrong download is called that, not a missing tensor."""
    content, words = RAW_FILES[case]
    path = shard_of(folder, SINK)
    path.write_bytes(content)
    refused(folder, tiny_config, path.name, words)


def test_header_longer_than_the_format_allows(folder: Path, tiny_config: ModelConfig) -> None:
    """Guards against reading a gigabyte of JSON because a (sparse) file says so."""
    path = shard_of(folder, SINK)
    with path.open("wb") as file:
        file.write((2**30).to_bytes(8, "little"))
        file.truncate(2**31)
    refused(folder, tiny_config, path.name, "claims a header of 1,073,741,824")


@pytest.mark.parametrize("name", [SINK, "dtype"])
def test_duplicate_names(folder: Path, tiny_config: ModelConfig, name: str) -> None:
    """Guards against taking the last of two definitions without a word."""
    path = shard_of(folder, SINK)
    header, data = split(path)
    text = (
        '{"%s": {"dtype": "F32", "dtype": "F32"}}'
        if name == "dtype"
        else '{"%s": {"dtype": "F32"}, "layers.0.attn.attn_sink": {}}'
    )
    join(path, (text % SINK).encode(), data)
    assert SINK in header
    refused(folder, tiny_config, path.name, f"'{name}' twice")


def test_truncated_and_too_long(folder: Path, tiny_config: ModelConfig) -> None:
    """N10: a shard cut short says so; bytes nobody claims are refused too."""
    path = shard_of(folder, SINK)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    refused(folder, tiny_config, path.name, "truncated")
    path.write_bytes(whole + b"\0")
    refused(folder, tiny_config, path.name, "1 bytes after the last tensor")


def test_unaligned(folder: Path, tiny_config: ModelConfig) -> None:
    """Guards against a map that torch cannot view as 4-byte numbers."""
    path = shard_of(folder, SINK)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    path.write_bytes((size + 1).to_bytes(8, "little") + raw[8 : 8 + size] + b" " + raw[8 + size :])
    refused(folder, tiny_config, path.name, "not aligned")


def test_pipes_and_folders(folder: Path, tiny_config: ModelConfig) -> None:
    """Guards against waiting for ever on a pipe that bears a shard's name."""
    path = shard_of(folder, SINK)
    path.unlink()
    os.mkfifo(path)
    refused(folder, tiny_config, path.name, "not a regular file")
    path.unlink()
    path.mkdir()
    refused(folder, tiny_config, path.name, "not a regular file")


def test_no_permission(
    folder: Path, tiny_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N10: a file that may not be read is told from one that is not there."""
    locked = shard_of(folder, SINK)
    real_open = Path.open

    def deny(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == locked:
            raise PermissionError(13, "Permission denied", str(self))
        return real_open(self, *args, **kwargs)

    # Tests may run as root, whom no file mode stops.
    monkeypatch.setattr(Path, "open", deny)
    refused(folder, tiny_config, locked.name, "no permission")


WRONG_FILE_NAMES = ["../x.safetensors", "/etc/passwd", "a/b", "a\\b", "", ".", "..", "a\0b", 5, None]


@pytest.mark.parametrize("file", WRONG_FILE_NAMES, ids=repr)
def test_index_that_points_elsewhere(folder: Path, tiny_config: ModelConfig, file: object) -> None:
    """Guards against reading files outside the folder at the word of an index."""
    edit_index(folder, lambda index: index["weight_map"].update({SINK: file}))
    refused(folder, tiny_config, INDEX, SINK, "name of a file in the same folder")


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
def test_damaged_index(folder: Path, tiny_config: ModelConfig, case: str) -> None:
    """N10: a damaged index is reported as that."""
    content, words = RAW_INDEXES[case]
    (folder / INDEX).write_bytes(content)
    refused(folder, tiny_config, words)


def test_missing_shards(folder: Path, tiny_config: ModelConfig) -> None:
    """N05, N10: files and tensors are listed and the likely reason is given."""
    for path in sorted(folder.glob("*.safetensors"))[2:]:
        path.unlink()
    error = refused(folder, tiny_config, "2 of 4 weight files are missing", "model-00003-of-00004")
    assert "unfinished" in error.hint
    assert "of 1052 tensors" in error.what


def test_missing_index(folder: Path, tiny_config: ModelConfig) -> None:
    """N05: without the index nobody knows whether all shards are there."""
    (folder / INDEX).unlink()
    refused(folder, tiny_config, "index is missing", "4 weight files")


def test_renamed_shard(folder: Path, tiny_config: ModelConfig) -> None:
    """N05: a stale index after renaming: the new name is no substitute for the old one."""
    path = shard_of(folder, SINK)
    path.rename(folder / "renamed.safetensors")
    refused(folder, tiny_config, "1 of 4 weight files are missing", path.name)


def test_index_and_shard_disagree(folder: Path, tiny_config: ModelConfig) -> None:
    """N05: the index names a tensor that its shard lacks, or the shard has one the index lacks."""
    first, last = (f"model-0000{i}-of-00004.safetensors" for i in (1, 4))
    edit_index(folder, lambda index: index["weight_map"].pop(SINK))
    refused(folder, tiny_config, INDEX, SINK, "not in the index")
    edit_index(folder, lambda index: index["weight_map"].update({SINK: last}))
    refused(folder, tiny_config, INDEX, SINK, f"but is in {first}")
    edit_index(folder, lambda index: index["weight_map"].update({SINK: first, "ghost": first}))
    refused(folder, tiny_config, INDEX, "ghost", "but is not")


def test_tensor_in_two_shards(folder: Path, tiny_config: ModelConfig) -> None:
    """N05: which of two copies holds would be a guess."""
    tensors = read_tensors(folder)
    path = folder / "model-00004-of-00004.safetensors"
    header, _ = split(path)
    own = {name: tensors[name] for name in header if name in tensors}
    write_tensors(path, {**own, SINK: tensors[SINK]})
    refused(folder, tiny_config, SINK, "two files", path.name, "model-00001")


def test_both_prefixes_in_one_file(folder: Path, tiny_config: ModelConfig) -> None:
    """Guards against loading the stale one of `x` and `model.x`."""
    repack(folder, lambda t: t.update({"model." + SINK: t[SINK]}))
    refused(folder, tiny_config, f"both {SINK} and model.{SINK}")


@pytest.mark.parametrize(
    "weight",
    [
        "layers.0.attn.wq_a",
        "layers.0.ffn.shared_experts.w2",
        "layers.3.ffn.experts.7.w1",
        "mtp.1.ffn.experts.0.w3",
        "layers.2.attn.indexer.wq_b",
        "layers.1.engram.embed",
        "mtp.0.main_proj",
    ],
)
def test_missing_scale(folder: Path, tiny_config: ModelConfig, weight: str) -> None:
    """N08: a missing scale is an error that names the weight and the scale names tried."""
    repack(folder, lambda t: t.pop(weight + ".scale"))
    refused(folder, tiny_config, f"{weight}.weight", f"{weight}.scale", f"model.{weight}.scale")


def test_missing_and_unknown_tensors(folder: Path, tiny_config: ModelConfig) -> None:
    """N08: one missing weight is named; an unknown tensor is listed, not ignored."""
    tensors = read_tensors(folder)
    repack(folder, lambda t: t.pop("norm.weight"))
    refused(folder, tiny_config, "1 of 1052 tensors are in no file", "norm.weight")
    extra = {"layers.0.attn.q_b_norm.weight": Stored("BF16", (2,), bytes(4))}
    write_tensors(folder / "model.safetensors", {**tensors, **extra})
    refused(folder, tiny_config, "1 tensors are unknown", "layers.0.attn.q_b_norm.weight")


def test_folded_norm(folder: Path, tiny_config: ModelConfig) -> None:
    """Guards against an unconverted checkpoint, whose hc_*_fn lack the norm's gain (spec 4)."""
    extra = Stored("F32", (384,), bytes(4 * 384))
    repack(folder, lambda t: t.update({"layers.0.hc_attn_norm.weight": extra}))
    refused(folder, tiny_config, "layers.0.hc_attn_norm.weight", "already part of hc_*_fn")


WRONG_TYPES = {
    "FP8 expert where the field says FP4": (
        "layers.3.ffn.experts.7.w1.weight",
        Stored("F8_E4M3", (64, 96), bytes(64 * 96)),
        ("F8_E4M3 [64, 96]", "expected I8 [64, 48]", "expert_dtype"),
    ),
    "BF16 where FP8 is released": (
        "layers.0.attn.wq_a.weight",
        Stored("BF16", (64, 96), bytes(2 * 64 * 96)),
        ("BF16 [64, 96]", "expected F8_E4M3 [64, 96]"),
    ),
    "BF16 sinks": (SINK, Stored("BF16", (4,), bytes(8)), ("expected F32 [4]",)),
    "BF16 hyper-connections": (
        "layers.0.hc_attn_base",
        Stored("BF16", (24,), bytes(48)),
        ("expected F32 [24]",),
    ),
    "F16 norm": ("norm.weight", Stored("F16", (96,), bytes(192)), ("expected BF16 or F32 [96]",)),
    "another shape": (
        "layers.0.attn.wq_a.weight",
        Stored("F8_E4M3", (96, 64), bytes(64 * 96)),
        ("F8_E4M3 [96, 64]", "expected F8_E4M3 [64, 96]"),
    ),
    "integer scales": (
        "layers.0.attn.wq_a.scale",
        Stored("I32", (2, 3), bytes(24)),
        ("I32 [2, 3]", "expected F8_E8M0 or U8 or F32 or BF16"),
    ),
    "scales per 128": (
        "layers.0.attn.wq_a.scale",
        Stored("F8_E8M0", (1, 1), bytes(1)),
        ("[1, 1]", "[2, 3]"),
    ),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_wrong_types_and_shapes(folder: Path, tiny_config: ModelConfig, case: str) -> None:
    """N01, N02: the type is read from the tensor, checked, and a conflict is an error by name."""
    name, stored, words = WRONG_TYPES[case]
    repack(folder, lambda t: t.update({name: stored}))
    refused(folder, tiny_config, name, *words)


def test_folders(tmp_path: Path, tiny_config: ModelConfig) -> None:
    """N10: a wrong folder is told from an unfinished one."""
    refused(tmp_path / "none", tiny_config, "No such file")
    refused(tmp_path, tiny_config, "found nothing")
    (tmp_path / "readme.md").touch()
    refused(tmp_path, tiny_config, "found readme.md")
    refused(tmp_path / "readme.md", tiny_config, "Not a directory")


def test_dangling_link(folder: Path, tiny_config: ModelConfig) -> None:
    """N10: a cache whose blob was cleaned away counts as missing, not as a crash."""
    path = shard_of(folder, SINK)
    path.unlink()
    path.symlink_to(folder / "blobs" / "gone")
    refused(folder, tiny_config, "1 of 4 weight files are missing")


def test_released_size_is_checked_in_seconds(
    tmp_path: Path, released_config: ModelConfig
) -> None:
    """Guards against a check that is quadratic in 96,085 tensors. The files are sparse: 510 GB."""
    specs = list(inventory(released_config).values())
    specs.sort(key=lambda spec: {"F32": 0, "BF16": 1}.get(spec.dtype, 2))
    weight_map = {}
    for i in range(8):
        header, offset, file = {}, 0, f"model-{i}.safetensors"
        for spec in specs[i::8]:
            end = offset + spec.num_bytes
            header[spec.name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [offset, end],
            }
            offset = end
            weight_map[spec.name] = file
        join(tmp_path / file, header, b"")
        os.truncate(tmp_path / file, (tmp_path / file).stat().st_size + offset)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    start = process_time()
    index = open_index(tmp_path, released_config)
    assert process_time() - start < 5
    assert index.num_bytes == 510_286_023_000


ACCEPTED: dict[str, Callable[[dict[str, Stored]], object]] = {
    "single file": lambda t: None,
    "prefixed names": lambda t: [t.update({"model." + n: t.pop(n)}) for n in list(t)],
    "U8 exponents": lambda t: t.update(
        {n: replace(s, dtype="U8") for n, s in t.items() if s.dtype == "F8_E8M0"}
    ),
    "F32 norm": lambda t: t.update({"norm.weight": Stored("F32", (96,), bytes(384))}),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(folder: Path, tiny_config: ModelConfig, case: str) -> None:
    """Guards against refusing what the format allows."""
    repack(folder, ACCEPTED[case])
    index = open_index(folder, tiny_config)
    assert set(index.locations) == set(index.specs)
    assert not index.warnings


def test_cache_of_links(folder: Path, tiny_config: ModelConfig) -> None:
    """Guards against refusing a download cache, whose files are links into a folder of blobs."""
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    for i, path in enumerate(sorted(folder.glob("*.safetensors"))):
        path.rename(blobs / str(i))
        path.symlink_to(blobs / str(i))
    assert len(open_index(folder, tiny_config).locations) == 1052


def test_stray_files(folder: Path, tiny_config: ModelConfig) -> None:
    """N07: only indexed files are read; a copy, a consolidated file, an adapter: a warning."""
    before = open_index(folder, tiny_config)
    tensors = read_tensors(folder)
    write_tensors(folder / "model.safetensors", tensors)
    write_tensors(folder / "consolidated.safetensors", {SINK: tensors[SINK]})
    (folder / "adapter_model.safetensors").write_bytes(b"not even a header")
    after = open_index(folder, tiny_config)
    assert after.locations == before.locations
    [warning] = after.warnings
    for name in ("model.safetensors", "consolidated.safetensors", "adapter_model.safetensors"):
        assert name in warning


def test_copies_for_the_draft_module(folder: Path, tiny_config: ModelConfig) -> None:
    """Guards against refusing a checkpoint that repeats embedding and head there (spec 13.1)."""
    repack(folder, lambda t: t.update({"mtp.0.embed.weight": t["embed.weight"]}))
    index = open_index(folder, tiny_config)
    assert "mtp.0.embed.weight" not in index.locations
    assert "mtp.0.embed.weight is ignored" in index.warnings[0]


def test_wrong_total_is_a_warning(folder: Path, tiny_config: ModelConfig) -> None:
    """Guards against silence about an index of another version whose names still fit."""
    edit_index(folder, lambda index: index["metadata"].update(total_size=1))
    assert "promises 1 bytes" in open_index(folder, tiny_config).warnings[0]
