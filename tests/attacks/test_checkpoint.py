"""Checkpoints whose files do not fit together or do not fit config.json, and those that do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from deepinfer.checkpoint.index import open_index
from deepinfer.config.model import ModelConfig
from tests.effort import effort
from tests.shards import (
    INDEX,
    Stored,
    edit_index,
    read_tensors,
    refused,
    repack,
    shard_of,
    split,
    write_tensors,
)

SINK = "layers.0.attn.attn_sink"


def test_missing_shards(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """N05, N10: files and tensors are listed and the likely reason is given."""
    for path in sorted(tiny_copy.glob("*.safetensors"))[2:]:
        path.unlink()
    error = refused(
        tiny_copy, tiny_config, "2 of 4 weight files are missing", "model-00003-of-00004"
    )
    assert "unfinished" in error.hint
    assert "of 1052 tensors" in error.what


def test_missing_index(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """N05: without the index nobody knows whether all shards are there."""
    (tiny_copy / INDEX).unlink()
    refused(tiny_copy, tiny_config, "index is missing", "4 weight files")


def test_renamed_shard(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """N05: a stale index after renaming: the new name is no substitute for the old one."""
    path = shard_of(tiny_copy, SINK)
    path.rename(tiny_copy / "renamed.safetensors")
    refused(tiny_copy, tiny_config, "1 of 4 weight files are missing", path.name)


def test_index_and_shard_disagree(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """N05: the index names a tensor that its shard lacks, or the shard has one the index lacks."""
    first, last = (f"model-0000{i}-of-00004.safetensors" for i in (1, 4))
    edit_index(tiny_copy, lambda index: index["weight_map"].pop(SINK))
    refused(tiny_copy, tiny_config, INDEX, SINK, "not in the index")
    edit_index(tiny_copy, lambda index: index["weight_map"].update({SINK: last}))
    refused(tiny_copy, tiny_config, INDEX, SINK, f"but is in {first}")
    edit_index(tiny_copy, lambda index: index["weight_map"].update({SINK: first, "ghost": first}))
    refused(tiny_copy, tiny_config, INDEX, "ghost", "but is not")


def test_tensor_in_two_shards(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """N05: which of two copies holds would be a guess."""
    tensors = read_tensors(tiny_copy)
    path = tiny_copy / "model-00004-of-00004.safetensors"
    header, _ = split(path)
    own = {name: tensors[name] for name in header if name in tensors}
    write_tensors(path, {**own, SINK: tensors[SINK]})
    refused(tiny_copy, tiny_config, SINK, "two files", path.name, "model-00001")


def test_both_prefixes_in_one_file(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """Guards against loading the stale one of `x` and `model.x`."""
    repack(tiny_copy, lambda t: t.update({"model." + SINK: t[SINK]}))
    refused(tiny_copy, tiny_config, f"both {SINK} and model.{SINK}")


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
def test_missing_scale(tiny_copy: Path, tiny_config: ModelConfig, weight: str) -> None:
    """N08: a missing scale is an error that names the weight and the scale names tried."""
    repack(tiny_copy, lambda t: t.pop(weight + ".scale"))
    refused(tiny_copy, tiny_config, f"{weight}.weight", f"{weight}.scale", f"model.{weight}.scale")


def test_missing_and_unknown_tensors(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """N08: one missing weight is named; an unknown tensor is listed, not ignored."""
    tensors = read_tensors(tiny_copy)
    repack(tiny_copy, lambda t: t.pop("norm.weight"))
    refused(tiny_copy, tiny_config, "1 of 1052 tensors are in no file", "norm.weight")
    extra = {"layers.0.attn.q_b_norm.weight": Stored("BF16", (2,), bytes(4))}
    write_tensors(tiny_copy / "model.safetensors", {**tensors, **extra})
    refused(tiny_copy, tiny_config, "1 tensors are unknown", "layers.0.attn.q_b_norm.weight")


def test_folded_norm(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """Guards against an unconverted checkpoint, whose hc_*_fn lack the norm's gain (spec 4)."""
    extra = Stored("F32", (384,), bytes(4 * 384))
    repack(tiny_copy, lambda t: t.update({"layers.0.hc_attn_norm.weight": extra}))
    refused(tiny_copy, tiny_config, "layers.0.hc_attn_norm.weight", "already part of hc_*_fn")


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
def test_wrong_types_and_shapes(tiny_copy: Path, tiny_config: ModelConfig, case: str) -> None:
    """N01, N02: the type is read from the tensor, checked, and a conflict is an error by name."""
    name, stored, words = WRONG_TYPES[case]
    repack(tiny_copy, lambda t: t.update({name: stored}))
    refused(tiny_copy, tiny_config, name, *words)


def test_folders(tmp_path: Path, tiny_config: ModelConfig) -> None:
    """N10: a wrong folder is told from an unfinished one."""
    refused(tmp_path / "none", tiny_config, "No such file")
    refused(tmp_path, tiny_config, "found nothing")
    (tmp_path / "readme.md").touch()
    refused(tmp_path, tiny_config, "found readme.md")
    refused(tmp_path / "readme.md", tiny_config, "Not a directory")


def test_dangling_link(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """N10: a cache whose blob was cleaned away counts as missing, not as a crash."""
    path = shard_of(tiny_copy, SINK)
    path.unlink()
    path.symlink_to(tiny_copy / "blobs" / "gone")
    refused(tiny_copy, tiny_config, "1 of 4 weight files are missing")


def test_released_size_is_checked_in_seconds(
    released_dir: Path, released_config: ModelConfig
) -> None:
    """Guards against a check that is quadratic in 96,085 tensors."""
    with effort(300):
        index = open_index(released_dir, released_config)
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
def test_accepted(tiny_copy: Path, tiny_config: ModelConfig, case: str) -> None:
    """Guards against refusing what the format allows."""
    repack(tiny_copy, ACCEPTED[case])
    index = open_index(tiny_copy, tiny_config)
    assert set(index.locations) == set(index.specs)
    assert not index.warnings


def test_cache_of_links(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """Guards against refusing a download cache, whose files are links into a folder of blobs."""
    blobs = tiny_copy.parent / "blobs"
    blobs.mkdir()
    for i, path in enumerate(sorted(tiny_copy.glob("*.safetensors"))):
        path.rename(blobs / str(i))
        path.symlink_to(blobs / str(i))
    assert len(open_index(tiny_copy, tiny_config).locations) == 1052


def test_stray_files(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """N07: only indexed files are read; a copy, a consolidated file, an adapter: a warning."""
    before = open_index(tiny_copy, tiny_config)
    tensors = read_tensors(tiny_copy)
    write_tensors(tiny_copy / "model.safetensors", tensors)
    write_tensors(tiny_copy / "consolidated.safetensors", {SINK: tensors[SINK]})
    (tiny_copy / "adapter_model.safetensors").write_bytes(b"not even a header")
    after = open_index(tiny_copy, tiny_config)
    assert after.locations == before.locations
    [warning] = after.warnings
    for name in ("model.safetensors", "consolidated.safetensors", "adapter_model.safetensors"):
        assert name in warning


def test_copies_for_the_draft_module(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """Guards against refusing a checkpoint that repeats embedding and head there (spec 13.1)."""
    repack(tiny_copy, lambda t: t.update({"mtp.0.embed.weight": t["embed.weight"]}))
    index = open_index(tiny_copy, tiny_config)
    assert "mtp.0.embed.weight" not in index.locations
    assert "mtp.0.embed.weight is ignored" in index.warnings[0]


def test_wrong_total_is_a_warning(tiny_copy: Path, tiny_config: ModelConfig) -> None:
    """Guards against silence about an index of another version whose names still fit."""
    edit_index(tiny_copy, lambda index: index["metadata"].update(total_size=1))
    assert "promises 1 bytes" in open_index(tiny_copy, tiny_config).warnings[0]
