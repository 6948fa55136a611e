"""Models to measure on: the released structure at sizes that fit a laptop, with random weights.

No file is read or written. Knows sizes; does not know what is measured.
"""

from typing import Any

import torch

from deepinfer.checkpoint.tiny import tiny_config
from deepinfer.config.model import ModelConfig, parse_model_config
from deepinfer.errors import ConfigError
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.model.network import Network
from deepinfer.worker.build import build_dummy

_BOTH: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "q_lora_rank": 256,
    "o_lora_rank": 256,
    "o_groups": 2,
    "max_position_embeddings": 16_384,
    "sliding_window": 128,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "candidate_topk_blocks": 64,
    "candidate_block_size": 8,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "num_nextn_predict_layers": 0,
    "dspark_target_layer_ids": [],
}

# text_config by name. engine: every kind of layer, 638 M parameters. peer: the sizes at which other
# engines were measured on a toy of the model's predecessor, 239 M parameters.
TOYS: dict[str, dict[str, Any]] = {
    "engine": {
        **_BOTH,
        "num_hidden_layers": 12,
        "head_dim": 128,
        "qk_rope_head_dim": 32,
        "moe_intermediate_size": 512,
        "index_topk": 128,
        "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1],
        "kv_source_layer_ids": [2, 4, 6],
        "index_source_layer_ids": [2, 4, 6, 8, 10],
        "candidate_source_layer_id": 6,
        "engram_layer_ids": [1, 4],
    },
    "peer": {
        **_BOTH,
        "num_hidden_layers": 8,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "moe_intermediate_size": 256,
        "index_topk": 512,
        "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1],
        "kv_source_layer_ids": [2, 4],
        "index_source_layer_ids": [2, 4, 6],
        "candidate_source_layer_id": 4,
        "engram_layer_ids": [1, 2],
    },
}


def toy_config(name: str) -> ModelConfig:
    """The configuration of a toy. Raises ConfigError for a name that is none."""
    if name not in TOYS:
        raise ConfigError(
            f"no toy is called {name!r}", where="--toy", hint=f"choose one of {', '.join(TOYS)}"
        )
    return parse_model_config(tiny_config(**TOYS[name]))


def toy_network(config: ModelConfig, kernels: KernelSet, dtype: str) -> Network:
    """Random weights for `config`, kept and computed in `dtype` (bfloat16 or float32)."""
    token_map = [i % config.engram_compressed_vocab_size for i in range(config.vocab_size)]
    return build_dummy(config, token_map, kernels, dtype=getattr(torch, dtype))


def num_parameters(network: Network) -> int:
    """All weights; Engram's tables are not among them."""
    return sum(parameter.numel() for parameter in network.parameters())
