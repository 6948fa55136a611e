"""The toy checkpoint: complete, repeatable, and with every mechanism of the released model."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from deepinfer.checkpoint.load import open_checkpoint
from deepinfer.checkpoint.tiny import tiny_config as make_config
from deepinfer.checkpoint.tiny import write_tiny
from deepinfer.config.layers import Kind, plan_layers
from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.errors import ConfigError
from deepinfer.tokenizer.compress import build_token_map, check_token_map
from deepinfer.tokenizer.tokenizer import load_tokenizer


def test_every_mechanism(tiny_config: ModelConfig) -> None:
    """Guards against a toy that leaves out what the tests are meant to cover."""
    plans = plan_layers(tiny_config)
    kinds = Counter((plan.kind, plan.ratio) for plan in plans)
    assert kinds == {
        (Kind.WINDOW, 0): 2,
        (Kind.FULL, 2): 2,
        (Kind.REUSE, 2): 2,
        (Kind.FULL, 1): 1,
        (Kind.REUSE, 1): 2,
        (Kind.REINDEX, 1): 1,
    }
    assert sum(plan.engram_id is not None for plan in plans) == 2
    assert sum(plan.tap_id is not None for plan in plans) == 3
    assert [p.candidate_source for p in plans if p.kind is Kind.REINDEX] == [6]
    candidates = tiny_config.candidate_topk_blocks * tiny_config.candidate_block_size
    assert tiny_config.index_topk < candidates < 64


def test_same_seed_same_bytes(tiny_dir: Path, tmp_path: Path) -> None:
    """Guards against a fixture that changes from run to run; another seed is another model."""
    write_tiny(tmp_path / "same")
    write_tiny(tmp_path / "other", seed=1)
    for path in sorted(tiny_dir.iterdir()):
        content = path.read_bytes()
        assert content == (tmp_path / "same" / path.name).read_bytes()
        same = content == (tmp_path / "other" / path.name).read_bytes()
        assert same == (path.suffix != ".safetensors")


def test_tokenizer_belongs_to_it(tiny_dir: Path, tiny_config: ModelConfig) -> None:
    """Guards against Engram counts and token ids of another vocabulary."""
    check_token_map(build_token_map(tiny_dir / "tokenizer.json"), tiny_config)
    tokenizer = load_tokenizer(tiny_dir, tiny_config)
    assert tokenizer.vocab_len == tiny_config.vocab_size


def test_statistics(tiny_dir: Path, tiny_config: ModelConfig) -> None:
    """Guards against weights that make a network of zeros, or that blow up layer by layer."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    for name, spec in checkpoint.index.specs.items():
        if spec.is_scale:
            continue
        values = checkpoint.decoded(name).float()
        assert values.isfinite().all(), name
        assert 0.001 < values.square().mean().sqrt() < 2, name
    head = checkpoint.decoded("head.weight").float()
    ordinary = torch.ones(tiny_config.vocab_size, dtype=torch.bool)
    ordinary[[0, 1, 2, tiny_config.image_token_id, tiny_config.dspark_noise_token_id]] = False
    assert 2.0 < head[ordinary].norm(dim=1).mean() < 2.6
    assert head[~ordinary].norm(dim=1).max() < 0.1


def test_overrides(tmp_path: Path) -> None:
    """Guards against derived keys that are not derived again."""
    config = make_config(vocab_size=400, engram_vocab_size=53, engram_layer_ids=[1])
    write_tiny(tmp_path, config=config)
    parsed = read_model_config(tmp_path)
    assert parsed.vocab_size == 400
    assert max(parsed.image_token_id, parsed.dspark_noise_token_id) < 400
    assert len(parsed.engram_num_embeddings) == 1
    open_checkpoint(tmp_path, parsed)
    check_token_map(build_token_map(tmp_path / "tokenizer.json"), parsed)


def test_wrong_override(tmp_path: Path) -> None:
    """Guards against half a checkpoint on disk for a configuration that is refused."""
    with pytest.raises(ConfigError, match="hidden_size"):
        write_tiny(tmp_path / "x", config=make_config(hidden_size=100))
    assert not (tmp_path / "x").exists()
