"""config.json -> `ModelConfig`: every key known, every value checked, nothing guessed.

Covers the released layout of DeepSeek-V4.1-Flash (spec 2). A key that is wrong, missing or unknown
is
refused by name with what was expected: a setting that is silently ignored is a silently wrong
model. Knows nothing of tensors, files of weights, or how the layers are scheduled (`layers.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from deepinfer.config.checks import REQUIRED, Key, shown
from deepinfer.config.keys import (
    BOOKKEEPING_KEYS,
    QUANTIZATION_KEYS,
    ROPE_SCALING_KEYS,
    TEXT_KEYS,
    TOP_KEYS,
    VISION_KEYS,
)
from deepinfer.config.spellings import to_released_spelling
from deepinfer.config.together import check_together
from deepinfer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """YaRN settings, used by layers with a compression ratio only (spec 6)."""

    rope_type: str
    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The vision tower's sizes. Only the checkpoint's inventory reads them for now."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int
    rope_theta: float
    downsample_ratio: int
    max_image_tokens: int
    min_pixels: int
    max_wh_ratio: float | None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The model's facts under the names config.json uses (spec 2). Immutable; no key is optional
    here.
    """

    # top level
    dtype: str
    bos_token_id: int
    eos_token_id: int
    all_eos_token_ids: tuple[int, ...]
    pad_token_id: int
    image_token_id: int
    tokenizer_compatibility: str
    # text: sizes
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    hidden_act: str
    swiglu_limit: float
    rms_norm_eps: float
    attention_bias: bool
    attention_dropout: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling
    initializer_range: float
    # text: which layer does what
    sliding_window: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_k_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int | None
    candidate_topk_blocks: int
    candidate_block_size: int
    use_fp4_sparse_kv: bool
    # text: hyper-connections
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    hc_shifted: bool
    # text: experts
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    scoring_func: str
    topk_method: str
    norm_topk_prob: bool
    routed_scaling_factor: float
    # text: Engram
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    # text: DSpark
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_target_attn_input: bool
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    vision: VisionConfig
    # not in config.json: (a, b), which layers are held here; None is all (`hold_layers`)
    held_layers: tuple[int, int] | None = None


def read_model_config(folder: Path) -> ModelConfig:
    """Read and check `folder`/config.json.

    Raises ConfigError naming the key, what was found, what was expected and the way out.
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except FileNotFoundError:
        raise ConfigError(
            f"no config.json in {folder}" if folder.is_dir() else f"{folder} is not a folder",
            where="config.json",
            hint="give the folder that holds config.json and the .safetensors shards",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}",
            where=str(path),
            hint="check the file's permissions",
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"not valid JSON: {error}",
            where=str(path),
            hint="the file is damaged, or a git-lfs pointer: fetch it again",
        ) from None
    return parse_model_config(raw)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's keys. JSON allows a key twice; taking one of the two would be silent."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(
            "the key stands there twice",
            where=f"config.json: {twice}",
            hint="remove one of the two",
        )
    return found


def parse_model_config(raw: object) -> ModelConfig:
    """Check the parsed content of a config.json and return it as a ModelConfig.

    Accepts the released spelling and the newer one of the transformers library (`spellings.py`).
    Raises ConfigError.
    """
    if not isinstance(raw, dict):
        raise ConfigError(
            f"the file holds {shown(raw)}, expected an object",
            where="config.json",
            hint="this is not a model's configuration",
        )
    # The architecture is checked before anything else: a config of another model would only
    # produce a long list of puzzling complaints.
    _read(TOP_KEYS[:2], {k: raw[k] for k in ("architectures", "model_type") if k in raw}, "")
    raw = to_released_spelling(raw)
    top = _read(TOP_KEYS, raw, "")
    _read(QUANTIZATION_KEYS, top["quantization_config"], "quantization_config.", strict=False)
    text = _read(TEXT_KEYS, top["text_config"], "text_config.")
    vision = _read(VISION_KEYS, top["vision_config"], "vision_config.")
    scaling = _read(ROPE_SCALING_KEYS, text["rope_scaling"], "text_config.rope_scaling.")

    values = {**top, **text, "rope_scaling": RopeScaling(**scaling)}
    if values["index_k_source_layer_ids"] is None:
        values["index_k_source_layer_ids"] = values["kv_source_layer_ids"]
    vision.pop("model_type")
    values["vision"] = VisionConfig(**vision)
    known = {f.name for f in fields(ModelConfig)} - {"held_layers"}
    config = ModelConfig(**{name: values[name] for name in known})
    check_together(config)
    return config


def _read(
    keys: tuple[Key, ...], raw: Mapping[str, Any], prefix: str, *, strict: bool = True
) -> dict[str, Any]:
    """The checked values of `keys` found in `raw`; with `strict`, a key outside them is refused."""
    known = {key.name for key in keys}
    unknown = [name for name in raw if name not in known and name not in BOOKKEEPING_KEYS]
    if strict and unknown:
        near = get_close_matches(unknown[0], known, n=1)
        raise ConfigError(
            f"unknown key with value {shown(raw[unknown[0]])}",
            where=f"config.json: {prefix}{unknown[0]}",
            hint=f"did you mean {near[0]!r}?"
            if near
            else "it could change the arithmetic; remove it if it does not",
        )
    values: dict[str, Any] = {}
    for key in keys:
        where = f"config.json: {prefix}{key.name}"
        if key.name in raw:
            values[key.name] = key.check(raw[key.name], where)
        elif key.default is REQUIRED:
            raise ConfigError(
                f"missing; expected {key.check.expected}",
                where=where,
                hint="take config.json from the checkpoint's own repository",
            )
        else:
            values[key.name] = key.default
    return values
