"""Mistakes made on purpose, one at a time: the golden logits must notice each of them.

This tests the rule of `test_network.py`. A tolerance loose enough to let a wrong formula pass, or a
golden that does not reach some mechanism, shows here. Each mistake is made from outside: in the
configuration, the ops or the built network.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from deepinfer.config.model import ModelConfig
from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.kernels.values import Rotary, Written
from deepinfer.model.basic import HyperMix, RMSNorm
from deepinfer.model.layer import Flow, Layer
from deepinfer.model.network import Network
from tests.golden.goldens import PROMPTS, load_golden
from tests.laws.networks import golden_source, run_whole

LENGTHS = ("p3", "p17", "p40", "p200")  # the prompts that are looked at, of either golden


def same_config(config: ModelConfig) -> ModelConfig:
    return config


def same_kernels(kernels: KernelSet) -> KernelSet:
    return kernels


def same_map(token_map: list[int]) -> list[int]:
    return token_map


def same_network(_network: Network) -> None:
    pass


@dataclass(frozen=True)
class Mistake:
    """What is done wrong, and where that changes nothing."""

    config: Callable[[ModelConfig], ModelConfig] = same_config
    kernels: Callable[[KernelSet], KernelSet] = same_kernels
    token_map: Callable[[list[int]], list[int]] = same_map
    network: Callable[[Network], None] = same_network
    patch: tuple[type, str, Callable] | None = None
    silent: tuple[str, ...] = ()  # prompts that do not reach it, as "a/p3"


def config_with(**changes: object) -> Callable[[ModelConfig], ModelConfig]:
    return lambda config: replace(config, **changes)


def kernels_with(**changes: Callable) -> Callable[[KernelSet], KernelSet]:
    return lambda kernels: replace(kernels, **changes)


def keep(x: Tensor, *_rest: object) -> Tensor:
    return x


def one_window_shorter(config: ModelConfig) -> ModelConfig:
    return replace(config, sliding_window=config.sliding_window - 1)


def one_entry_fewer(config: ModelConfig) -> ModelConfig:
    return replace(config, index_topk=config.index_topk - 1)


def without_yarn(config: ModelConfig) -> ModelConfig:
    return replace(config, rope_scaling=replace(config.rope_scaling, factor=1.0))


def all_visible(scores: Tensor, num_visible: Tensor, *_sizes: int) -> Tensor:
    return torch.arange(scores.shape[1]) < num_visible[:, None]


def best_blocks_alone(scores: Tensor, num_visible: Tensor, size: int, topk: int) -> Tensor:
    """Candidate blocks by their scores, the newest one too."""
    visible = all_visible(scores, num_visible)
    padding = torch.full((len(scores), -scores.shape[1] % size), -torch.inf)
    blocks = torch.cat((scores, padding), 1).unflatten(1, (-1, size)).amax(-1)
    kept = blocks.sort(dim=-1, descending=True, stable=True).indices.argsort(-1) < topk
    return kept.repeat_interleave(size, 1)[:, : scores.shape[1]] & visible


def window_angles_everywhere(network: Network) -> None:
    network.entry_frequencies.copy_(network.window_frequencies)


def not_turned_back(rotary: Rotary) -> Rotary:
    return Rotary(torch.ones_like(rotary.cos), torch.zeros_like(rotary.sin))


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (c, c + R) instead of (c, c + 1)."""
    pairs = cos.shape[-1]
    cos, sin = (t.view(len(t), *[1] * (x.dim() - 2), pairs) for t in (cos, sin))
    kept, first, second = x.split((x.shape[-1] - 2 * pairs, pairs, pairs), -1)
    return torch.cat((kept, first * cos - second * sin, second * cos + first * sin), -1)


def zero_sinks(network: Network) -> None:
    for layer in network.layers:
        layer.attn.attn_sink.zero_()


def mean_of_pairs(values: Tensor, _scores: Tensor) -> Tensor:
    return values.mean(1)


def every_token_its_own(token_map: list[int]) -> list[int]:
    return list(range(len(token_map)))


def swapped_multipliers(network: Network) -> None:
    first, second = (layer.engram for layer in network.layers if hasattr(layer, "engram"))
    first.multipliers, second.multipliers = second.multipliers, first.multipliers


def zero_router_bias(network: Network) -> None:
    for layer in network.layers:
        layer.ffn.gate.bias.zero_()


def own_pre(layer: Layer, flow: Flow, mix: HyperMix, norm: RMSNorm, sublayer: Callable) -> Flow:
    """A sublayer's input collapsed with its own `pre` instead of the preceding one's."""
    entered = mix(flow.streams, flow.pre, flow.written, norm)
    y = sublayer(norm(layer.kernels.hyper_collapse(entered.streams, entered.pre)))
    return Flow(entered.streams, entered.pre, Written(y, entered.post, entered.comb))


def comb_transposed(kernels: KernelSet) -> KernelSet:
    def expand(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        return kernels.hyper_expand(y, streams, post, comb.transpose(1, 2))

    return replace(kernels, hyper_expand=expand)


SHORT_B = ("b/p3", "b/p17", "b/p40")

MISTAKES = {
    "window one shorter": Mistake(config=one_window_shorter, silent=("a/p3", *SHORT_B)),
    "index top-k one smaller": Mistake(config=one_entry_fewer, silent=("a/p3", "b/p3")),
    "candidate restriction ignored": Mistake(
        kernels=kernels_with(candidate_entries=all_visible), silent=("a/p3", *SHORT_B)
    ),
    "latest candidate block not forced": Mistake(
        kernels=kernels_with(candidate_entries=best_blocks_alone),
        silent=("a/p3", "a/p17", *SHORT_B),
    ),
    "no YaRN on compressed layers": Mistake(config=without_yarn),
    "window theta on compressed layers": Mistake(network=window_angles_everywhere),
    "no inverse RoPE on the output": Mistake(patch=(Rotary, "inverse", not_turned_back)),
    "half-split RoPE pairs": Mistake(kernels=kernels_with(rotate=rotate_halves)),
    "attention sink taken as zero": Mistake(network=zero_sinks),
    "no FP8 window round trip": Mistake(kernels=kernels_with(round_trip_window=keep)),
    "no NVFP4 entry round trip": Mistake(kernels=kernels_with(round_trip_entry=keep)),
    "no MXFP4 index round trip": Mistake(
        kernels=kernels_with(round_trip_index=keep), silent=("a/p3", "b/p3", "b/p17")
    ),
    "mean pooling instead of gated": Mistake(kernels=kernels_with(pool_pairs=mean_of_pairs)),
    "no Engram": Mistake(kernels=kernels_with(engram_gate=keep)),
    "Engram without token compression": Mistake(token_map=every_token_its_own),
    "Engram pads with raw id 0": Mistake(config=config_with(engram_pad_token_id=0)),
    "Engram multipliers of another layer": Mistake(network=swapped_multipliers),
    "router bias ignored": Mistake(network=zero_router_bias),
    "routed scale 1": Mistake(config=config_with(routed_scaling_factor=1.0)),
    "no SwiGLU clamp": Mistake(
        config=config_with(swiglu_limit=1e30),
        silent=tuple(f"a/{prompt}" for prompt in LENGTHS),
    ),
    "own instead of preceding pre": Mistake(patch=(Layer, "_sublayer", own_pre)),
    "one Sinkhorn iteration": Mistake(config=config_with(hc_sinkhorn_iters=1)),
    "comb transposed": Mistake(kernels=comb_transposed),
}


@cache
def expected_of(name: str, prompt: str) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids [1, S], logits [S, V] and what they may be off by [S, 1]."""
    golden = load_golden(name)
    token_ids = golden.tensors[f"{prompt}/input_ids"].long()[None]
    return token_ids, golden.tensors[f"{prompt}/logits.fp32"], golden.tolerance(prompt)


@torch.no_grad()
def build_with(mistake: Mistake, name: str) -> Network:
    source = golden_source(name)
    wrong = replace(
        source, config=mistake.config(source.config), token_map=mistake.token_map(source.token_map)
    )
    network = wrong.network(kernels=mistake.kernels(load_kernels()))
    mistake.network(network)
    return network


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_noticed(mistake, name, monkeypatch):
    """Guards the guard: each mistake breaks the rule on every prompt that it can show on."""
    made = MISTAKES[mistake]
    network = build_with(made, name)
    if made.patch:
        monkeypatch.setattr(*made.patch)
    noticed = []
    for prompt in LENGTHS:
        token_ids, expected, tolerance = expected_of(name, prompt)
        wrong = (run_whole(network, token_ids)[0] - expected).abs() > tolerance
        noticed += [f"{name}/{prompt}"] if wrong.any() else []
    everywhere = [f"{name}/{prompt}" for prompt in LENGTHS]
    assert noticed == [where for where in everywhere if where not in made.silent]
