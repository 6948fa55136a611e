"""How many bytes a block and a slot take, and how many of each a budget holds (spec 7.10, 15).

Pure arithmetic on `ModelConfig`, for the engine and for planning ahead. Knows no tensor, and no
sequence.
"""

from dataclasses import dataclass

from deepinfer.config.layers import plan_layers
from deepinfer.config.model import ModelConfig
from deepinfer.config.words import Storage
from deepinfer.errors import ConfigError

# Tokens of a block, in every layer. A source of ratio r keeps 128 / r entries of them.
BLOCK_TOKENS = 128
# Rows that may be taken back after a step: what they overwrote in a ring must be out of sight.
SLACK_ROWS = 8

_VALUE_BYTES: dict[Storage, int] = {"bfloat16": 2, "float32": 4}
_PENDING_BYTES = 4  # float32 always: halves of an entry are added before they are rounded
_TOKEN_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class VectorBytes:
    """Bytes of one stored vector: a token's window KV, an entry, an index key."""

    window: int
    entry: int
    index_key: int


@dataclass(frozen=True, slots=True)
class Part:
    """Equal arrays in a block or a slot: `num_layers` of them, `num_bytes` each."""

    name: str
    num_layers: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """What is allocated. num_tokens: tokens that all blocks together hold."""

    num_blocks: int
    num_slots: int
    block_bytes: int
    slot_bytes: int
    num_tokens: int


def vector_bytes(config: ModelConfig, storage: Storage) -> VectorBytes:
    """Bytes of one vector of each sort, scales included (spec 14.2-14.4).

    Example, the released model packed: 528 (512 FP8 and 16 scales), 288 (512 FP4 and 32 scales),
    68 (128 FP4 and 4 scales).
    """
    head, key = config.head_dim, config.index_head_dim
    if storage != "packed":
        size = _VALUE_BYTES[storage]
        return VectorBytes(head * size, head * size, key * size)
    fp8 = head + head // 32
    fp4 = head // 2 + head // 16
    return VectorBytes(fp8, fp4 if config.use_fp4_sparse_kv else fp8, key // 2 + key // 32)


def block_parts(config: ModelConfig, storage: Storage) -> tuple[Part, ...]:
    """What a block is made of: entries and index keys of 128 tokens, for each ratio's sources."""
    vector = vector_bytes(config, storage)
    parts = []
    for ratio, num_sources in _sources_by_ratio(config).items():
        num_entries = BLOCK_TOKENS // ratio
        parts += [
            Part(f"entries of ratio {ratio}", num_sources, num_entries * vector.entry),
            Part(f"index keys of ratio {ratio}", num_sources, num_entries * vector.index_key),
        ]
    return tuple(parts)


def slot_parts(config: ModelConfig, storage: Storage) -> tuple[Part, ...]:
    """What a slot is made of: window rings, tokens that wait for their entry, the last token ids.

    A ring has SLACK_ROWS more rows than the window, so that rows which are taken back have not
    overwritten what is still visible.
    """
    ring_bytes = (config.sliding_window + SLACK_ROWS) * vector_bytes(config, storage).window
    pending_bytes = SLACK_ROWS * 2 * config.head_dim * _PENDING_BYTES  # a value and its score
    pending = tuple(
        Part(f"pending of ratio {ratio}", num_sources, pending_bytes)
        for ratio, num_sources in _sources_by_ratio(config).items()
        if ratio > 1
    )
    return (
        Part("windows", len(plan_layers(config)), ring_bytes),
        Part("windows of the draft blocks", config.num_nextn_predict_layers, ring_bytes),
        *pending,
        Part("last token ids", 1, SLACK_ROWS * _TOKEN_ID_BYTES),
    )


def total_bytes(parts: tuple[Part, ...]) -> int:
    """Bytes of one block, or of one slot."""
    return sum(part.num_layers * part.num_bytes for part in parts)


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold so many tokens: blocks_for(128) is 1, blocks_for(129) is 2."""
    return -(-num_tokens // BLOCK_TOKENS)


def pool_sizes(
    config: ModelConfig,
    storage: Storage,
    budget_bytes: int,
    max_num_seqs: int,
    max_model_len: int,
) -> PoolSizes:
    """Divide a budget: a slot for each of `max_num_seqs` sequences, blocks from the rest.

    Raises ConfigError, naming the option to lower and the exact need, unless the blocks hold at
    least one sequence of `max_model_len` tokens: that much must fit for every request to end.
    """
    assert max_num_seqs >= 1, "no sequence"
    assert max_model_len >= 1, "no token"
    block_bytes = total_bytes(block_parts(config, storage))
    slot_bytes = total_bytes(slot_parts(config, storage))
    longest_bytes = blocks_for(max_model_len) * block_bytes
    need_bytes = max_num_seqs * slot_bytes + longest_bytes
    if need_bytes > budget_bytes:
        # With fewer sequences, else with one shorter sequence, else not at all.
        num_slots = max(0, budget_bytes - longest_bytes) // slot_bytes
        num_tokens = max(0, budget_bytes - slot_bytes) // block_bytes * BLOCK_TOKENS
        more = f"free memory: one such sequence alone needs {slot_bytes + longest_bytes} bytes"
        shorter = f"lower it to {num_tokens} and max_num_seqs to 1, or {more}"
        raise ConfigError(
            f"{max_num_seqs} sequences, one of them with {max_model_len} tokens, need {need_bytes} "
            f"bytes of cache; {budget_bytes} are there",
            where="max_num_seqs" if num_slots else "max_model_len",
            hint=f"lower it to {num_slots}" if num_slots else shorter if num_tokens else more,
        )
    num_blocks = (budget_bytes - max_num_seqs * slot_bytes) // block_bytes
    return PoolSizes(
        num_blocks, max_num_seqs, block_bytes, slot_bytes, num_tokens=num_blocks * BLOCK_TOKENS
    )


def _sources_by_ratio(config: ModelConfig) -> dict[int, int]:
    """How many layers own entries of each ratio, in layer order: {2: 3, 1: 1} as released."""
    counts: dict[int, int] = {}
    for plan in plan_layers(config):
        if plan.owns_kv:
            counts[plan.ratio] = counts.get(plan.ratio, 0) + 1
    return counts
