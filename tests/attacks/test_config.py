"""Hostile and careless configurations: every wrong value of every key is refused by name."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from deepinfer.config import model
from deepinfer.config.checks import REQUIRED, Key
from deepinfer.config.model import parse_model_config, read_model_config
from deepinfer.errors import ConfigError
from tests.conftest import RELEASED

Json = dict[str, Any]

# Where each table's keys stand in config.json.
TABLES: dict[tuple[str, ...], tuple[Key, ...]] = {
    (): model.TOP_KEYS,
    ("quantization_config",): model.QUANTIZATION_KEYS,
    ("text_config",): model.TEXT_KEYS,
    ("text_config", "rope_scaling"): model.ROPE_SCALING_KEYS,
    ("vision_config",): model.VISION_KEYS,
}
KEYS = [(path, key) for path, keys in TABLES.items() for key in keys]

SUSPECTS = (None, "wrong", "1", True, False, 0.5, -1, -1.0, 10**30, math.nan, math.inf, -math.inf)
SUSPECTS += ([], [None], ["x"], [-1], [0.5], [True], {}, {"a": 1})  # type: ignore[assignment]

# What a key's own words allow among the suspects.
ALLOWED: dict[str, Callable[[object], bool]] = {
    "null or": lambda v: v is None,
    "a finite number": lambda v: v in (0.5, 10**30) and not isinstance(v, bool),
    "true or false": lambda v: isinstance(v, bool),
    "True": lambda v: v is True,
    "False": lambda v: v is False,
    "a list": lambda v: v == [],
    "an object": lambda v: isinstance(v, dict),
}


def dotted(path: tuple[str, ...], name: str) -> str:
    return ".".join((*path, name))


def released() -> Json:
    content: Json = json.loads(RELEASED.read_text(encoding="utf-8"))
    return content


def at(config: Json, path: tuple[str, ...]) -> Json:
    for name in path:
        config = config[name]
    return config


def refused(config: object, where: str) -> ConfigError:
    """The error of parsing `config`; it must name the key and give a way out."""
    with pytest.raises(ConfigError) as caught:
        parse_model_config(config)
    assert caught.value.where == f"config.json: {where}"
    assert caught.value.hint
    return caught.value


def wrong_values(key: Key) -> list[object]:
    allowed = [accept for words, accept in ALLOWED.items() if words in key.check.expected]
    return [v for v in SUSPECTS if not any(accept(v) for accept in allowed)]


@pytest.mark.parametrize(("path", "key"), KEYS, ids=[dotted(p, k.name) for p, k in KEYS])
def test_wrong_values(path: tuple[str, ...], key: Key) -> None:
    """Guards against a value taken for what it is not: true for 1, "1" for 1, NaN, null, a list."""
    values = wrong_values(key)
    assert len(values) >= 14
    for value in values:
        config = released()
        at(config, path)[key.name] = value
        error = refused(config, dotted(path, key.name))
        assert "expected" in error.what


@pytest.mark.parametrize(("path", "key"), KEYS, ids=[dotted(p, k.name) for p, k in KEYS])
def test_missing_keys(path: tuple[str, ...], key: Key) -> None:
    """Guards against a default taken in silence where the release has none."""
    config = released()
    at(config, path).pop(key.name, None)
    if key.default is REQUIRED:
        assert "missing" in refused(config, dotted(path, key.name)).what
    else:
        parse_model_config(config)


STRICT_KEYS = [(path, key) for path, key in KEYS if path != ("quantization_config",)]


@pytest.mark.parametrize(
    ("path", "key"), STRICT_KEYS, ids=[dotted(p, k.name) for p, k in STRICT_KEYS]
)
def test_misspelt_keys(path: tuple[str, ...], key: Key) -> None:
    """Guards against a setting that is ignored because of its spelling; the near miss is named."""
    config = released()
    misspelt = key.name.replace("_", "", 1) + "s"
    at(config, path)[misspelt] = 1
    assert repr(key.name) in refused(config, dotted(path, misspelt)).hint


def test_unknown_key() -> None:
    """Guards against a key of another model that would change the arithmetic."""
    config = released()
    config["text_config"]["gate_temp"] = 2.0
    refused(config, "text_config.gate_temp")


OUT_OF_RANGE = {
    "vocab_size": 0,
    "hidden_size": 5121,
    "head_dim": 48,
    "q_lora_rank": 16,
    "moe_intermediate_size": 2305,
    "index_head_dim": 100,
    "engram_head_dim": 8,
    "qk_rope_head_dim": 63,
    "num_key_value_heads": 8,
    "n_shared_experts": 2,
    "num_hidden_layers": 0,
    "sliding_window": 0,
    "index_topk": 0,
    "rms_norm_eps": 0.0,
    "hc_eps": 0,
    "swiglu_limit": 0,
    "rope_theta": 1.0,
    "max_position_embeddings": 2**31,
    "engram_max_ngram_size": 1,
    "engram_vocab_size": 1,
    "hidden_act": "gelu",
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "norm_topk_prob": False,
    "attention_bias": True,
    "attention_dropout": 0.1,
    "tie_word_embeddings": True,
    "hc_shifted": False,
    "dspark_target_attn_input": False,
}


@pytest.mark.parametrize("key", OUT_OF_RANGE)
def test_out_of_range(key: str) -> None:
    """Guards against sizes and modes that the arithmetic does not cover."""
    config = released()
    config["text_config"][key] = OUT_OF_RANGE[key]
    refused(config, f"text_config.{key}")


# Fine alone, wrong together: the changes, and the key that must be named.
CONTRADICTIONS: dict[str, tuple[Json, str]] = {
    "bos outside": ({"bos_token_id": 129280}, "bos_token_id"),
    "eos outside": ({"eos_token_id": 129280}, "eos_token_id"),
    "pad outside": ({"pad_token_id": 129280}, "pad_token_id"),
    "image outside": ({"image_token_id": 129280}, "image_token_id"),
    "noise outside": ({"dspark_noise_token_id": 129280}, "dspark_noise_token_id"),
    "engram pad outside": ({"engram_pad_token_id": 129280}, "engram_pad_token_id"),
    "groups": ({"o_groups": 7}, "o_groups"),
    "grouped rank": ({"o_groups": 1, "o_lora_rank": 33}, "o_lora_rank"),
    "rotary over head": ({"qk_rope_head_dim": 130}, "qk_rope_head_dim"),
    "more chosen than experts": ({"num_experts_per_tok": 385}, "num_experts_per_tok"),
    "more chosen drafts": ({"dspark_num_experts_per_tok": 129}, "dspark_num_experts_per_tok"),
    "too few ratios": ({"compress_ratios": [0, 0] + [2] * 18 + [1] * 20}, "compress_ratios"),
    "layers without ratios": ({"num_hidden_layers": 41}, "compress_ratios"),
    "ratio 4": ({"compress_ratios": [0, 0] + [4] * 18 + [1] * 20 + [0] * 3}, "compress_ratios"),
    "ratio for a draft": ({"compress_ratios": [0, 0] + [2] * 18 + [1] * 23}, "compress_ratios"),
    "ratio 1 before 2": (
        {"compress_ratios": [0, 0] + [1] * 18 + [2] * 20 + [0] * 3},
        "compress_ratios",
    ),
    "window in between": (
        {"compress_ratios": [0, 0, 2, 0] + [2] * 16 + [1] * 20 + [0] * 3},
        "compress_ratios",
    ),
    "source twice": ({"kv_source_layer_ids": [2, 2, 8, 14, 20]}, "kv_source_layer_ids"),
    "sources unsorted": (
        {"index_source_layer_ids": [8, 2, 14, 20, 24, 28, 32, 36]},
        "index_source_layer_ids",
    ),
    "source beyond the end": ({"kv_source_layer_ids": [2, 8, 14, 20, 40]}, "kv_source_layer_ids"),
    "source in a window layer": (
        {"index_source_layer_ids": [1, 2, 8, 14, 20, 24, 28, 32, 36]},
        "index_source_layer_ids",
    ),
    "KV source without an index": (
        {"index_source_layer_ids": [2, 8, 20, 24, 28, 32, 36]},
        "index_source_layer_ids",
    ),
    "index keys elsewhere": ({"index_k_source_layer_ids": [2, 8, 14]}, "index_k_source_layer_ids"),
    "no source at ratio 1": (
        {"kv_source_layer_ids": [2, 8, 14], "index_source_layer_ids": [2, 8, 14, 24]},
        "kv_source_layer_ids",
    ),
    "no source at ratio 2": (
        {"kv_source_layer_ids": [8, 14, 20], "index_source_layer_ids": [8, 14, 20]},
        "kv_source_layer_ids",
    ),
    "candidates of a layer without index": (
        {"candidate_source_layer_id": 21},
        "candidate_source_layer_id",
    ),
    "engram beyond the end": ({"engram_layer_ids": [1, 40]}, "engram_layer_ids"),
    "engram unsorted": ({"engram_layer_ids": [14, 1]}, "engram_layer_ids"),
    "tap beyond the end": ({"dspark_target_layer_ids": [38, 39, 40]}, "dspark_target_layer_ids"),
    "one table height": ({"engram_num_embeddings": [384006168]}, "engram_num_embeddings"),
    "wrong table height": (
        {"engram_num_embeddings": [384006168, 384016683]},
        "engram_num_embeddings",
    ),
    "heads against heights": ({"engram_n_heads": 7}, "engram_num_embeddings"),
    "endless search for primes": ({"engram_vocab_size": 2**52}, "engram_vocab_size"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions(case: str) -> None:
    """Guards against keys that are each fine and together describe no model."""
    changes, key = CONTRADICTIONS[case]
    config = released()
    for name, value in changes.items():
        (config if name in config else config["text_config"])[name] = value
    refused(config, key if key in config else f"text_config.{key}")


PARSE = """
import json, sys
from deepinfer.config.model import parse_model_config
from deepinfer.errors import ConfigError
try:
    parse_model_config(json.load(sys.stdin))
except ConfigError as error:
    print(error.where)
"""


@pytest.mark.parametrize(
    "name",
    [
        "text_config.engram_n_heads",
        "text_config.engram_max_ngram_size",
        "text_config.num_hidden_layers",
        "text_config.num_nextn_predict_layers",
        "text_config.n_routed_experts",
        "text_config.dspark_n_routed_experts",
        "vision_config.num_hidden_layers",
    ],
)
def test_huge_counts_end_soon(name: str) -> None:
    """Guards against a number in a file that makes the check, or the inventory, run for hours.

    In a process of its own, which can be stopped.
    """
    config = released()
    table, key = name.split(".")
    config[table][key] = 2**40
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps(config).encode(),
        capture_output=True,
        check=True,
        timeout=20,
        cwd=RELEASED.parents[1],
    )
    assert done.stdout.startswith(b"config.json: ")


@pytest.mark.parametrize("content", [None, [], "text", 5, True], ids=repr)
def test_not_an_object(content: object) -> None:
    """Guards against an attribute error of Python in place of an answer."""
    with pytest.raises(ConfigError):
        parse_model_config(content)


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not valid JSON"),
    "half": (b'{"architectures": [', "not valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', "not valid JSON"),
    "deep": (b"[" * 100_000, "not valid JSON"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs"),
    "a list": (b"[]", "expected an object"),
    "another model": (b'{"architectures": ["LlamaForCausalLM"]}', "LlamaForCausalLM"),
    "a key twice": (b'{"model_type": "deepseek_v41", "model_type": "deepseek_v41"}', "twice"),
}


@pytest.mark.parametrize("case", FILES)
def test_damaged_files(tmp_path: Path, case: str) -> None:
    """N10: a damaged file says what it is."""
    content, words = FILES[case]
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_model_config(tmp_path)
    assert words in str(caught.value)


def test_folders(tmp_path: Path) -> None:
    """N10: a wrong folder, a file in its place, a folder in the file's place."""
    (tmp_path / "file").touch()
    (tmp_path / "odd" / "config.json").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "none", tmp_path / "file", tmp_path / "odd"):
        with pytest.raises(ConfigError, match=r"config\.json"):
            read_model_config(folder)


def test_input_is_not_changed() -> None:
    """Guards against a parser that edits the caller's dictionary."""
    config = released()
    config["torch_dtype"] = config.pop("dtype")
    before = deepcopy(config)
    parse_model_config(config)
    assert config == before
