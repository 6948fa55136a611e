"""RMS norm and rotary embedding against one row at a time in float64."""

import math

import numpy as np
import pytest
import torch

from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.values import Target, rotary

KERNELS = load_kernels()


def normed(row: list[float], gain: list[float], eps: float) -> list[float]:
    mean = sum(x * x for x in row) / len(row)
    return [x / math.sqrt(mean + eps) * g for x, g in zip(row, gain, strict=True)]


def turned(vector: list[float], position: int, frequencies: list[float]) -> list[float]:
    """Each trailing pair as a complex number, times e^(i angle)."""
    result = list(vector)
    first = len(vector) - 2 * len(frequencies)
    for pair, frequency in enumerate(frequencies):
        c = first + 2 * pair
        angle = position * frequency
        z = complex(vector[c], vector[c + 1]) * complex(math.cos(angle), math.sin(angle))
        result[c], result[c + 1] = z.real, z.imag
    return result


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e6])
def test_rms_norm(size):
    """Guards the mean, the gain and an epsilon that must not drown small rows."""
    torch.manual_seed(0)
    x, gain = torch.randn(5, 12) * size, torch.randn(12)
    expected = [normed(row, gain.tolist(), 1e-20) for row in x.tolist()]
    actual = KERNELS.rms_norm(x, gain, 1e-20)
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_rms_norm_of_zeros():
    """Guards against 0 / 0: the released epsilon, 1e-20, is all that a zero row has."""
    assert torch.equal(KERNELS.rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-20), torch.zeros(2, 8))


def test_rms_norm_rounds_once():
    """Guards the place of the cast: the gain is applied before rounding to bf16, not after."""
    torch.manual_seed(0)
    x, gain = torch.randn(64, 32).bfloat16(), torch.randn(32).bfloat16()
    expected = KERNELS.rms_norm(x.float(), gain.float(), 1e-20).bfloat16()
    twice = (KERNELS.rms_norm(x.float(), torch.ones(32), 1e-20).bfloat16() * gain).float()
    actual = KERNELS.rms_norm(x, gain, 1e-20)
    assert actual.dtype == torch.bfloat16
    assert torch.equal(actual, expected)
    assert not torch.equal(actual.float(), twice)


@pytest.mark.parametrize("shape", [(6, 10), (6, 3, 10)], ids=["keys", "heads"])
def test_rotate(shape):
    """Guards pairing, direction, and which channels are left alone."""
    torch.manual_seed(1)
    x, frequencies = torch.randn(shape), torch.tensor([1.0, 0.1, 0.003])
    positions = torch.tensor([0, 1, 2, 7, 100, 1000])
    actual = KERNELS.rotate(x, *rotary(positions, frequencies))
    expected = [
        [turned(vector, int(position), frequencies.tolist()) for vector in row]
        for position, row in zip(positions, x.view(6, -1, 10).tolist(), strict=True)
    ]
    torch.testing.assert_close(actual, torch.tensor(expected).view(shape), rtol=0, atol=2e-5)
    assert torch.equal(actual[..., :4], x[..., :4])
    assert torch.equal(actual[0], x[0])


def test_rotate_back():
    """Guards the conjugate: what is turned and turned back is itself."""
    torch.manual_seed(2)
    x, frequencies = torch.randn(9, 2, 8), torch.tensor([1.0, 0.2, 0.04])
    angles = rotary(torch.arange(9) * 37, frequencies)
    back = KERNELS.rotate(KERNELS.rotate(x, *angles), *angles.inverse())
    torch.testing.assert_close(back, x, rtol=0, atol=1e-6)


def test_scores_depend_on_distance_alone():
    """Guards what rotation is for: moving query and key together changes nothing."""
    torch.manual_seed(3)
    query, key = torch.randn(8), torch.randn(8)
    frequencies = torch.tensor([1.0, 0.3, 0.09, 0.027])

    def score(query_position: int, key_position: int) -> float:
        angles = rotary(torch.tensor([query_position, key_position]), frequencies)
        turned_query, turned_key = KERNELS.rotate(torch.stack((query, key)), *angles)
        return float(turned_query @ turned_key)

    assert score(5, 2) == pytest.approx(score(105, 102), abs=1e-4)
    assert abs(score(5, 2) - score(5, 3)) > 1e-2


def test_angles_are_float32_products():
    """Guards long contexts: an angle is a float32 position times a float32 frequency."""
    frequencies = torch.tensor([1.0, 5.680529e-7])
    cos, sin = rotary(torch.tensor([1_048_575]), frequencies)
    angles = np.float32(1_048_575) * frequencies.numpy()
    assert angles.dtype == np.float32
    np.testing.assert_allclose(cos[0].numpy(), np.cos(angles.astype(np.float64)), atol=1e-6)
    np.testing.assert_allclose(sin[0].numpy(), np.sin(angles.astype(np.float64)), atol=1e-6)


def test_window_rows_into_a_store():
    """Guards rows that are to be stored at once: the same numbers, at their places, in the store's
    own dtype."""
    generator = torch.Generator().manual_seed(5)
    x, weight = (torch.randn(*shape, generator=generator) for shape in ((3, 64), (64,)))
    angles = rotary(torch.tensor([4, 0, 9]), torch.rand(8, generator=generator))
    store = torch.full((7, 64), 5.0, dtype=torch.bfloat16)
    found = KERNELS.window_rows(x, weight, 1e-20, angles, Target(store, torch.tensor([6, 0, 3])))
    rows = KERNELS.window_rows(x, weight, 1e-20, angles)
    assert found is store
    assert store[[6, 0, 3]].equal(rows.bfloat16())
    assert (store[[1, 2, 4, 5]] == 5.0).all()
