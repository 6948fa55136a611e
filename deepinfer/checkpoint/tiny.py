"""A random checkpoint at toy size that has every mechanism of the released model.

For tests and first steps: it loads and runs in seconds and speaks nonsense. Knows the released
format through `write.py`; knows nothing of how the network computes.
"""

import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from deepinfer.checkpoint.formats import TensorSpec
from deepinfer.checkpoint.inventory import inventory
from deepinfer.checkpoint.write import write_checkpoint
from deepinfer.config.engram import bucket_primes
from deepinfer.config.model import ModelConfig, parse_model_config
from deepinfer.tokenizer.compress import build_token_map
from deepinfer.tokenizer.tokenizer_file import TOKENIZER_FILE
from deepinfer.tokenizer.toy import IMAGE, NOISE, toy_control_id, write_toy_tokenizer

SHARD_BYTES = 1_000_000  # several files even at this size

# text_config. Two groups of entries at ratio 2 and a decoder half at ratio 1, with every kind of
# layer; few candidates, so that they restrict; many index heads, because few give all-zero scores
# that tie.
_TEXT: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 96,
    "num_hidden_layers": 10,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 64,
    "o_lora_rank": 32,
    "o_groups": 2,
    "hidden_act": "silu",
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 256,
    },
    "sliding_window": 16,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [2, 4, 6],
    "index_source_layer_ids": [2, 4, 6, 8],
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 8,
    "candidate_source_layer_id": 6,
    "candidate_topk_blocks": 4,
    "candidate_block_size": 4,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "engram_layer_ids": [1, 4],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 101,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
    "num_nextn_predict_layers": 3,
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [7, 8, 9],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 6,
    "dspark_num_experts_per_tok": 2,
}

_VISION = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "patch_size": 14,
    "rope_theta": 10000,
    "downsample_ratio": 3,
    "max_image_tokens": 64,
    "min_pixels": 7056,
    "max_wh_ratio": None,
}

# Mean and standard deviation by name, first match; "fan" instead of a deviation is a gain over
# sqrt(columns), which keeps activations near 1. Logits come out with a deviation of 2 to 3.
_STATISTICS: tuple[tuple[str, float, float, bool], ...] = (
    (r".*norm\d?\.weight|.*\.[qk]_weight", 1.0, 0.2, False),
    (r"embed\.weight|.*markov_head\.embed\.weight|image_.*", 0.0, 1.0, False),
    (r".*engram\.embed\.weight|.*attn_sink", 0.0, 1.0, False),
    (r".*hc_\w+_base", 0.2, 0.8, False),
    (r".*hc_\w+_scale", 0.2, 0.03, False),
    (r".*gate\.bias(_vl)?", 0.0, 0.4, False),
    (r".*\.bias", 0.0, 0.1, False),
    (r"head\.weight", 0.0, 2.3, True),
    (r".*(markov_head\.head|\.gate|\.wgate)\.weight", 0.0, 1.5, True),
    (r".*(wo_b|w2|engram\.wkv)\.weight", 0.0, 0.35, True),  # what is added to the streams
    (r".*", 0.0, 1.0, True),
)


def tiny_config(**overrides: Any) -> dict[str, Any]:
    """The content of config.json; `overrides` replaces keys of text_config.

    What follows from other keys is computed: token ids at the end of the vocabulary, Engram's
    counts.
    """
    text = {**_TEXT, **overrides}
    vocab_size = text["vocab_size"]
    heights = [sum(row) for row in bucket_primes(SimpleNamespace(**text))]  # type: ignore[arg-type]
    derived = {
        "dspark_noise_token_id": toy_control_id(NOISE, vocab_size),
        "engram_num_embeddings": heights,
        "engram_compressed_vocab_size": _num_compressed_ids(vocab_size),
    }
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": toy_control_id(IMAGE, vocab_size),
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "expert_dtype": "fp4",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
        },
        "text_config": {**derived, **text},
        "vision_config": dict(_VISION),
    }


def write_tiny(folder: Path, *, seed: int = 0, config: dict[str, Any] | None = None) -> None:
    """Write weights, index, config.json and tokenizer. The same seed gives the same bytes.

    Raises ConfigError for a `config` that is not valid, CheckpointError if the disk refuses.
    """
    config = tiny_config() if config is None else config
    parsed = parse_model_config(config)
    write_checkpoint(folder, config, RandomWeights(parsed, seed), shard_bytes=SHARD_BYTES)
    write_toy_tokenizer(folder, parsed.vocab_size)


class RandomWeights(Mapping[str, Tensor]):
    """Every weight of a configuration, drawn when asked for from its name and the seed alone."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        """Draw nothing yet."""
        specs = inventory(config)
        self._specs = {name: spec for name, spec in specs.items() if not spec.is_scale}
        self._seed = seed
        # Nobody wants to see these in random text, and the end token would cut it short.
        self._silent_ids = [
            config.bos_token_id,
            config.eos_token_id,
            config.pad_token_id,
            config.image_token_id,
            config.dspark_noise_token_id,
        ]

    def __getitem__(self, name: str) -> Tensor:
        values = _draw(self._specs[name], self._seed)
        if name == "head.weight":
            values[self._silent_ids] *= 0.01
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def _draw(spec: TensorSpec, seed: int) -> Tensor:
    # Hashed together: the generator looks at 32 bits of its seed only.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {spec.name}".encode()))
    mean, deviation, is_gain = next(
        row for pattern, *row in _STATISTICS if re.fullmatch(pattern, spec.name)
    )
    shape = spec.value_shape
    if is_gain:
        deviation /= shape[-1] ** 0.5
    return torch.randn(shape, generator=generator) * deviation + mean


def _num_compressed_ids(vocab_size: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        write_toy_tokenizer(Path(folder), vocab_size)
        return int(build_token_map(Path(folder) / TOKENIZER_FILE).max()) + 1
