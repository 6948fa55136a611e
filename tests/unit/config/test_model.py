"""Reading config.json: every key arrives, optional keys resolve, the goldens are read."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer.config.model import ModelConfig, parse_model_config, read_model_config
from deepinfer.errors import ConfigError

GOLDEN = Path(__file__).parents[2] / "golden"
Json = dict[str, Any]


def test_every_key_arrives(released_json: Json, released_config: ModelConfig) -> None:
    """Guards against a key that is checked and then dropped, or stored under another's name."""
    text = released_json["text_config"]
    for key, value in text.items():
        if key == "rope_scaling":
            continue
        found = getattr(released_config, key)
        assert found == (tuple(value) if isinstance(value, list) else value), key
    for key, value in released_json["vision_config"].items():
        assert getattr(released_config.vision, key) == value
    for key, value in text["rope_scaling"].items():
        assert getattr(released_config.rope_scaling, key) == value
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"):
        assert getattr(released_config, key) == released_json[key]


def test_optional_keys(released_json: Json, released_config: ModelConfig) -> None:
    """Guards against an absent key that means anything but its released default (spec 2.2)."""
    assert released_config.index_k_source_layer_ids == (2, 8, 14, 20)
    assert released_config.use_fp4_sparse_kv is True
    assert released_config.hc_shifted is True
    assert released_config.dspark_target_attn_input is True
    assert released_config.tokenizer_compatibility == "release"
    text = released_json["text_config"]
    text.update(index_k_source_layer_ids=None, use_fp4_sparse_kv=False)
    released_json["tokenizer_compatibility"] = "native"
    config = parse_model_config(released_json)
    assert config.index_k_source_layer_ids == (2, 8, 14, 20)
    assert config.use_fp4_sparse_kv is False
    assert config.tokenizer_compatibility == "native"


def test_frozen(released_config: ModelConfig) -> None:
    """Guards against a part that changes the facts for all others."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        released_config.hidden_size = 1  # type: ignore[misc]
    hash(released_config)


@pytest.mark.parametrize("variant", ["a", "b"])
def test_goldens(variant: str) -> None:
    """Guards against a check that only the released sizes pass."""
    folder = GOLDEN / variant / "model"
    config = read_model_config(folder)
    raw = json.loads((folder / "config.json").read_text())
    assert config.compress_ratios == tuple(raw["text_config"]["compress_ratios"])


def test_harmless_keys(released_json: Json, released_config: ModelConfig) -> None:
    """Guards against refusing what the transformers library writes beside the model's facts."""
    released_json["text_config"].update(use_cache=True, output_attentions=False)
    released_json.update(transformers_version="5.7.0", _name_or_path="x")
    released_json["quantization_config"]["modules_to_not_convert"] = []
    assert parse_model_config(released_json) == released_config


def test_no_candidates(released_json: Json) -> None:
    """Guards against null taken for layer 0, or for missing."""
    released_json["text_config"]["candidate_source_layer_id"] = None
    assert parse_model_config(released_json).candidate_source_layer_id is None


@pytest.mark.parametrize("value", [None, "int4", "fp8"])
def test_expert_type_is_never_assumed(released_json: Json, value: str | None) -> None:
    """N02: the field absent or another type is an error, not FP4 by default."""
    released_json["quantization_config"]["expert_dtype"] = value
    if value is None:
        del released_json["quantization_config"]["expert_dtype"]
    with pytest.raises(ConfigError, match=r"quantization_config\.expert_dtype"):
        parse_model_config(released_json)
