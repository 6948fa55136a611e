"""The demo model's sizes: every mechanism of the released model in at most 20 MB.

Knows the released format through `inventory`; knows nothing of data or of how it is trained.
"""

import tempfile
from pathlib import Path
from typing import Any

from deepinfer.checkpoint.inventory import inventory
from deepinfer.checkpoint.tiny import tiny_config
from deepinfer.config.model import ModelConfig, parse_model_config
from deepinfer.tokenizer.compress import build_token_map
from deepinfer.tokenizer.tokenizer_file import TOKENIZER_FILE
from deepinfer.tokenizer.toy import write_toy_tokenizer

MAX_BYTES = 20_000_000
# Room for config.json, tokenizer.json, the index and the files' headers.
WEIGHT_BYTES = 19_400_000

# text_config, where it differs from the random toy's. A prompt of 500 tokens is longer than the
# window, has more entries than index_topk and more blocks than candidate_topk_blocks.
_TEXT: dict[str, Any] = {
    "vocab_size": 3072,
    "hidden_size": 256,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 128,
    "o_lora_rank": 64,
    "o_groups": 2,
    "max_position_embeddings": 8192,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 512,
    },
    "sliding_window": 128,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [2, 4, 6],
    "index_source_layer_ids": [2, 4, 6, 8, 10],
    "index_n_heads": 8,
    "index_head_dim": 64,
    "index_topk": 128,
    "candidate_source_layer_id": 6,
    "candidate_topk_blocks": 112,
    "candidate_block_size": 4,
    "moe_intermediate_size": 96,
    "n_routed_experts": 12,
    "num_experts_per_tok": 2,
    "engram_layer_ids": [1, 4],
    "engram_vocab_size": 3400,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "dspark_target_layer_ids": [9, 10, 11],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}

# The encoder of images is not trained: present, so that the checkpoint is whole, and minute.
_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "downsample_ratio": 2,
}

# For tests and first tries on a CPU: the same structure, seconds a stage.
_TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_lora_rank": 32,
    "sliding_window": 16,
    "index_n_heads": 4,
    "index_topk": 8,
    "candidate_topk_blocks": 4,
    "candidate_block_size": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "engram_vocab_size": 101,
    "dspark_n_routed_experts": 4,
}


def demo_config(tokenizer_folder: Path | None = None, *, tiny: bool = False) -> dict[str, Any]:
    """The content of config.json.

    tokenizer_folder: where tokenizer.json lies; Engram's hash depends on how many of its tokens
    are the same but for case and accents. Without one that number is the toy tokenizer's.
    tiny: a smaller model of the same structure.
    Asserts that the weights fit into `WEIGHT_BYTES`.
    """
    text = {**_TEXT, **(_TINY if tiny else {})}
    if tokenizer_folder is not None:
        token_map = build_token_map(tokenizer_folder / TOKENIZER_FILE)
        text["engram_compressed_vocab_size"] = int(token_map.max()) + 1
    config = tiny_config(**text)
    config["vision_config"] |= _VISION
    assert checkpoint_bytes(parse_model_config(config)) <= WEIGHT_BYTES
    return config


def token_map_of(config: ModelConfig, tokenizer_folder: Path | None) -> list[int]:
    """Engram's compression of token ids, of a tokenizer or of the toy's."""
    if tokenizer_folder is not None:
        return build_token_map(tokenizer_folder / TOKENIZER_FILE).tolist()
    with tempfile.TemporaryDirectory() as folder:
        write_toy_tokenizer(Path(folder), config.vocab_size)
        return build_token_map(Path(folder) / TOKENIZER_FILE).tolist()


def checkpoint_bytes(config: ModelConfig) -> int:
    """Bytes of all tensors as released, without headers."""
    return sum(spec.num_bytes for spec in inventory(config).values())
