"""The random numbers of sampling, against plain Python integers and against their distribution."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.kernels.reference.noise import (
    ACCEPT,
    DRAFT,
    RESIDUAL,
    TARGET,
    draft_key,
    row_key,
    uniform,
)
from deepinfer.kernels.reference.noise import gumbel_noise as noise_of_tokens

WORD = (1 << 64) - 1
EXTREME_WORDS = (0, 1, -1, 2**63 - 1, -(2**63), 0x9E3779B97F4A7C15 - 2**64)
# The first outputs of the published SplitMix64 generator with the seed 1234567.
PUBLISHED = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431)


def mix(x: int) -> int:
    """SplitMix64's finaliser on a word."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def plain_uniform(seed: int, choice: int, position: int, token: int) -> float:
    """What the module's description says, in whole numbers."""
    key = mix(mix(mix(seed & WORD) ^ choice) ^ position)
    bits = mix((key + (token + 1) * 0x9E3779B97F4A7C15) & WORD)
    return ((bits >> 12) + 0.5) * 2.0**-52


def words(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def gumbel_noise(seed: Tensor, choice: Tensor, position: Tensor, vocab_size: int) -> Tensor:
    """Noise of the target's stream for all tokens of each row, [T, vocab_size]."""
    return noise_of_tokens(row_key(seed, choice, position)[:, None], torch.arange(vocab_size))


def noise_of(seed: int, choice: int, position: int, vocab_size: int) -> Tensor:
    return gumbel_noise(words(seed), words(choice), words(position), vocab_size)[0]


def test_plain_generator_is_the_published_one() -> None:
    """The integers that judge the noise are wrong themselves."""
    outputs = [mix((1234567 + i * 0x9E3779B97F4A7C15) & WORD) for i in range(1, 5)]
    assert tuple(outputs) == PUBLISHED


@pytest.mark.parametrize("seed", [*EXTREME_WORDS, 42])
@pytest.mark.parametrize(("choice", "position"), [(0, 0), (0, 7), (3, 7), (1, 2**20)])
def test_equals_plain_integers(seed: int, choice: int, position: int) -> None:
    """A signed shift or product leaks into a 64-bit word: the same seed, another text elsewhere."""
    uniforms = [plain_uniform(seed, choice, position, token) for token in range(50)]
    expected = torch.tensor([-math.log(-math.log(u)) for u in uniforms], dtype=torch.float64)
    found = noise_of(seed, choice, position, 50)
    assert found.dtype == torch.float64
    # The logarithms of torch and of Python may differ in the last bits, the uniforms may not.
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_uniforms_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The uniforms are close and not the same: a tie falls the other way on another machine."""
    monkeypatch.setattr(torch, "log", lambda x: x)  # -(-u): the uniform itself
    for seed in EXTREME_WORDS:
        expected = [plain_uniform(seed, 1, 9, token) for token in range(200)]
        assert noise_of(seed, 1, 9, 200).tolist() == expected


def test_rows_do_not_see_each_other() -> None:
    """F01, F02: a neighbour, or the place in the batch, changes a seeded result."""
    rows = [
        (seed, choice, position) for seed in (0, -5) for choice in (0, 1) for position in (3, 9)
    ]
    together = gumbel_noise(*(words(*column) for column in zip(*rows, strict=True)), 64)
    backwards = gumbel_noise(*(words(*column) for column in zip(*rows[::-1], strict=True)), 64)
    for place, row in enumerate(rows):
        alone = noise_of(*row, 64)
        assert torch.equal(together[place], alone)
        assert torch.equal(backwards[len(rows) - 1 - place], alone)


def test_a_larger_vocabulary_adds_and_changes_nothing() -> None:
    """Padding the vocabulary changes the noise of the tokens that were there."""
    assert torch.equal(noise_of(3, 0, 5, 1000)[:400], noise_of(3, 0, 5, 400))


@pytest.mark.parametrize("seed", EXTREME_WORDS)
def test_finite_for_extreme_words(seed: int) -> None:
    """A uniform of 0 or 1 makes an infinity, and the same token wins whatever its probability."""
    positions = torch.arange(100)
    same = torch.full_like(positions, seed)
    assert gumbel_noise(same, same, positions, 1000).isfinite().all()


def test_finite_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rarest words of all, 0 and all ones, make an infinity once in 2**52 draws."""
    for bits in (0, -1):
        with monkeypatch.context() as patch:
            patch.setattr(
                "deepinfer.kernels.reference.noise._mix",
                lambda x, bits=bits: torch.full_like(x, bits),
            )
            assert noise_of(0, 0, 0, 3).isfinite().all()


def test_distribution() -> None:
    """The noise is not Gumbel(0, 1): every text is a little too sure or too varied."""
    positions = torch.arange(1000)
    zeros = torch.zeros_like(positions)
    noise = gumbel_noise(zeros + 11, zeros, positions, 1000).flatten()
    # Half a million draws and more: five standard errors.
    error = 5 / math.sqrt(noise.numel())
    assert abs(noise.mean() - 0.5772156649) < error * math.pi / math.sqrt(6)
    assert abs(noise.var() - math.pi**2 / 6) < error * math.sqrt(4.4) * math.pi**2 / 6
    for x in (-1.0, 0.0, 1.0, 3.0):
        below = math.exp(-math.exp(-x))
        assert abs((noise <= x).double().mean() - below) < error * math.sqrt(below * (1 - below))


@pytest.mark.parametrize("place", ["seed", "choice", "position", "token"])
def test_neighbours_are_not_related(place: str) -> None:
    """F03: seeds 1 and 2, or two choices or positions, give texts that follow each other."""
    vocab_size = 100_000
    first = noise_of(1, 0, 5, vocab_size)
    if place == "token":
        first, second = first[:-1], first[1:]
    else:
        second = noise_of(
            1 + (place == "seed"), place == "choice", 5 + (place == "position"), vocab_size
        )
    assert not torch.equal(first, second)
    correlation = torch.corrcoef(torch.stack((first, second)))[0, 1]
    assert abs(correlation) < 5 / math.sqrt(vocab_size)


def plain_key(*words: int) -> int:
    """Words folded in one after another."""
    key = mix(words[0] & WORD)
    for word in words[1:]:
        key = mix(key ^ word)
    return key


@pytest.mark.parametrize("seed", EXTREME_WORDS)
def test_keys_equal_plain_integers(seed: int) -> None:
    """A stream has other numbers elsewhere, or the target's change now that there are streams."""
    place = words(seed), words(3), words(2**20)
    for stream in (DRAFT, ACCEPT, RESIDUAL):
        key = row_key(*place, stream=stream)
        assert key.item() & WORD == plain_key(seed, 3, 2**20, stream)
        bits = mix((plain_key(seed, 3, 2**20, stream) + 0x9E3779B97F4A7C15) & WORD)
        assert uniform(key).tolist() == [((bits >> 12) + 0.5) * 2.0**-52]
    assert row_key(*place).item() & WORD == plain_key(seed, 3, 2**20)
    assert draft_key(*place, words(99)).item() & WORD == plain_key(seed, 3, 2**20, DRAFT, 99)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", EXTREME_WORDS)
def test_keys_of_arrays_are_those_of_tensors(seed: int) -> None:
    """A key made on the host wraps, or shifts its sign, in another way: tokens are others."""
    place = words(seed, 1, -1), words(3, 0, 2**31 - 1), words(2**20, 0, 1)
    arrays = tuple(one.numpy() for one in place)
    for stream in (TARGET, DRAFT, ACCEPT, RESIDUAL):
        key = row_key(*arrays, stream=stream)
        assert key.dtype == np.int64
        assert key.tolist() == row_key(*place, stream=stream).tolist()


def test_streams_are_not_related() -> None:
    """A draft knows whether it will be accepted, or what comes if not: tokens are biased."""
    place, vocab_size = (words(1), words(0), words(5)), 100_000
    keys = [row_key(*place, stream=stream) for stream in (TARGET, DRAFT, ACCEPT, RESIDUAL)]
    keys += [draft_key(*place, words(anchor)) for anchor in (1, 2, 3, 4)]
    noise = noise_of_tokens(torch.cat(keys)[:, None], torch.arange(vocab_size))
    related = torch.corrcoef(noise) - torch.eye(len(keys))
    assert related.abs().max() < 5 / math.sqrt(vocab_size)


def test_uniforms_of_positions_are_uniform() -> None:
    """Drafts are accepted too often or too rarely, or in runs."""
    count = 200_000
    positions = torch.arange(count)
    zeros = torch.zeros_like(positions)
    found = uniform(row_key(zeros, zeros, positions, stream=ACCEPT))
    assert abs(found.mean() - 0.5) < 5 * math.sqrt(1 / 12 / count)
    assert abs(found.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / count)
    neighbours = torch.corrcoef(torch.stack((found[1:], found[:-1])))[0, 1]
    assert abs(neighbours) < 5 / math.sqrt(count)
    assert found.min() > 0
    assert found.max() < 1
