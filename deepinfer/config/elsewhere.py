"""Options of other programs that mean nothing, or nothing else, here: what to say about each."""

# Scripts for DeepInfer 0.1 or vLLM pass them.
ELSEWHERE = {
    "tensor_parallel_size": "one device holds everything",
    "pipeline_parallel_size": "one device holds everything",
    "quantization": "the checkpoint says how its weights are stored; see act_quant",
    "swap_space": "a preempted request is computed again, never swapped",
    "tokenizer": "the tokenizer lies in the model's folder",
    "tokenizer_revision": "the tokenizer lies in the model's folder",
    "trust_remote_code": "no code is loaded from a model",
    "revision": "name a folder that holds the revision",
    "served_model_name": "it belongs to a server",
    "disable_log_stats": "there are no statistics to log",
    "engram_parallel_size": "one device holds everything",
    "engine_rank": "there is one engine",
    "engine_group_rank": "there is one engine",
    "engine_type": "one engine does prompts and generation",
    "chunked_prefill": "prompts are always run in chunks; see max_num_batched_tokens",
    "stop_preempted_request": "a preempted request is always computed again",
    "tokens_per_block": "a block has 128 tokens",
    "lookahead_tokens": "it has no use here",
    "ignore_len": "it has no use here",
    "offline_inference": "it has no use here",
    "decode_sequence": "results have both text and token ids",
}
