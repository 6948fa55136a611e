"""Bytes of blocks and slots against figures made by hand (spec 15), and what fits a budget."""

from dataclasses import replace

import pytest

from deepinfer.cache.layout import (
    block_parts,
    blocks_for,
    pool_sizes,
    slot_parts,
    total_bytes,
    vector_bytes,
)
from deepinfer.config.model import ModelConfig
from deepinfer.config.words import Storage
from deepinfer.errors import ConfigError


def token_bytes(config: ModelConfig, storage: Storage) -> float:
    return total_bytes(block_parts(config, storage)) / 128


def test_bytes_of_a_context_token(released_config: ModelConfig) -> None:
    """A11: the pool holds far less context than the layout needs, and nobody sees why.

    Three sources keep an entry of 288 and a key of 68 bytes for two tokens, one for every token.
    """
    assert token_bytes(released_config, "packed") == 3 * (288 + 68) / 2 + (288 + 68) == 890
    fp8 = replace(released_config, use_fp4_sparse_kv=False)
    assert token_bytes(fp8, "packed") == 3 * (528 + 68) / 2 + (528 + 68) == 1490
    assert token_bytes(released_config, "bfloat16") == 3 * (1024 + 256) / 2 + 1024 + 256 == 3200
    assert token_bytes(released_config, "float32") == 6400


def test_vectors(released_config: ModelConfig) -> None:
    """Scales are forgotten, and every vector overwrites the next one's first bytes."""
    packed = vector_bytes(released_config, "packed")
    assert (packed.window, packed.entry, packed.index_key) == (528, 288, 68)


def test_bytes_of_a_slot(released_config: ModelConfig) -> None:
    """A11: slots are larger than planned and push the blocks out of memory."""
    packed = 43 * (128 + 8) * 528 + 3 * 8 * 2 * 512 * 4 + 8 * 4
    assert total_bytes(slot_parts(released_config, "packed")) == packed
    plain = 43 * (128 + 8) * 1024 + 3 * 8 * 2 * 512 * 4 + 8 * 4
    assert total_bytes(slot_parts(released_config, "bfloat16")) == plain


def test_parts_are_named(released_config: ModelConfig) -> None:
    """A11: the list at the start says one sum, so that nobody finds the part that is too large."""
    parts = [*block_parts(released_config, "packed"), *slot_parts(released_config, "packed")]
    assert [(part.name, part.num_layers, part.num_bytes) for part in parts] == [
        ("entries of ratio 2", 3, 64 * 288),
        ("index keys of ratio 2", 3, 64 * 68),
        ("entries of ratio 1", 1, 128 * 288),
        ("index keys of ratio 1", 1, 128 * 68),
        ("windows", 40, 136 * 528),
        ("windows of the draft blocks", 3, 136 * 528),
        ("pending of ratio 2", 3, 8 * 2 * 512 * 4),
        ("last token ids", 1, 32),
    ]


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (127, 1), (128, 1), (129, 2), (256, 2)]
)
def test_blocks_for(num_tokens: int, num_blocks: int) -> None:
    """The block of a sequence's last token is missing, or one is wasted on every full one."""
    assert blocks_for(num_tokens) == num_blocks


@pytest.mark.parametrize("gigabytes", [4, 16, 60])
def test_the_budget_is_used(released_config: ModelConfig, gigabytes: int) -> None:
    """A11: the reported capacity is not what the budget holds."""
    budget = gigabytes * 10**9
    sizes = pool_sizes(released_config, "packed", budget, 32, 100_000)
    used = sizes.num_blocks * sizes.block_bytes + sizes.num_slots * sizes.slot_bytes
    assert budget - sizes.block_bytes < used <= budget
    assert sizes.num_slots == 32
    assert sizes.num_tokens == sizes.num_blocks * 128
    assert sizes.block_bytes == 890 * 128


def test_exactly_enough(tiny_config: ModelConfig) -> None:
    """A start is refused although all fits, or accepted a byte too early."""
    block = total_bytes(block_parts(tiny_config, "float32"))
    slot = total_bytes(slot_parts(tiny_config, "float32"))
    need = 4 * slot + 3 * block
    assert pool_sizes(tiny_config, "float32", need, 4, 300).num_blocks == 3
    with pytest.raises(ConfigError, match=f"need {need} bytes") as caught:
        pool_sizes(tiny_config, "float32", need - 1, 4, 300)
    assert caught.value.where == "max_num_seqs"
    assert caught.value.hint == "lower it to 3"


def test_no_sequence_fits(tiny_config: ModelConfig) -> None:
    """The user is told to lower an option that cannot help, or to a value that does not fit."""
    block = total_bytes(block_parts(tiny_config, "float32"))
    slot = total_bytes(slot_parts(tiny_config, "float32"))
    with pytest.raises(ConfigError, match="lower it to 256 and max_num_seqs to 1") as caught:
        pool_sizes(tiny_config, "float32", slot + 3 * block - 1, 4, 300)
    assert caught.value.where == "max_model_len"
    assert pool_sizes(tiny_config, "float32", slot + 3 * block - 1, 1, 256).num_blocks == 2
    with pytest.raises(ConfigError, match=f"alone needs {slot + 3 * block} bytes") as caught:
        pool_sizes(tiny_config, "float32", slot, 4, 300)
    assert "lower" not in caught.value.hint
