"""Penalties, bias and bans against plain Python."""

import math

import pytest
import torch

from deepinfer.sampling.logits import adjust_logits
from tests.unit.sampling.plans import Pairs, make_plan, random_logits

VOCAB_SIZE = 9
LARGEST = torch.finfo(torch.float32).max


def plain(
    logits: list[float],
    seen: dict[int, float],
    produced: dict[int, float],
    bias: dict[int, float],
    banned: dict[int, float],
    penalties: tuple[float, float, float],
) -> list[float]:
    """One row, from the description."""
    repetition, presence, frequency = penalties
    found = list(logits)
    for token in seen:
        found[token] = found[token] / repetition if found[token] > 0 else found[token] * repetition
    for token, count in produced.items():
        found[token] -= presence + count * frequency
    for token, more in bias.items():
        found[token] += more
    for token in banned:
        found[token] = -math.inf
    return found


@pytest.mark.parametrize("seed", range(4))
def test_equals_plain_python(seed: int) -> None:
    """A penalty counts the wrong tokens, has the wrong sign, or hits the neighbour's row."""
    logits = random_logits(seed, 3, VOCAB_SIZE)
    seen: Pairs = [{0: 1, 3: 1, 8: 1}, {}, {5: 1}]
    produced: Pairs = [{3: 2}, {}, {5: 1, 6: 7}]
    bias: Pairs = [{}, {4: 50, 2: -100}, {5: 1.5}]
    banned: Pairs = [{8: 0}, {4: 0}, {}]
    repetition, presence, frequency = [1.3, 1.0, 0.5], [0.5, 0.0, -2.0], [0.25, 0.0, 1.0]
    found = adjust_logits(
        logits,
        make_plan(
            3,
            seen=seen,
            produced=produced,
            bias=bias,
            banned=banned,
            repetition=repetition,
            presence=presence,
            frequency=frequency,
        ),
    )
    for row in range(3):
        penalties = (repetition[row], presence[row], frequency[row])
        lists = (seen[row], produced[row], bias[row], banned[row])
        expected = torch.tensor(plain(logits[row].tolist(), *lists, penalties))
        torch.testing.assert_close(found[row], expected, rtol=1e-6, atol=1e-6)


def test_nothing_asked_nothing_done() -> None:
    """A step without penalties copies the logits of the whole batch."""
    logits = random_logits(0, 3, VOCAB_SIZE)
    assert adjust_logits(logits, make_plan(3)) is logits


def test_input_is_left_alone() -> None:
    """G09: log-probabilities are taken from logits that were penalised in place."""
    logits = random_logits(1, 2, VOCAB_SIZE)
    before = logits.clone()
    adjust_logits(logits, make_plan(2, bias=[{1: 5.0}], banned=[{}, {2: 0}]))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("repetition", [1.2e-38, 1e-3, 1e3, 3.4e38])
def test_penalties_stay_finite(repetition: float) -> None:
    """G01: an extreme penalty makes an infinity, and the row is taken for a broken one."""
    logits = torch.tensor([[-2.0, -0.0, 0.0, 2.0, 3e38, -3e38, -torch.inf]])
    seen: Pairs = [dict.fromkeys(range(7), 1.0)]
    produced: Pairs = [dict.fromkeys(range(7), 9.0)]
    bias: Pairs = [dict.fromkeys(range(7), 100.0)]
    plan = make_plan(
        1, seen=seen, produced=produced, bias=bias, repetition=repetition, frequency=-2.0
    )
    found = adjust_logits(logits, plan)[0]
    assert found[:6].isfinite().all()
    # What the model itself rules out stays out.
    assert found[6] == -torch.inf


def test_a_ban_beats_a_bias() -> None:
    """G13: an end token that min_tokens holds back comes in by its bias."""
    plan = make_plan(1, bias=[{4: 100.0}], banned=[{4: 0}])
    assert adjust_logits(torch.zeros(1, VOCAB_SIZE), plan)[0, 4] == -torch.inf
