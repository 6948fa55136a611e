"""Rotary base frequencies of a layer (spec 6). Pure arithmetic; no tensors."""

import math

import numpy as np
import numpy.typing as npt

from deepinfer.config.model import ModelConfig


def rope_frequencies(config: ModelConfig, ratio: int) -> npt.NDArray[np.float32]:
    """Radians per position of each rotary pair, [qk_rope_head_dim / 2] float32.

    Window layers and draft blocks (ratio 0) use rope_theta alone; every other layer uses
    compress_rope_theta with YaRN, at all lengths and without any magnitude factor.
    """
    dim = config.qk_rope_head_dim
    theta = config.compress_rope_theta if ratio else config.rope_theta
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    base: npt.NDArray[np.float32] = np.float32(1.0) / np.power(np.float32(theta), exponents)
    if not ratio:
        return base
    scaling = config.rope_scaling
    low, high = yarn_range(config)
    pair = np.arange(dim // 2, dtype=np.float32)
    ramp = np.clip((pair - np.float32(low)) / np.float32(high - low), 0.0, 1.0)
    stretched = base / np.float32(scaling.factor)
    mixed: npt.NDArray[np.float32] = stretched * ramp + base * (np.float32(1.0) - ramp)
    return mixed


def yarn_range(config: ModelConfig) -> tuple[float, float]:
    """First and last pair of the ramp between unchanged and stretched frequencies; (15, 25) as
    released.
    """
    scaling, dim = config.rope_scaling, config.qk_rope_head_dim

    def pair_turning(turns: float) -> float:
        """The (fractional) pair that makes `turns` full turns over the original context."""
        ratio = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return dim * math.log(ratio) / (2 * math.log(config.compress_rope_theta))

    low = max(math.floor(pair_turning(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_turning(scaling.beta_slow)), dim - 1)
    return (low, high) if low != high else (low, high + 1e-3)
