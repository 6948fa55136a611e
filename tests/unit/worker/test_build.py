"""From checkpoint to network: every tensor finds its parameter, every parameter its tensor."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepinfer.checkpoint.index import open_index
from deepinfer.checkpoint.load import Checkpoint, open_checkpoint
from deepinfer.config.layers import hold_layers
from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.model.basic import HyperMix
from deepinfer.worker.build import build_network, network_bytes, released_names

# Read row by row from the file; not used yet; applied to their weights.
NOT_PARAMETERS = (r".engram.embed.weight", ".gate.bias_vl", ".scale")
NOT_BUILT = ("vision.", "aligner.", "image_")


class CountingCheckpoint(Checkpoint):
    """A checkpoint that notes what is asked for."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.asked: list[str] = []

    def decoded(self, name: str) -> Tensor:
        self.asked.append(name)
        return super().decoded(name)


@pytest.fixture(scope="module")
def counting(tiny_dir: Path, tiny_config) -> CountingCheckpoint:
    return CountingCheckpoint(open_index(tiny_dir, tiny_config))


class Preparing(KernelSet):
    """Wants a weight once more, as the backend for GPUs does."""

    def prepare_mix(self, fn: Tensor, num_streams: int) -> Tensor:
        return fn.detach().clone()


def build(config, checkpoint, kernels=None, **options):
    token_map = [i % config.engram_compressed_vocab_size for i in range(config.vocab_size)]
    return build_network(config, checkpoint, token_map, kernels or load_kernels(), **options)


def test_every_tensor_is_used_once(tiny_config, counting):
    """Guards loading: a tensor that no parameter takes would leave a part of the model out."""
    build(tiny_config, counting)
    expected = [
        name
        for name in counting.index.specs
        if not name.endswith(NOT_PARAMETERS) and not name.startswith(NOT_BUILT)
    ]
    assert sorted(counting.asked) == sorted(expected)


@pytest.mark.parametrize(
    ("parameter", "tensor"),
    [
        ("layers.3.hc_attn.fn", "layers.3.hc_attn_fn"),
        ("draft.blocks.1.hc_ffn.scale", "mtp.1.hc_ffn_scale"),
        ("draft.main_proj.weight", "mtp.0.main_proj.weight"),
        ("draft.markov_head.head.weight", "mtp.2.markov_head.head.weight"),
        ("draft.norm.weight", "mtp.2.norm.weight"),
        ("norm.weight", "norm.weight"),
        ("layers.0.attn.attn_sink", "layers.0.attn.attn_sink"),
    ],
)
def test_released_names(parameter, tensor):
    """Guards the names: the backbone's own norm and head must not be taken for the draft's."""
    weight = torch.empty(1)
    assert list(released_names(parameter, weight, 3)) == [(weight, tensor)]


def test_stacked_experts():
    """Guards the order in the stack: part e of the parameter is expert e."""
    stack = torch.arange(3.0).view(3, 1, 1)
    pairs = list(released_names("draft.blocks.2.ffn.experts.w2", stack, 3))
    assert [name for _, name in pairs] == [f"mtp.2.ffn.experts.{e}.w2.weight" for e in range(3)]
    assert [float(part) for part, _ in pairs] == [0, 1, 2]


def test_values_arrive(tiny_dir, tiny_config):
    """Guards against a look-alike: decoded values lie in the parameters, expert by expert."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    network = build(tiny_config, checkpoint, dtype=torch.float32)
    for name, parameter in network.named_parameters():
        for part, tensor in released_names(name, parameter, 3):
            assert torch.equal(part, checkpoint.decoded(tensor).to(torch.float32)), name
    for layer_id in tiny_config.engram_layer_ids:
        rows = network.layers[layer_id].engram.table.rows(torch.tensor([0, 7]))
        assert rows.shape == (2, tiny_config.engram_head_dim)
    tables = [network.layers[i].engram.table for i in tiny_config.engram_layer_ids]
    assert not torch.equal(*[table.rows(torch.tensor([0])) for table in tables])


def test_dtypes(tiny_dir, tiny_config):
    """Guards the two dtypes: weights may be kept narrower than what is computed in."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    wide = build(tiny_config, checkpoint, dtype=torch.float32)
    narrow = build(tiny_config, checkpoint, dtype=torch.float32, weight_dtype=torch.bfloat16)
    plain = build(tiny_config, checkpoint)
    assert wide.embed.weight.dtype == torch.float32
    assert narrow.embed.weight.dtype == plain.embed.weight.dtype == torch.bfloat16
    # The head is computed in float32 always: kept narrower, all of it would be cast at each step.
    assert narrow.head.weight.dtype == torch.bfloat16
    assert plain.head.weight.dtype == torch.float32
    token_ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        # Every released number is exact in bfloat16, so keeping it there changes nothing.
        assert torch.equal(wide(token_ids), narrow(token_ids))
        assert not torch.equal(wide(token_ids), plain(token_ids))
        assert plain(token_ids).dtype == torch.float32


def test_network_is_ready(tiny_dir, tiny_config):
    """Guards use: evaluation mode, and parameters that can be trained."""
    network = build(tiny_config, open_checkpoint(tiny_dir, tiny_config))
    assert not network.training
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_prepared_weights(tiny_dir, tiny_config):
    """Guards what a backend makes of a weight: it is used and counted, and is no parameter."""
    plain = load_kernels()
    kernels = Preparing(**{field.name: getattr(plain, field.name) for field in fields(plain)})
    network = build(tiny_config, open_checkpoint(tiny_dir, tiny_config), kernels)
    mixes = [module for module in network.modules() if isinstance(module, HyperMix)]
    more = network_bytes(tiny_config, kernels) - network_bytes(tiny_config, plain)
    assert more == sum(mix.fn.nbytes for mix in mixes) > 0
    assert not [name for name in network.state_dict() if "prepared" in name]
    token_ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        before = network(token_ids)
        for mix in mixes:
            mix.fn.zero_()
        assert torch.equal(network(token_ids), before)


@pytest.mark.parametrize("layers", ["6:10", "0:2", "4:6"])
def test_a_part_of_the_layers(layers, tiny_dir, tiny_config):
    """Layers that are held alone are filled with the weights of others, or run as others."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    held = hold_layers(tiny_config, layers)
    whole, part = build(tiny_config, checkpoint), build(held, checkpoint)
    first, end = held.held_layers
    for module, other in zip(whole.layers[first:end], part.layers, strict=True):
        weights = dict(other.named_parameters())
        for name, weight in module.named_parameters():
            assert torch.equal(weights.pop(name), weight), name
        assert not weights
        assert module.plan == other.plan
    assert (part.draft is None) == (layers != "6:10")
    with torch.inference_mode():
        assert part(torch.arange(40, 60)[None]).isfinite().all()


def test_shares_of_the_experts_add_up(tiny_dir, tiny_config):
    """A rank leaves out what is its own, or adds what is another's."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    whole, *shares = (
        build(tiny_config, checkpoint, dtype=torch.float32, expert_shard=share)
        for share in ((0, 1), (0, 2), (1, 2))
    )
    x = torch.randn(9, tiny_config.hidden_size, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        shared = whole.layers[3].ffn.shared_experts(x)
        parts = [share.layers[3].ffn(x) - shared for share in shares]
        torch.testing.assert_close(sum(parts), whole.layers[3].ffn(x) - shared)
    assert all(part.abs().max() > 0 for part in parts)
