"""The network's frame: which layers have what, dtypes of parameters, the streams' start."""

from dataclasses import replace

import pytest
import torch

from deepinfer.config.layers import Kind, plan_layers
from deepinfer.kernels.backends import load_kernels
from deepinfer.model.basic import Setup
from deepinfer.model.batch import FreshStore, make_batch
from deepinfer.model.engram import ResidentTable
from deepinfer.model.layer import start_flow
from deepinfer.model.network import Network

PARTS_OF_KIND = {
    Kind.WINDOW: set(),
    Kind.FULL: {"compressor", "indexer"},
    Kind.REINDEX: {"indexer"},
    Kind.REUSE: set(),
}


def empty_network(config, weight_dtype=torch.float32) -> Network:
    setup = Setup(config, load_kernels(), torch.float32, weight_dtype)
    return Network(setup, list(range(config.vocab_size)))


def test_layers_have_what_their_kind_needs(tiny_config):
    """Guards memory and loading: a module that a layer does not use must not exist."""
    network = empty_network(tiny_config)
    assert {plan.kind for plan in network.plans} == set(Kind)
    for plan, layer in zip(network.plans, network.layers, strict=True):
        parts = {name for name, _ in layer.attn.named_children()} & {"compressor", "indexer"}
        assert parts == PARTS_OF_KIND[plan.kind]
        assert hasattr(layer, "engram") == (plan.layer_id in tiny_config.engram_layer_ids)
        if plan.owns_kv:
            assert hasattr(layer.attn.compressor, "wgate") == (plan.ratio == 2)
        if plan.owns_index:
            assert hasattr(layer.attn.indexer, "wk") == plan.owns_kv


def test_dtypes_of_parameters(tiny_config):
    """Guards precision: what the release stores in float32 stays so, all else follows."""
    kept = {"attn_sink", "fn", "scale", "base", "bias"}
    for name, parameter in empty_network(tiny_config, torch.bfloat16).named_parameters():
        wide = name.rsplit(".", 1)[-1] in kept
        assert parameter.dtype == (torch.float32 if wide else torch.bfloat16), name


def test_network_without_draft(tiny_config):
    """Guards a checkpoint without a draft module: nothing is tapped and nothing breaks."""
    ratios = tiny_config.compress_ratios[: tiny_config.num_hidden_layers]
    config = replace(
        tiny_config,
        num_nextn_predict_layers=0,
        dspark_target_layer_ids=(),
        compress_ratios=ratios,
        engram_layer_ids=(),
    )
    network = empty_network(config)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.1)
        hidden = network.run(make_batch(config, torch.tensor([[3, 4, 5]])), FreshStore())
    assert network.draft is None
    assert hidden.features.shape == (3, 0)
    assert hidden.final.isfinite().all()


def test_start_flow():
    """Guards the first sublayer: four equal streams, of which it reads the first alone."""
    x = torch.arange(6.0).view(2, 3)
    flow = start_flow(x, 4)
    assert torch.equal(flow.streams, x[:, None].repeat(1, 4, 1))
    assert flow.pre.tolist() == [[1, 0, 0, 0]] * 2


def test_resident_table():
    """Guards the table that trains: same rows as indexing, and a gradient for those read."""
    table = ResidentTable(torch.randn(5, 3))
    ids = torch.tensor([[0, 4], [4, 2]])
    rows = table.rows(ids)
    assert torch.equal(rows, table.weight[ids])
    rows.sum().backward()
    assert table.weight.grad[:, 0].tolist() == [1, 0, 1, 0, 2]


def test_before_the_start_is_padding(tiny_config):
    """Guards look-back -1 and ids beyond the token map: both count as the pad token."""
    short_map = list(range(100, 100 + tiny_config.vocab_size - 3))
    setup = Setup(tiny_config, load_kernels(), torch.float32, torch.float32)
    network = Network(setup, short_map)
    engram = network.layers[tiny_config.engram_layer_ids[0]].engram
    pad = tiny_config.engram_pad_token_id
    outside, inside = torch.tensor([[9, -1, -1, -1]]), torch.tensor([[9, pad, pad, pad]])
    assert torch.equal(engram.row_ids(outside), engram.row_ids(inside))
    beyond = torch.tensor([[9, tiny_config.vocab_size - 1, 8, 7]])
    assert torch.equal(engram.row_ids(beyond), engram.row_ids(torch.tensor([[9, pad, 8, 7]])))


@pytest.mark.parametrize("fp4", [True, False])
def test_format_of_entries(tiny_config, fp4):
    """Guards use_fp4_sparse_kv: without it entries are kept in the window's format."""
    used = []

    def mark(name):
        def op(x):
            used.append((name, x.shape[-1]))
            return x

        return op

    kernels = replace(
        load_kernels(),
        round_trip_entry=mark("entry"),
        round_trip_window=mark("window"),
        round_trip_index=mark("index"),
    )
    config = replace(tiny_config, use_fp4_sparse_kv=fp4)
    network = Network(Setup(config, kernels, torch.float32, torch.float32), [0] * 512)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.1)
        for layer_id in config.engram_layer_ids:
            network.layers[layer_id].engram.table = ResidentTable(torch.zeros(5000, 32))
        network(torch.tensor([[3, 4, 5, 6]]))
    counts = {name: [n for n, _ in used].count(name) for name in ("entry", "window", "index")}
    sources, layers = len(config.kv_source_layer_ids), len(plan_layers(config))
    assert counts["entry"] == (sources if fp4 else 0)
    assert counts["window"] == layers + (0 if fp4 else sources)
    assert counts["index"] == sources + len(config.index_source_layer_ids)
