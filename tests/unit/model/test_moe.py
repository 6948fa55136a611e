"""Shares of the experts: together they add what all of them add."""

import pytest
import torch

from deepinfer.config.model import ModelConfig
from deepinfer.kernels.backends import load_kernels
from deepinfer.model.basic import Setup
from deepinfer.model.moe import MoE


def moe(config: ModelConfig, share: tuple[int, int] = (0, 1)) -> MoE:
    setup = Setup(config, load_kernels(), torch.float32, torch.float32, share)
    made = MoE(setup, config.n_routed_experts, config.num_experts_per_tok)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return made


@pytest.mark.parametrize("count", [2, 4])
def test_shares_add_up(tiny_config: ModelConfig, count: int) -> None:
    """A rank counts a row for an expert that is elsewhere, or for none that it has."""
    whole = moe(tiny_config)
    x = torch.randn(9, tiny_config.hidden_size, generator=torch.Generator().manual_seed(1))
    ids, weights = whole.gate(x)
    parts = []
    for number in range(count):
        part = moe(tiny_config, (number, count))
        held = tiny_config.n_routed_experts // count
        first = number * held
        assert part.experts.first == first
        for mine, every in zip(part.experts.parameters(), whole.experts.parameters(), strict=True):
            mine.data = every.data[first : first + held]
        parts.append(part.experts(x, ids, weights))
    torch.testing.assert_close(sum(parts), whole.experts(x, ids, weights), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("share", [1, 2])
def test_rows_that_have_no_expert_here(tiny_config: ModelConfig, share: int) -> None:
    """A row whose experts are all elsewhere stops the step, or gets what another row gets."""
    part = moe(tiny_config, (share, 4))
    x = torch.randn(3, tiny_config.hidden_size, generator=torch.Generator().manual_seed(1))
    held = tiny_config.n_routed_experts // 4
    for absent in (-1, share * held - 1, (share + 1) * held):
        ids = torch.full((3, tiny_config.num_experts_per_tok), absent)
        assert not part.experts(x, ids, torch.ones(ids.shape)).any()
