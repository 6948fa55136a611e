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

from deepinfer.config import checks
from deepinfer.config.checks import REQUIRED, Key
from deepinfer.config.spellings import to_released_spelling
from deepinfer.errors import ConfigError

ARCHITECTURE = "DeepseekV41ForCausalLM"
MODEL_TYPE = "deepseek_v41"


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


# Bounds far beyond any model, so that a damaged count cannot keep the checks busy for ever.
_SIZE = checks.integer(1, 2**40)
_COUNT = checks.integer(0, 2**40)
_FEW = checks.integer(1, 2**16)
_LANES = checks.integer(1, multiple_of=32)  # FP8 and FP4 scales cover 32 channels at a time
_LAYER_IDS = checks.integers()

TOP_KEYS = (
    Key("architectures", checks.exactly([ARCHITECTURE])),
    Key("model_type", checks.exactly(MODEL_TYPE)),
    Key("dtype", checks.exactly("bfloat16")),
    Key("bos_token_id", _COUNT),
    Key("eos_token_id", _COUNT),
    Key("pad_token_id", _COUNT),
    Key("image_token_id", _COUNT),
    Key("tokenizer_compatibility", checks.one_of("release", "native"), "release"),
    Key("tie_word_embeddings", checks.exactly(False), False),
    Key("text_config", checks.mapping()),
    Key("vision_config", checks.mapping()),
    Key("quantization_config", checks.mapping()),
)

QUANTIZATION_KEYS = (
    Key("quant_method", checks.exactly("fp8")),
    Key("expert_dtype", checks.exactly("fp4")),
    Key("activation_scheme", checks.exactly("dynamic")),
    Key("weight_block_size", checks.exactly([32, 32])),
    Key("scale_fmt", checks.exactly("ue8m0")),
)

ROPE_SCALING_KEYS = (
    Key("rope_type", checks.exactly("yarn")),
    Key("factor", checks.number(1.0)),
    Key("beta_fast", checks.number(0.0, above=True)),
    Key("beta_slow", checks.number(0.0, above=True)),
    Key("original_max_position_embeddings", _SIZE),
)

TEXT_KEYS = (
    Key("model_type", checks.exactly("deepseek_v41_text"), "deepseek_v41_text"),
    Key("vocab_size", _SIZE),
    Key("hidden_size", _LANES),
    Key("num_hidden_layers", checks.integer(1, 4096)),
    Key("num_attention_heads", _SIZE),
    Key("num_key_value_heads", checks.exactly(1)),
    Key("head_dim", _LANES),
    Key("qk_rope_head_dim", checks.integer(2, multiple_of=2)),
    Key("q_lora_rank", _LANES),
    Key("o_lora_rank", _SIZE),
    Key("o_groups", _SIZE),
    Key("hidden_act", checks.exactly("silu")),
    Key("swiglu_limit", checks.number(0.0, above=True)),
    Key("rms_norm_eps", checks.number(0.0, 1.0, above=True)),
    Key("attention_bias", checks.exactly(False)),
    Key("attention_dropout", checks.exactly(0.0)),
    Key("tie_word_embeddings", checks.exactly(False)),
    Key("max_position_embeddings", checks.integer(1, 2**31 - 1)),
    Key("rope_theta", checks.number(1.0, above=True)),
    Key("compress_rope_theta", checks.number(1.0, above=True)),
    Key("rope_scaling", checks.mapping()),
    Key("initializer_range", checks.number(0.0), 0.02),
    Key("sliding_window", _SIZE),
    Key("compress_ratios", checks.integers()),
    Key("kv_source_layer_ids", _LAYER_IDS),
    Key("index_source_layer_ids", _LAYER_IDS),
    Key("index_k_source_layer_ids", checks.nullable(_LAYER_IDS), None),
    Key("index_n_heads", _SIZE),
    Key("index_head_dim", _LANES),
    Key("index_topk", _SIZE),
    Key("candidate_source_layer_id", checks.nullable(_COUNT)),
    Key("candidate_topk_blocks", _SIZE),
    Key("candidate_block_size", _SIZE),
    Key("use_fp4_sparse_kv", checks.boolean(), True),
    Key("hc_mult", _SIZE),
    Key("hc_sinkhorn_iters", _SIZE),
    Key("hc_eps", checks.number(0.0, 1.0, above=True)),
    Key("hc_shifted", checks.exactly(True), True),
    Key("moe_intermediate_size", _LANES),
    Key("n_routed_experts", _FEW),
    Key("n_shared_experts", checks.exactly(1)),
    Key("num_experts_per_tok", _SIZE),
    Key("scoring_func", checks.exactly("sqrtsoftplus")),
    Key("topk_method", checks.exactly("noaux_tc")),
    Key("norm_topk_prob", checks.exactly(True)),
    Key("routed_scaling_factor", checks.number(0.0, above=True)),
    Key("engram_layer_ids", _LAYER_IDS),
    Key("engram_num_embeddings", checks.integers()),
    Key("engram_max_ngram_size", checks.integer(2, 64)),
    Key("engram_vocab_size", checks.integer(2)),
    Key("engram_n_heads", checks.integer(1, 256)),
    Key("engram_head_dim", _LANES),
    Key("engram_pad_token_id", _COUNT),
    Key("engram_compressed_vocab_size", _SIZE),
    Key("num_nextn_predict_layers", checks.integer(0, 4096)),
    Key("dspark_block_size", _SIZE),
    Key("dspark_noise_token_id", _COUNT),
    Key("dspark_target_layer_ids", _LAYER_IDS),
    Key("dspark_target_attn_input", checks.exactly(True), True),
    Key("dspark_markov_rank", _SIZE),
    Key("dspark_n_routed_experts", _FEW),
    Key("dspark_num_experts_per_tok", _SIZE),
)

VISION_KEYS = (
    Key("model_type", checks.exactly("deepseek_v41_vision"), "deepseek_v41_vision"),
    Key("hidden_size", _SIZE),
    Key("num_hidden_layers", checks.integer(0, 4096)),
    Key("num_attention_heads", _SIZE),
    Key("intermediate_size", _SIZE),
    Key("patch_size", _SIZE),
    Key("rope_theta", checks.number(1.0, above=True)),
    Key("downsample_ratio", _SIZE),
    Key("max_image_tokens", _SIZE),
    Key("min_pixels", _COUNT),
    Key("max_wh_ratio", checks.nullable(checks.number(0.0, above=True))),
)

# What the transformers library writes beside the model's facts. None of it changes the arithmetic.
BOOKKEEPING_KEYS = frozenset(
    "transformers_version _name_or_path name_or_path _attn_implementation use_cache auto_map"
    " _attn_implementation_autoset output_attentions output_hidden_states output_router_logits"
    " return_dict return_dict_in_generate chunk_size_feed_forward is_encoder_decoder id2label"
    " label2id problem_type _commit_hash bos_token_id eos_token_id pad_token_id dtype".split()
)


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
            f"the file holds {checks.shown(raw)}, expected an object",
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
    config = ModelConfig(**{f.name: values[f.name] for f in fields(ModelConfig)})
    checks.check_together(config)
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
            f"unknown key with value {checks.shown(raw[unknown[0]])}",
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
