"""The toys are valid models of the size that the tables name."""

import pytest

from deepinfer.bench.toys import TOYS, toy_config
from deepinfer.config.layers import Kind, plan_layers
from deepinfer.errors import ConfigError
from deepinfer.kernels.backends import load_kernels
from deepinfer.model.basic import Setup
from deepinfer.model.network import Network
from tests.unit.bench.small import CONFIG


@pytest.mark.parametrize(("name", "millions"), [("engine", 637.9), ("peer", 238.7)])
def test_size(name: str, millions: float) -> None:
    """A toy changes under the figures that were published for it."""
    import torch

    config = toy_config(name)
    with torch.device("meta"):
        setup = Setup(config, load_kernels(), torch.bfloat16, None)
        network = Network(setup, [0] * config.vocab_size)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert round(count / 1e6, 1) == millions


@pytest.mark.parametrize("name", TOYS)
def test_every_mechanism_is_there(name: str) -> None:
    """A toy without candidates, Engram or a kind of layer is faster than the model it stands
    for."""
    plans = plan_layers(toy_config(name))
    assert {plan.kind for plan in plans} >= {Kind.WINDOW, Kind.FULL, Kind.REUSE, Kind.REINDEX}
    assert {plan.ratio for plan in plans} == {0, 1, 2}
    assert any(plan.makes_candidates for plan in plans)
    assert any(plan.candidate_source is not None for plan in plans)
    assert sum(plan.engram_id is not None for plan in plans) == len(CONFIG.engram_layer_ids)


def test_unknown() -> None:
    """O05: a wrong name ends in a KeyError."""
    with pytest.raises(ConfigError) as refused:
        toy_config("huge")
    assert "engine, peer" in refused.value.hint
