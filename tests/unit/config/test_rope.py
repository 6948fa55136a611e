"""Rotary frequencies against the released check values (spec 6) and an exact computation."""

from dataclasses import replace
from fractions import Fraction
from math import ceil, floor, log, pi
from pathlib import Path

import numpy as np
import pytest

from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.config.rope import rope_frequencies, yarn_range

GOLDEN = Path(__file__).parents[2] / "golden"
CHECK_VALUES = {
    14: 5.286856e-3,
    16: 2.265625e-3,
    20: 2.969778e-4,
    24: 1.953125e-5,
    31: 5.680529e-7,
}


def test_released_values(released_config: ModelConfig) -> None:
    """Guards against a ramp that starts elsewhere, or YaRN left out."""
    assert yarn_range(released_config) == (15, 25)
    for ratio in (1, 2):
        frequencies = rope_frequencies(released_config, ratio)
        for pair, expected in CHECK_VALUES.items():
            assert frequencies[pair] == pytest.approx(expected, rel=2e-6)


def test_window_layers_have_no_yarn(released_config: ModelConfig) -> None:
    """Guards against YaRN, or the compressed theta, in window layers and drafts."""
    frequencies = rope_frequencies(released_config, 0)
    expected = 10000.0 ** (-np.arange(32) / 32)
    assert frequencies.dtype == np.float32
    assert frequencies.shape == (32,)
    np.testing.assert_allclose(frequencies, expected, rtol=1e-6)


@pytest.mark.parametrize("original", [64, 1024, 65536, 2**20])
@pytest.mark.parametrize("dim", [8, 16, 64])
def test_formula(released_config: ModelConfig, original: int, dim: int) -> None:
    """Guards against lost clamps at short original lengths and small heads; in exact fractions."""
    scaling = replace(released_config.rope_scaling, original_max_position_embeddings=original)
    config = replace(released_config, rope_scaling=scaling, qk_rope_head_dim=dim)

    def turning(turns: float) -> float:
        return dim * log(original / (2 * pi * turns)) / (2 * log(160000))

    low, high = max(floor(turning(32)), 0), min(ceil(turning(1)), dim - 1)
    assert yarn_range(config) == (low, high if high != low else low + 1e-3)
    for pair, found in enumerate(rope_frequencies(config, 2)):
        base = 160000.0 ** (-2 * pair / dim)
        ramp = Fraction(pair - low, high - low) if high != low else Fraction(int(pair > low))
        ramp = min(max(ramp, Fraction(0)), Fraction(1))
        assert found == pytest.approx(base / 16 * float(ramp) + base * float(1 - ramp), rel=2e-6)


@pytest.mark.parametrize("variant", ["a", "b"])
def test_goldens_have_other_ranges(variant: str) -> None:
    """Guards against constants of the released size in the ramp."""
    config = read_model_config(GOLDEN / variant / "model")
    frequencies = rope_frequencies(config, 2)
    assert frequencies.shape == (config.qk_rope_head_dim // 2,)
    assert np.all(np.diff(frequencies) < 0)
