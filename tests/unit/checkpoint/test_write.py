"""The writer: what it writes is what was given, rounded to the format once, and always the same."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.checkpoint.index import INDEX_FILE, open_index
from deepinfer.checkpoint.load import open_checkpoint
from deepinfer.checkpoint.tiny import RandomWeights
from deepinfer.checkpoint.tiny import tiny_config as make_config
from deepinfer.checkpoint.write import write_checkpoint
from deepinfer.config.model import ModelConfig, parse_model_config
from deepinfer.errors import CheckpointError
from tests.shards import read_tensors


def decoded_weights(folder: Path, config: ModelConfig) -> dict[str, Tensor]:
    checkpoint = open_checkpoint(folder, config)
    specs = checkpoint.index.specs
    return {name: checkpoint.decoded(name) for name, s in specs.items() if not s.is_scale}


def test_round_trip(tiny_dir: Path, tiny_config: ModelConfig, tmp_path: Path) -> None:
    """Guards against any loss: decoded weights written again give the same bytes.

    Scales are chosen anew from the largest value, so a weight whose block lost its largest value to
    rounding up may get another scale; the values are the same either way.
    """
    weights = decoded_weights(tiny_dir, tiny_config)
    write_checkpoint(tmp_path, make_config(), weights)
    again = decoded_weights(tmp_path, tiny_config)
    assert weights.keys() == again.keys()
    for name, value in weights.items():
        assert torch.equal(value, again[name]), name


def test_rounding_error(tiny_dir: Path, tiny_config: ModelConfig) -> None:
    """Guards against a lost scale, a swapped nibble, a transposed block: errors would be large.

    A scale leaves no value out of range, so e4m3 loses at most 1/16 of it and e2m1 at most 1/4.
    """
    drawn = RandomWeights(tiny_config, 0)
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    worst = {"BF16": 2.0**-8, "F32": 0.0, "F8_E4M3": 1 / 16, "I8": 0.25}
    for name, weight in drawn.items():
        spec = checkpoint.index.specs[name]
        error = (checkpoint.decoded(name).float() - weight).abs().max()
        assert error <= worst[spec.dtype] * weight.abs().max(), name
        if spec.dtype != "F32":
            assert error > 0, name


def test_same_bytes(tmp_path: Path) -> None:
    """Guards against dates, dictionary order or memory addresses in a file."""
    config = make_config()
    for name in ("one", "two"):
        weights = RandomWeights(parse_model_config(config), 3)
        write_checkpoint(tmp_path / name, config, weights, shard_bytes=500_000)
    first = sorted((tmp_path / "one").iterdir())
    assert len(first) > 6
    for path in first:
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_shards(tiny_dir: Path, tiny_config: ModelConfig) -> None:
    """Guards against shards over the limit, and scales in another file than their weight."""
    index = open_index(tiny_dir, tiny_config)
    listed = json.loads((tiny_dir / INDEX_FILE).read_text())
    assert listed["metadata"]["total_size"] == index.num_bytes
    for name, spec in index.specs.items():
        place = index.locations[name]
        assert listed["weight_map"][name] == place.path.name
        assert place.dtype == spec.dtype
        if spec.partner:
            assert index.locations[spec.partner].path == place.path
    for path in tiny_dir.glob("*.safetensors"):
        places = [p for p in index.locations.values() if p.path == path]
        assert sum(p.num_bytes for p in places) <= 1_000_000


WRONG: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (lambda t: t.pop("norm.weight"), "1 weights are missing: norm.weight"),
    "unknown": (lambda t: t.update(ghost=torch.ones(1)), "not weights of this model: ghost"),
    "scale given": (
        lambda t: t.update({"layers.0.attn.wq_a.scale": torch.ones(2, 3)}),
        "layers.0.attn.wq_a.scale",
    ),
    "shape": (lambda t: t.update({"norm.weight": torch.ones(95)}), "norm.weight"),
    "NaN": (lambda t: t.update({"norm.weight": torch.full((96,), torch.nan)}), "norm.weight"),
    "infinity": (
        lambda t: t.update({"layers.0.attn.wq_a.weight": torch.full((64, 96), torch.inf)}),
        "layers.0.attn.wq_a.weight",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_weights(tmp_path: Path, tiny_config: ModelConfig, case: str) -> None:
    """Guards against writing what cannot be loaded, or what loads as something else."""
    edit, words = WRONG[case]
    weights = dict(RandomWeights(tiny_config, 0))
    edit(weights)
    with pytest.raises(CheckpointError, match=words):
        write_checkpoint(tmp_path, make_config(), weights)
    assert not (tmp_path / INDEX_FILE).exists()


def test_full_disk(
    tiny_dir: Path, tiny_config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N10: a full disk is named, and what was written does not pass for a checkpoint."""
    config = make_config()
    write_checkpoint(tmp_path, config, RandomWeights(tiny_config, 0))
    real = Path.replace

    def fill(self: Path, target: Path) -> Path:
        if "00002" in self.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", fill)
    with pytest.raises(CheckpointError, match="No space left") as caught:
        write_checkpoint(tmp_path, config, RandomWeights(tiny_config, 1), shard_bytes=2_000_000)
    assert "bytes of space" in caught.value.hint
    assert not list(tmp_path.glob("*.partial"))
    with pytest.raises(CheckpointError, match="index is missing"):
        open_index(tmp_path, tiny_config)


def test_any_float_type(tmp_path: Path, tiny_config: ModelConfig) -> None:
    """Guards against encoding in bfloat16 what training keeps there: scales would differ."""
    half = {name: w.bfloat16() for name, w in RandomWeights(tiny_config, 0).items()}
    full = {name: w.float() for name, w in half.items()}
    write_checkpoint(tmp_path / "half", make_config(), half)
    write_checkpoint(tmp_path / "full", make_config(), full)
    assert read_tensors(tmp_path / "half") == read_tensors(tmp_path / "full")
