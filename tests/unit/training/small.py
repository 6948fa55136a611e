"""A network of the demo's structure that a test can train: built, filled and fed."""

from functools import cache

import torch

from deepinfer.config.model import ModelConfig, parse_model_config
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.model.network import Network
from training.config import demo_config, token_map_of
from training.model import make_network
from training.weights import Master

LENGTH = 96


@cache
def small_config() -> ModelConfig:
    return parse_model_config(demo_config(tiny=True))


@cache
def small_token_map() -> tuple[int, ...]:
    return tuple(token_map_of(small_config(), None))


def small_master(kernels: KernelSet) -> Master:
    """Fresh weights, the same for every call, and moved a little: none is an exact 0 or 1."""
    network = make_network(
        small_config(), list(small_token_map()), kernels, dtype=torch.float32, device="cpu"
    )
    master = Master(network)
    generator = torch.Generator().manual_seed(5)
    for values in master.values.values():
        values.add_(torch.randn(values.shape, generator=generator), alpha=0.05)
    master.refresh(quantise=False)
    return master


def small_network(kernels: KernelSet) -> Network:
    return small_master(kernels).network


def random_ids(num: int = 2, length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(3, small_config().vocab_size, (num, length), generator=generator)
