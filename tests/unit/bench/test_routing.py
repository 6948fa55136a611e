"""Which experts `bench rank` visits, and how often."""

import math

import pytest
import torch

from deepinfer.bench import command
from deepinfer.bench.gpu.routing import busiest, choices
from deepinfer.bench.steps import Case
from deepinfer.config.engine import EngineArgs
from deepinfer.errors import ConfigError


@pytest.mark.parametrize(("num_rows", "num_experts"), [(1, 6), (7, 48), (32, 48), (128, 96)])
def test_even(num_rows: int, num_experts: int) -> None:
    """Some experts get more rows than others, so that a step is timed that no aim is for."""
    ids = choices(num_rows, 6, num_experts)
    counts = torch.bincount(ids.flatten(), minlength=num_experts)
    assert counts.max() - counts.min() <= 1
    assert (ids.diff(dim=-1) > 0).all()


def test_skewed() -> None:
    """A skew is none, turns round, or a row gets an expert twice, which no router does."""
    ids = choices(4096, 6, 48, 1.0)
    counts = torch.bincount(ids.flatten(), minlength=48).float()
    assert (ids.diff(dim=-1) > 0).all()
    assert torch.equal(ids, choices(4096, 6, 48, 1.0))
    first, rest = counts[:8].mean(), counts[40:].mean()
    assert first > 4 * rest > 0
    assert busiest(ids, 48) == pytest.approx(counts.max() / counts.mean())
    assert busiest(choices(64, 6, 48), 48) == 1
    steeper = torch.bincount(choices(4096, 6, 48, 2.0).flatten(), minlength=48)
    assert steeper[-8:].sum() < counts[-8:].sum()


def test_all_experts_of_a_small_rank() -> None:
    """One rank of 64 has six experts: every row needs all of them."""
    assert choices(3, 6, 6, 1.5).tolist() == [[0, 1, 2, 3, 4, 5]] * 3


@pytest.mark.parametrize("skew", [-0.1, 9.0, math.nan, math.inf])
def test_refused(skew: float) -> None:
    """Weights overflow or turn round, after the weights of a rank have been made."""
    with pytest.raises(ConfigError, match="--skew"):
        command.rank(8, Case(1, 0, 1), None, skew, EngineArgs(), as_json=False, show=print)
