"""Builds the network on a device from a checkpoint: which tensor fills which parameter.

The one place that knows both the names of the released format and those of the modules.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from deepinfer.checkpoint.engram_table import open_engram_table
from deepinfer.checkpoint.load import Checkpoint
from deepinfer.config.model import ModelConfig
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.kernels.reference import quant
from deepinfer.kernels.values import randomise
from deepinfer.model.basic import HyperMix, Linear, RMSNorm, Setup, products
from deepinfer.model.moe import Experts
from deepinfer.model.network import Network

_ROUNDED_ROWS = 1024  # of a weight at a time, in float32


def build_network(
    config: ModelConfig,
    checkpoint: Checkpoint,
    token_map: list[int],
    kernels: KernelSet,
    *,
    dtype: torch.dtype = torch.bfloat16,
    weight_dtype: torch.dtype | None = None,
    expert_shard: tuple[int, int] = (0, 1),
    device: str = "cpu",
) -> Network:
    """A Network with every parameter loaded, in evaluation mode.

    weight_dtype None keeps each weight as it is computed with: no op of the reference backend
    computes from FP8 or FP4 directly, and bfloat16 and float32 both hold their values exactly.
    """
    setup = Setup(config, kernels, dtype, weight_dtype, expert_shard)
    network = _empty_network(setup, token_map, device)
    with torch.no_grad():
        experts = {
            name: module for name, module in network.named_modules() if isinstance(module, Experts)
        }
        released = partial(
            released_name,
            num_draft_blocks=config.num_nextn_predict_layers,
            first_layer=network.plans[0].layer_id,
        )
        for name, parameter in network.named_parameters():
            if name.rpartition(".")[0] not in experts:
                parameter.copy_(checkpoint.decoded(released(name)))
        for name, module in experts.items():
            prefix, weights = released(name), dict(module.named_parameters())
            for place in range(module.num_experts):
                number = module.first + place
                kernels.fill_expert(weights, place, checkpoint, f"{prefix}.{number}.")
    for plan, layer in zip(network.plans, network.layers, strict=True):
        if plan.engram_id is not None:
            layer.engram.table = open_engram_table(checkpoint.index, plan.layer_id)
    _pack(network)
    return network.eval()


def network_bytes(
    config: ModelConfig,
    kernels: KernelSet,
    *,
    dtype: torch.dtype = torch.bfloat16,
    weight_dtype: torch.dtype | None = None,
    expert_shard: tuple[int, int] = (0, 1),
) -> int:
    """Bytes of all parameters of such a network, without making one."""
    setup = Setup(config, kernels, dtype, weight_dtype, expert_shard)
    empty = _empty_network(setup, [0] * config.vocab_size, "meta")
    again = sum(few.num_bytes(weight) for few, weight in products(empty)) + _prepare(empty)
    return again + sum(parameter.nbytes for parameter in empty.parameters())


def build_dummy(
    config: ModelConfig,
    token_map: list[int],
    kernels: KernelSet,
    *,
    dtype: torch.dtype = torch.bfloat16,
    weight_dtype: torch.dtype | None = None,
    expert_shard: tuple[int, int] = (0, 1),
    device: str = "cpu",
) -> Network:
    """A Network with random weights, for measuring: no checkpoint is needed, and no text makes
    sense.

    Engram tables are not held at all: rows come from `_DummyTable`.
    """
    setup = Setup(config, kernels, dtype, weight_dtype, expert_shard)
    network = _empty_network(setup, token_map, device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for module in network.modules():
            own = dict(module.named_parameters(recurse=False))
            if isinstance(module, Experts):
                kernels.randomise_experts(own, generator)
            elif isinstance(module, RMSNorm):
                module.weight.fill_(1.0)
            else:
                for parameter in own.values():
                    randomise(parameter, generator)
                if isinstance(module, Linear) and module.op in kernels.of_fp8:
                    # The release has these in FP8, which the backend may rely on.
                    for rows in module.weight.split(_ROUNDED_ROWS):
                        rows.copy_(quant.round_trip_fp8_blocks(rows.float()))
    for layer in network.layers:
        if layer.plan.engram_id is not None:
            layer.engram.table = _DummyTable(config.engram_head_dim)
    _pack(network)
    return network.eval()


def _pack(network: Network) -> None:
    """What backends make, besides, of weights that are there."""
    for few, weight in products(network):
        few.pack(weight)
    _prepare(network)


def _prepare(network: Network) -> int:
    """What hyper-connections are multiplied with: its bytes, where it is not the weight itself."""
    return sum(module.prepare() for module in network.modules() if isinstance(module, HyperMix))


@dataclass(frozen=True)
class _DummyTable:
    """Rows that are a cheap function of their number, so that no table needs to exist."""

    width: int

    def rows(self, row_ids: Tensor) -> Tensor:
        """int64 [...] -> float32 [..., width]."""
        column = torch.arange(1, self.width + 1, device=row_ids.device)
        return torch.sin((row_ids % 4096)[..., None] * column)


def _empty_network(setup: Setup, token_map: list[int], device: str) -> Network:
    # Parameters are allocated empty, where they will stay: the weights never exist twice in memory.
    with torch.device(device):
        return Network(setup, token_map)


def released_names(
    name: str, parameter: Tensor, num_draft_blocks: int
) -> Iterator[tuple[Tensor, str]]:
    """(part of the parameter, name of the tensor that fills it) pairs for a parameter of Network.

    Stacked experts give one pair for each expert; every other parameter is filled by one tensor.
    """
    name = released_name(name, num_draft_blocks)
    stacked = re.fullmatch(r"(.*\.experts)\.(w[123])", name)
    if stacked is None:
        yield parameter, name
        return
    for expert, part in enumerate(parameter):
        yield part, f"{stacked[1]}.{expert}.{stacked[2]}.weight"


def released_name(name: str, num_draft_blocks: int, first_layer: int = 0) -> str:
    """The released name of a parameter or module of Network; of stacked experts, what comes before
    an expert's number. first_layer: the number of the first that is held."""
    last = num_draft_blocks - 1
    name = re.sub(r"^layers\.(\d+)", lambda found: f"layers.{int(found[1]) + first_layer}", name)
    for pattern, released in (
        (r"hc_(attn|ffn)\.(fn|base|scale)$", r"hc_\1_\2"),
        (r"^draft\.blocks\.(\d+)\.", r"mtp.\1."),
        (r"^draft\.(main_proj|main_norm)\.", r"mtp.0.\1."),
        (r"^draft\.(norm|markov_head|confidence_head)\.", rf"mtp.{last}.\1."),
    ):
        name = re.sub(pattern, released, name)
    return name
