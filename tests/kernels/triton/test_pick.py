"""Drawn tokens against the reference: the same, since only the last bits of a noise may differ."""

import math

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.reference.noise import gumbel_noise, row_key
from deepinfer.kernels.reference.pick import pick as reference
from deepinfer.kernels.triton.pick import pick

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

VOCAB_SIZES = (1, 500, 1021, 2500)  # the last: more than one program
RELEASED = 129_280


def some(generator: torch.Generator, num_rows: int, vocab_size: int) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=generator, dtype=torch.float64) * 3


def keys(generator: torch.Generator, num_rows: int) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator)


def key_of(bits: int, token: int) -> int:
    """The key whose random word for this token is `bits`: SplitMix64 backwards."""
    word = bits
    for shift, multiplier in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        half = word ^ (word >> shift)
        word = word ^ (half >> shift)  # shifts of 22 bits and more: two steps undo one
        word = word * pow(multiplier, -1, 2**64) % 2**64
    word = (word - (token + 1) * 0x9E3779B97F4A7C15) % 2**64
    return word - 2**64 if word >> 63 else word


def check(kept: Tensor, key: Tensor, device: str) -> Tensor:
    """The drawn tokens, on the host: those of the reference there and on the device."""
    before = kept.clone()
    found = pick(kept.to(device), key.to(device))
    assert found.dtype == torch.int64
    assert torch.equal(found, reference(kept.to(device), key.to(device)))
    assert torch.equal(found.cpu(), reference(kept, key))
    assert torch.equal(kept, before)
    return found.cpu()


@pytest.mark.parametrize("num_rows", [0, 1, 3, 17])
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_all_take_part(generator, device, num_rows, vocab_size):
    """Guards the noise and the choice, at any size: sharp rows, flat ones and very large values."""
    spread = torch.tensor([3.0, 0.0, 1e-3, 1e200]).double().repeat(5)[:num_rows, None]
    kept = torch.randn(num_rows, vocab_size, generator=generator, dtype=torch.float64) * spread
    check(kept, keys(generator, num_rows), device)


@pytest.mark.parametrize("share", [0.0, 0.002, 0.05, 0.5])
@pytest.mark.parametrize("vocab_size", [500, 2500])
def test_some_take_part(generator, device, share, vocab_size):
    """Guards tiles that are skipped: in which nothing takes part, or nothing can win."""
    kept = some(generator, 17, vocab_size)
    kept[torch.rand(kept.shape, generator=generator) >= share] = -torch.inf
    kept[torch.arange(17), torch.randint(vocab_size, (17,), generator=generator)] = 0.0
    check(kept, keys(generator, 17), device)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_one_takes_part(generator, device, vocab_size):
    """Guards the ends of rows, programs and tiles: a token there is never found."""
    places = torch.tensor([0, 1, 31, 63, 64, 255, 256, 2047, 2048, 2303, 2304])
    places = torch.cat((places[places < vocab_size], torch.tensor([vocab_size - 1])))
    kept = torch.full((len(places), vocab_size), -torch.inf, dtype=torch.float64)
    kept[torch.arange(len(places)), places] = -1e4
    assert torch.equal(check(kept, keys(generator, len(places)), device), places)


def test_extreme_keys(generator, device):
    """Guards words of 64 bits: a sign that comes along in a shift, a product that saturates."""
    key = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 0x9E3779B97F4A7C15 - 2**64])
    check(torch.zeros(len(key), 1021, dtype=torch.float64), key, device)
    check(some(generator, len(key), 1021), key, device)


def test_extreme_noise(generator, device):
    """Guards what is taken for the largest noise: a rare token is passed over although it wins."""
    ones = 2**64 - 1
    rare = [ones, ones - 2**12, ones - 2**32, ones - 2**33, ones - 2**34, ones - 2**40, 2**63, 0]
    key = torch.tensor([key_of(bits, 700) for bits in rare])
    noise = gumbel_noise(key, torch.tensor(700))
    assert noise[0] > 36 and noise[-1] < -3
    kept = torch.full((len(rare), 1021), -0.1, dtype=torch.float64)
    # The row's best beside this token, and what it takes to win against it by a hair.
    kept[:, 700] = -torch.inf
    others = reference(kept, key)
    best = (kept[0, 0] + gumbel_noise(key, others)) - noise
    for hair, is_best in ((1e-9, True), (-1e-9, False)):
        kept[:, 700] = best + hair
        found = check(kept, key, device)
        assert torch.equal(found, torch.full_like(others, 700) if is_best else others)


def test_equal_values_beyond_noise(generator, device):
    """Guards ties: where values are so large that noise is rounded away, the lowest id wins."""
    kept = torch.full((5, 2500), 1e300, dtype=torch.float64)
    kept[1, :70] = 1.0
    kept[2, :2100] = -torch.inf
    kept[3, :2499] = 1e299
    kept[4, ::2] = torch.inf
    kept[4, 0] = 0.0
    found = check(kept, keys(generator, 5), device)
    assert found.tolist() == [0, 70, 2100, 2499, 2]


def test_nothing_takes_part(generator, device):
    """Guards what a row of no meaning gives: a token that exists, and neighbours as they are."""
    kept = some(generator, 6, 1021)
    key = keys(generator, 6)
    whole = check(kept, key, device)
    kept[1] = -torch.inf
    kept[3] = torch.nan
    kept[4, 7] = torch.nan
    found = pick(kept.to(device), key.to(device)).cpu()
    assert (found >= 0).all() and (found < 1021).all()
    assert torch.equal(found[[0, 2, 5]], whole[[0, 2, 5]])


def test_views(generator, device):
    """Guards against strides that are taken for granted."""
    wide, key = some(generator, 12, 2000).to(device), keys(generator, 12).to(device)
    kept = wide[::2, 3:1003]
    assert torch.equal(pick(kept, key[::2]), reference(kept.contiguous(), key[::2].contiguous()))
    turned = wide.t()[:9]
    assert torch.equal(pick(turned, key[:9]), reference(turned.contiguous(), key[:9]))


def test_batches(generator, device, released):
    """Guards batch invariance: a row's token is the same alone, in pairs and with all others."""
    vocab_size = RELEASED if released else 2500
    kept, key = some(generator, 11, vocab_size).to(device), keys(generator, 11).to(device)
    whole = pick(kept, key)
    for size in (1, 2):
        for first in range(0, 12 - size, 3):
            part = slice(first, first + size)
            assert torch.equal(pick(kept[part], key[part]), whole[part])


def test_released(generator, device, released, needs_gpu):
    """Guards the released vocabulary, whole and filtered."""
    kept, key = some(generator, 256, RELEASED), keys(generator, 256)
    check(kept, key, device)
    check(kept * 0.0, key, device)
    for count in (200, 20_000):
        least = kept.topk(count).values[:, -1:]
        check(kept.masked_fill(kept < least, -torch.inf), key, device)


def test_frequencies(device, released):
    """Guards the distribution: chi-square of 4 degrees of freedom, below its 1e-6 quantile."""
    count = 20_000 if released else 500
    chances = torch.tensor([0.4, 0.3, 0.2, 0.08, 0.02], dtype=torch.float64)
    words = torch.arange(count)
    key = row_key(words * 0 + 5, words * 0, words)
    found = pick(chances.log().expand(count, -1).to(device), key.to(device)).cpu()
    expected = chances * count
    distance = (((found.bincount(minlength=5) - expected) ** 2) / expected).sum().item()
    print(f"chi-square {distance:.2f}")
    # The chance of more than x is (1 + x / 2) exp(-x / 2): 1e-6 at 33.4.
    assert (1 + distance / 2) * math.exp(-distance / 2) > 1e-6
