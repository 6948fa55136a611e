"""Checks of configuration values that must fit each other."""

from typing import TYPE_CHECKING

from deepinfer.config import engram
from deepinfer.config.checks import shown
from deepinfer.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.config.model import ModelConfig


def check_together(config: "ModelConfig") -> None:
    """Refuse values that are fine alone but contradict each other. Raises ConfigError."""
    c = config
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"):
        _must(
            getattr(c, key) < c.vocab_size, key, getattr(c, key), f"below vocab_size {c.vocab_size}"
        )
    highest = max(c.all_eos_token_ids, default=0)
    _must(highest < c.vocab_size, "eos_token_id", highest, f"below vocab_size {c.vocab_size}")
    for key in ("engram_pad_token_id", "dspark_noise_token_id"):
        value = getattr(c, key)
        _must(value < c.vocab_size, f"text_config.{key}", value, f"below vocab_size {c.vocab_size}")

    text = "text_config."
    _must(
        c.num_attention_heads % c.o_groups == 0,
        text + "o_groups",
        c.o_groups,
        f"a divisor of num_attention_heads {c.num_attention_heads}",
    )
    _must(
        c.o_groups * c.o_lora_rank % 32 == 0,
        text + "o_lora_rank",
        c.o_lora_rank,
        f"o_groups * o_lora_rank to be a multiple of 32 (o_groups is {c.o_groups})",
    )
    rotary = min(c.head_dim, c.index_head_dim)
    _must(
        c.qk_rope_head_dim <= rotary,
        text + "qk_rope_head_dim",
        c.qk_rope_head_dim,
        f"at most {rotary}, the smaller of head_dim and index_head_dim",
    )
    for chosen, experts in (
        ("num_experts_per_tok", "n_routed_experts"),
        ("dspark_num_experts_per_tok", "dspark_n_routed_experts"),
    ):
        limit = getattr(c, experts)
        _must(
            getattr(c, chosen) <= limit,
            text + chosen,
            getattr(c, chosen),
            f"at most {experts} {limit}",
        )
    _check_ratios(c)
    _check_sources(c)
    _check_engram(c)


def _must(condition: bool, key: str, found: object, expected: str) -> None:
    if not condition:
        raise ConfigError(
            f"found {shown(found)}, expected {expected}",
            where=f"config.json: {key}",
            hint="the keys of config.json contradict each other; take the checkpoint's own file",
        )


def _check_ratios(c: "ModelConfig") -> None:
    """Window layers first, then ratio 2, then ratio 1, then the draft blocks (spec 1.1, 7.9)."""
    key, ratios = "text_config.compress_ratios", c.compress_ratios
    total = c.num_hidden_layers + c.num_nextn_predict_layers
    _must(
        len(ratios) == total,
        key,
        f"{len(ratios)} entries",
        f"{total}: num_hidden_layers + num_nextn_predict_layers",
    )
    _must(set(ratios) <= {0, 1, 2}, key, list(ratios), "only 0 (window), 2 and 1")
    backbone, drafts = ratios[: c.num_hidden_layers], ratios[c.num_hidden_layers :]
    _must(not any(drafts), key, list(drafts), "0 for each of the draft blocks at the end")
    order = [(0, 2, 1).index(ratio) for ratio in backbone]
    _must(order == sorted(order), key, list(backbone), "all 0, then all 2, then all 1")


def _check_sources(c: "ModelConfig") -> None:
    """Every layer with a ratio has a source before it, of its own ratio (spec 7.8)."""
    text, layers = "text_config.", range(c.num_hidden_layers)
    for key in (
        "kv_source_layer_ids",
        "index_source_layer_ids",
        "engram_layer_ids",
        "dspark_target_layer_ids",
    ):
        ids = getattr(c, key)
        _must(
            list(ids) == sorted(set(ids)), text + key, list(ids), "each layer once, in rising order"
        )
        _must(set(ids) <= set(layers), text + key, list(ids), f"layers below {c.num_hidden_layers}")
    kv, index = set(c.kv_source_layer_ids), set(c.index_source_layer_ids)
    _must(
        all(c.compress_ratios[i] for i in kv | index),
        text + "index_source_layer_ids",
        sorted(kv | index),
        "sources only where compress_ratios is not 0",
    )
    _must(
        kv <= index,
        text + "index_source_layer_ids",
        sorted(index),
        f"every KV source among them ({sorted(kv)}): new entries need a new selection",
    )
    _must(
        c.index_k_source_layer_ids == c.kv_source_layer_ids,
        text + "index_k_source_layer_ids",
        list(c.index_k_source_layer_ids),
        "the KV sources: an index key is projected from the entry its own layer compressed",
    )
    starts = [
        i
        for i in layers
        if c.compress_ratios[i] and (i == 0 or c.compress_ratios[i - 1] != c.compress_ratios[i])
    ]
    _must(
        set(starts) <= kv,
        text + "kv_source_layer_ids",
        sorted(kv),
        f"a source wherever the ratio changes (layers {starts})",
    )
    source = c.candidate_source_layer_id
    _must(
        source is None or source in index,
        text + "candidate_source_layer_id",
        source,
        f"null or one of index_source_layer_ids {sorted(index)}",
    )


def _check_engram(c: "ModelConfig") -> None:
    key = "text_config.engram_num_embeddings"
    _must(
        len(c.engram_num_embeddings) == len(c.engram_layer_ids),
        key,
        list(c.engram_num_embeddings),
        "one height for each of engram_layer_ids",
    )
    # A giant start would make the search for primes run for hours: the published one is 16 million.
    _must(
        c.engram_vocab_size <= 2**32,
        "text_config.engram_vocab_size",
        c.engram_vocab_size,
        f"at most {2**32}",
    )
    heights = tuple(sum(row) for row in engram.bucket_primes(c))
    _must(
        c.engram_num_embeddings == heights,
        key,
        list(c.engram_num_embeddings),
        f"{list(heights)}, the sums of the bucket primes that follow from engram_vocab_size",
    )
