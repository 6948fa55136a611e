"""Engram's constants against the released ones (spec 9.3)."""

from math import isqrt
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.config.engram import bucket_offsets, bucket_primes, is_prime, multipliers
from deepinfer.config.model import ModelConfig

MULTIPLIERS = {
    1: [76632096046245, 4839876093313, 35959672319349, 73987337458391],
    14: [67716810739261, 51510806800915, 30921347202721, 82619226485591],
}
# The last three digits of 16000xxx, by layer.
PRIMES = (
    "057 079 081 097 121 129 133 183 189 207 211 253 277 289 307 321 "
    "339 381 393 399 403 409 447 463",
    "477 487 499 507 511 573 609 627 667 669 693 697 711 729 759 769 "
    "781 799 813 819 841 877 879 889",
)
HEIGHTS = (384_006_168, 384_016_682)


def test_released_primes(released_config: ModelConfig) -> None:
    """Guards against a search that starts elsewhere, or takes a prime twice."""
    expected = [[16_000_000 + int(digits) for digits in row.split()] for row in PRIMES]
    assert bucket_primes(released_config) == expected
    assert tuple(map(sum, expected)) == HEIGHTS == released_config.engram_num_embeddings


@pytest.mark.parametrize("layer_id", MULTIPLIERS)
def test_released_multipliers(released_config: ModelConfig, layer_id: int) -> None:
    """Guards against other random numbers: every row of the tables would be another."""
    assert multipliers(released_config, layer_id) == MULTIPLIERS[layer_id]


def test_no_overflow(released_config: ModelConfig) -> None:
    """Guards against a product of id and multiplier past int64."""
    largest_id = released_config.engram_compressed_vocab_size - 1
    for layer_id in range(40):
        for factor in multipliers(released_config, layer_id):
            assert factor % 2 == 1
            assert 0 < factor * largest_id < 2**63


def test_offsets(released_config: ModelConfig) -> None:
    """Guards against columns that overlap or leave rows unused."""
    assert bucket_offsets([3, 5, 7]) == [0, 3, 8]
    for row, height in zip(bucket_primes(released_config), HEIGHTS, strict=True):
        offsets = bucket_offsets(row)
        assert offsets[0] == 0
        assert offsets[-1] + row[-1] == height


def test_search_may_start_on_a_prime() -> None:
    """Guards against skipping engram_vocab_size itself when it is prime, as the goldens need."""
    config = SimpleNamespace(
        engram_layer_ids=(1, 4), engram_vocab_size=97, engram_n_heads=2, engram_max_ngram_size=4
    )
    rows = bucket_primes(config)  # type: ignore[arg-type]
    assert rows == [[97, 101, 103, 107, 109, 113], [127, 131, 137, 139, 149, 151]]
    assert [sum(row) for row in rows] == [630, 834]


@given(st.integers(min_value=-5, max_value=200_000))
def test_is_prime(n: int) -> None:
    """Guards against a wrong witness: compared with division."""
    assert is_prime(n) == (n > 1 and all(n % d for d in range(2, isqrt(n) + 1)))


# Composites that pass Miller-Rabin for the smallest witnesses, and primes near 2**31 and 2**61.
HARD = {
    3_215_031_751: False,
    3_825_123_056_546_413_051: False,
    341_550_071_728_321: False,
    2**31 - 1: True,
    2**61 - 1: True,
    (2**31 - 1) ** 2: False,
}


@pytest.mark.parametrize("n", HARD)
def test_hard_numbers(n: int) -> None:
    """Guards against a probable prime taken for one."""
    assert is_prime(n) == HARD[n]
