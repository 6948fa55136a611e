"""Log-probabilities, ranks and the likeliest tokens, against plain Python."""

import json
import math

import numpy as np
import pytest
import torch

from deepinfer.sampling.logprobs import LOWEST_LOGPROB, join_scores, likeliest, score
from tests.unit.sampling.plans import random_logits


def plain_logprobs(logits: list[float]) -> list[float]:
    best = max(logits)
    total = math.log(math.fsum(math.exp(x - best) for x in logits))
    return [x - best - total for x in logits]


@pytest.mark.parametrize("num_top", [0, 1, 5, 40])
def test_equals_plain_python(num_top: int) -> None:
    """A log-probability of another token, or in another base, or an order that is not one."""
    logits = random_logits(0, 6, 40)
    token_ids = torch.tensor([0, 39, 7, 7, 20, 3])
    scores = score(logits, token_ids, num_top)
    for row, token_id in enumerate(token_ids.tolist()):
        expected = plain_logprobs(logits[row].tolist())
        assert scores.chosen[row] == pytest.approx(expected[token_id], abs=1e-5)
        assert scores.ranks[row] == 1 + sum(x > expected[token_id] for x in expected)
        ranked = sorted(range(40), key=lambda i, of=expected: (-of[i], i))[:num_top]
        assert scores.top_ids[row].tolist() == ranked
        np.testing.assert_allclose(scores.top_logprobs[row], [expected[i] for i in ranked], 0, 1e-5)
    assert scores.top_ids.dtype == scores.ranks.dtype == torch.int32
    assert scores.chosen.dtype == scores.top_logprobs.dtype == torch.float32


def test_ties_rank_by_id() -> None:
    """F06: which of equal tokens is reported depends on the machine."""
    logits = torch.zeros(2, 1000)
    logits[1, ::3] = 2.0
    assert likeliest(logits, 4).tolist() == [[0, 1, 2, 3], [0, 3, 6, 9]]
    assert score(logits, torch.tensor([5, 5]), 0).ranks.tolist() == [1, 335]
    assert likeliest(torch.tensor([[-0.0, 0.0, -0.0, 1.0]]), 4).tolist() == [[3, 0, 1, 2]]


def test_order_of_all_floats() -> None:
    """Logits as whole numbers are in another order than as floats."""
    values = [-torch.inf, -3e38, -7.0, -1.0, -1e-40, 0.0, 1e-45, 1e-3, 1.0, 2.0, 3e38]
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(0))
    shuffled = torch.tensor(values)[order]
    assert shuffled[likeliest(shuffled[None], len(values))[0]].tolist() == [
        float(x) for x in torch.tensor(values).flip(0)
    ]


def test_more_than_the_vocabulary() -> None:
    """A request for more tokens than there are ends in an index error."""
    assert score(torch.zeros(1, 4), torch.tensor([0]), 20).top_ids.tolist() == [[0, 1, 2, 3]]


def test_strict_json() -> None:
    """G07: minus infinity or NaN reaches a format that has neither."""
    logits = torch.full((3, 5), -torch.inf)
    logits[0, 2] = 1.0
    logits[1] = torch.tensor([3e38, -3e38, 0.0, 0.0, 0.0])
    logits[2] = torch.nan
    scores = score(logits, torch.tensor([1, 1, 1]), 5)
    assert scores.chosen.tolist() == [LOWEST_LOGPROB] * 3
    assert scores.top_logprobs[:2, 0].tolist() == [0.0, 0.0]
    assert scores.top_logprobs.min() == LOWEST_LOGPROB
    json.dumps([scores.chosen.tolist(), scores.top_logprobs.tolist()], allow_nan=False)


def test_parts_are_the_whole() -> None:
    """A long prompt's log-probabilities, taken a few rows at a time, differ or change places."""
    logits, token_ids = random_logits(3, 7, 30), torch.tensor([1, 2, 3, 4, 5, 6, 7])
    whole = score(logits, token_ids, 3)
    parts = [score(logits[a:b], token_ids[a:b], 3) for a, b in ((0, 3), (3, 4), (4, 7))]
    for found, expected in zip(join_scores(parts), whole, strict=True):
        np.testing.assert_array_equal(found, expected)
