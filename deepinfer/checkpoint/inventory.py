"""The tensors that a checkpoint of a given configuration must hold (spec 13.1).

Tables of names, shapes and formats, expanded layer by layer. Knows nothing of files, and never
imports torch: the inventory of the released model (96,085 tensors) is checked before any weight is
touched.
"""

from collections.abc import Iterable, Iterator

from deepinfer.checkpoint.formats import (
    BF16,
    F32,
    FP4,
    FP8,
    FP8_ROWS,
    PLAIN,
    SCALE,
    Format,
    TensorSpec,
)
from deepinfer.config.layers import LayerPlan, plan_draft_layers, plan_layers
from deepinfer.config.model import ModelConfig

IMAGE_CHANNELS = 3

# A row of a table: name of the weight, shape in values (not in bytes), format.
Row = tuple[str, tuple[int, ...], Format]


def inventory(config: ModelConfig) -> dict[str, TensorSpec]:
    """Every tensor of the checkpoint by name: embedding, layers, head, draft module, vision.

    Released configuration: 96,085 tensors of 510,286,023,000 bytes.
    """
    specs: dict[str, TensorSpec] = {}
    for prefix, rows in _tables(config):
        for name, shape, fmt in rows:
            full = prefix + name
            specs[full] = TensorSpec(full, shape, fmt)
    return specs


def _tables(c: ModelConfig) -> Iterator[tuple[str, list[Row]]]:
    """(prefix, rows as stored) of every part of the model, in the order of a forward pass."""
    hidden = (c.hidden_size,)
    vocab = (c.vocab_size, c.hidden_size)
    yield "", [("embed.weight", vocab, BF16)]
    for plan in plan_layers(c):
        yield from _layer(f"layers.{plan.layer_id}.", c, plan, c.n_routed_experts)
        extra = (
            *(_compressor(c, plan.ratio) if plan.owns_kv else ()),
            *(_indexer(c) if plan.owns_index else ()),
            *(_index_key(c) if plan.owns_kv else ()),
            *(_engram(c, plan.engram_id) if plan.engram_id is not None else ()),
        )
        yield f"layers.{plan.layer_id}.", _stored(extra)
    yield "", [("norm.weight", hidden, PLAIN), ("head.weight", vocab, BF16)]
    for plan in plan_draft_layers(c):
        yield from _layer(f"mtp.{plan.layer_id}.", c, plan, c.dspark_n_routed_experts)
    if c.num_nextn_predict_layers:
        yield "mtp.0.", _stored(_draft_input(c))
        yield f"mtp.{c.num_nextn_predict_layers - 1}.", _stored(_draft_output(c))
    yield "vision.", _stored(_vision(c))
    for i in range(c.vision.num_hidden_layers):
        yield f"vision.blocks.{i}.", _stored(_vision_block(c))
    yield "", _stored(_aligner(c))


def _stored(rows: Iterable[Row]) -> list[Row]:
    """Rows as they lie in the file: packed where packed, each quantised weight with its scales."""
    stored: list[Row] = []
    for name, shape, fmt in rows:
        if fmt.block is None:
            stored.append((name, shape, fmt))
            continue
        (rows_each, columns_each), (num_rows, num_columns) = fmt.block, shape
        stored.append((name, (num_rows, num_columns // fmt.per_byte), fmt))
        scales = (-(-num_rows // rows_each), -(-num_columns // columns_each))
        stored.append((name.removesuffix(".weight") + ".scale", scales, SCALE))
    return stored


def _layer(
    prefix: str, c: ModelConfig, plan: LayerPlan, num_experts: int
) -> Iterator[tuple[str, list[Row]]]:
    """What every layer and draft block holds: attention, hyper-connections, experts (spec 7.1)."""
    yield prefix, _stored((*_attention(c), *_hyper_connections(c), *_router(c, num_experts)))
    yield prefix + "ffn.shared_experts.", _stored(_swiglu(c, FP8))
    expert = _stored(_swiglu(c, FP4))  # built once: the shapes are shared by thousands of tensors
    for expert_id in range(num_experts):
        yield f"{prefix}ffn.experts.{expert_id}.", expert


def _attention(c: ModelConfig) -> tuple[Row, ...]:
    queries = c.num_attention_heads * c.head_dim
    grouped = c.o_groups * c.o_lora_rank
    return (
        ("attn_norm.weight", (c.hidden_size,), PLAIN),
        ("attn.wq_a.weight", (c.q_lora_rank, c.hidden_size), FP8),
        ("attn.q_norm.weight", (c.q_lora_rank,), PLAIN),
        ("attn.wq_b.weight", (queries, c.q_lora_rank), FP8),
        ("attn.wkv.weight", (c.head_dim, c.hidden_size), FP8),
        ("attn.kv_norm.weight", (c.head_dim,), PLAIN),
        ("attn.attn_sink", (c.num_attention_heads,), F32),
        ("attn.wo_a.weight", (grouped, queries // c.o_groups), FP8),
        ("attn.wo_b.weight", (c.hidden_size, grouped), FP8),
    )


def _compressor(c: ModelConfig, ratio: int) -> tuple[Row, ...]:
    """Of a source of entries. At ratio 1 there is nothing to weigh, so no gate (spec 7.3)."""
    shape = (c.head_dim, c.hidden_size)
    gate: tuple[Row, ...] = (("attn.compressor.wgate.weight", shape, BF16),) if ratio > 1 else ()
    return (
        ("attn.compressor.wkv.weight", shape, BF16),
        *gate,
        ("attn.compressor.norm.weight", (c.head_dim,), PLAIN),
    )


def _indexer(c: ModelConfig) -> tuple[Row, ...]:
    queries = c.index_n_heads * c.index_head_dim
    return (
        ("attn.indexer.wq_b.weight", (queries, c.q_lora_rank), FP8),
        ("attn.indexer.weights_proj.weight", (c.index_n_heads, c.hidden_size), BF16),
    )


def _index_key(c: ModelConfig) -> tuple[Row, ...]:
    return (
        ("attn.indexer.wk.weight", (c.index_head_dim, c.head_dim), BF16),
        ("attn.indexer.k_norm.weight", (c.index_head_dim,), PLAIN),
    )


def _hyper_connections(c: ModelConfig) -> tuple[Row, ...]:
    """Of both sublayers; coefficients pre and post for each stream, comb for each pair (spec 4)."""
    num = c.hc_mult * (2 + c.hc_mult)
    return tuple(
        (f"hc_{sublayer}_{name}", shape, F32)
        for sublayer in ("attn", "ffn")
        for name, shape in (
            ("fn", (num, c.hc_mult * c.hidden_size)),
            ("base", (num,)),
            ("scale", (3,)),
        )
    )


def _router(c: ModelConfig, num_experts: int) -> tuple[Row, ...]:
    return (
        ("ffn_norm.weight", (c.hidden_size,), PLAIN),
        ("ffn.gate.weight", (num_experts, c.hidden_size), BF16),
        ("ffn.gate.bias", (num_experts,), F32),
        ("ffn.gate.bias_vl", (num_experts,), F32),
    )


def _swiglu(c: ModelConfig, fmt: Format) -> tuple[Row, ...]:
    return (
        ("w1.weight", (c.moe_intermediate_size, c.hidden_size), fmt),
        ("w2.weight", (c.hidden_size, c.moe_intermediate_size), fmt),
        ("w3.weight", (c.moe_intermediate_size, c.hidden_size), fmt),
    )


def _engram(c: ModelConfig, engram_id: int) -> tuple[Row, ...]:
    width = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
    height = c.engram_num_embeddings[engram_id]
    return (
        ("engram.embed.weight", (height, c.engram_head_dim), FP8_ROWS),
        ("engram.wkv.weight", ((c.hc_mult + 1) * c.hidden_size, width), FP8),
        ("engram.q_weight", (c.hc_mult, c.hidden_size), BF16),
        ("engram.k_weight", (c.hc_mult, c.hidden_size), BF16),
    )


def _draft_input(c: ModelConfig) -> tuple[Row, ...]:
    taps = len(c.dspark_target_layer_ids) * c.hidden_size
    return (
        ("main_proj.weight", (c.hidden_size, taps), FP8),
        ("main_norm.weight", (c.hidden_size,), PLAIN),
    )


def _draft_output(c: ModelConfig) -> tuple[Row, ...]:
    markov = (c.vocab_size, c.dspark_markov_rank)
    return (
        ("norm.weight", (c.hidden_size,), PLAIN),
        ("markov_head.embed.weight", markov, BF16),
        ("markov_head.head.weight", markov, BF16),
        ("confidence_head.proj.weight", (1, c.hidden_size + c.dspark_markov_rank), BF16),
    )


def _vision(c: ModelConfig) -> tuple[Row, ...]:
    v = c.vision
    return (
        ("patch_embed.proj.weight", (v.hidden_size, IMAGE_CHANNELS * v.patch_size**2), PLAIN),
        ("patch_embed.proj.bias", (v.hidden_size,), PLAIN),
        ("norm.weight", (v.hidden_size,), PLAIN),
    )


def _vision_block(c: ModelConfig) -> tuple[Row, ...]:
    size, inner = c.vision.hidden_size, c.vision.intermediate_size
    return (
        ("norm1.weight", (size,), PLAIN),
        ("attn.wqkv.weight", (3 * size, size), PLAIN),
        ("attn.wqkv.bias", (3 * size,), PLAIN),
        ("attn.wo.weight", (size, size), PLAIN),
        ("attn.wo.bias", (size,), PLAIN),
        ("norm2.weight", (size,), PLAIN),
        ("mlp.w1.weight", (2 * inner, size), PLAIN),
        ("mlp.w2.weight", (size, inner), PLAIN),
    )


def _aligner(c: ModelConfig) -> tuple[Row, ...]:
    unfolded = c.vision.hidden_size * c.vision.downsample_ratio**2
    hidden = (c.hidden_size,)
    return (
        ("aligner.w1.weight", (c.hidden_size, unfolded), PLAIN),
        ("aligner.w1.bias", hidden, PLAIN),
        ("aligner.w2.weight", (c.hidden_size, c.hidden_size), PLAIN),
        ("aligner.w2.bias", hidden, PLAIN),
        ("image_start", hidden, PLAIN),
        ("image_end", hidden, PLAIN),
        ("image_newline", hidden, PLAIN),
    )
