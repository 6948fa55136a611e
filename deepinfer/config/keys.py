"""The keys of config.json as tables: name, what it must be, and what stands for it when it is
absent.

Facts of the released layout (spec 2). Reading and combining them is `model.py`'s business.
"""

from deepinfer.config import checks
from deepinfer.config.checks import Key

ARCHITECTURE = "DeepseekV41ForCausalLM"
MODEL_TYPE = "deepseek_v41"

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
    Key("all_eos_token_ids", _LAYER_IDS, ()),
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
