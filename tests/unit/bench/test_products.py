"""The bare products are those of the step: no weight missing, none twice, real rows."""

import torch

from deepinfer.bench.products import record_products, run_products
from deepinfer.bench.steps import Case, make_step
from tests.unit.bench.small import CONFIG, small_network

# Of a backbone's layer: wq_a, wq_b, wkv, wo_b, 2 groups of wo_a, router, 3 of the shared expert, 2
# hyper-connections.
_PER_LAYER = 4 + 2 + 1 + 3 + 2
# Index queries and head weights in 4 index sources; keys, wkv, and at ratio 2 wgate, in 3 sources.
_OF_SOURCES = 4 * 2 + 2 * 3 + 2
_ENGRAM, _HEAD = 2, 1


def test_each_weight_once() -> None:
    """The step is compared with fewer products than it does, and looks worse than it is."""
    network = small_network()
    found = record_products(network, make_step(network, Case(1, 40)))
    experts = 3 * CONFIG.num_experts_per_tok * CONFIG.num_hidden_layers
    others = _PER_LAYER * CONFIG.num_hidden_layers + _OF_SOURCES + _ENGRAM + _HEAD
    assert len(found) == experts + others
    run_products(found)


def test_experts_have_their_own_rows() -> None:
    """All experts get all rows, and the bare products are the slow part."""
    network = small_network()
    found = record_products(network, make_step(network, Case(5, 40)))
    inner, hidden = CONFIG.moe_intermediate_size, CONFIG.hidden_size
    parts = {w.data_ptr() for layer in network.layers for w in layer.ffn.experts.w2}
    rows = [p.rows.shape for p in found if p.weight.data_ptr() in parts]
    assert sum(count for count, _ in rows) == (
        5 * CONFIG.num_experts_per_tok * CONFIG.num_hidden_layers
    )
    assert {width for _, width in rows} == {inner}
    assert all(p.weight.shape[1] == p.rows.shape[1] for p in found)
    assert hidden != inner


def test_float32_is_cast_beforehand() -> None:
    """A cast inside the bare products makes them slow and the step look good."""
    network = small_network()
    found = record_products(network, make_step(network, Case(2, 40)))
    assert all(p.rows.dtype == p.weight.dtype for p in found)
    head = found[-1]
    assert head.weight.shape == (CONFIG.vocab_size, CONFIG.hidden_size)
    assert head.weight.dtype == torch.float32
    assert head.rows.shape[0] == 2


def test_hooks_are_gone() -> None:
    """Every later step pays for notes that nobody reads."""
    network = small_network()
    record_products(network, make_step(network, Case(1, 3)))
    assert not any(module._forward_pre_hooks for module in network.modules())
