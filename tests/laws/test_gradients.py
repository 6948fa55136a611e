"""Law: what autograd says of a parameter is what happens when it is changed.

Each kind of parameter is moved a little along a random direction, all layers at once, and the
change of one number made of all outputs is compared with what its gradient promised. The number
includes the index scores: selections are piecewise constant, so through the logits alone indexer
parameters would have no gradient. Caches round nothing here: a rounding has no slope.

Differences in float32 would be too noisy to see a small mistake. The ops compute in
`torch.float32`, looked up when they run, so in this test that name stands for float64.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepinfer.checkpoint.tiny import tiny_config, write_tiny
from deepinfer.model.batch import FreshStore, make_batch
from deepinfer.model.draft import DraftStore, draft_batch
from deepinfer.model.engram import ResidentTable
from deepinfer.model.network import Network
from deepinfer.worker.build import build_network
from tests.laws.networks import Source, kernels_of, open_source, recording

TOY = tiny_config(
    hidden_size=32,
    num_hidden_layers=6,
    num_attention_heads=2,
    head_dim=32,
    qk_rope_head_dim=8,
    q_lora_rank=32,
    o_lora_rank=16,
    sliding_window=4,
    swiglu_limit=0.8,  # low enough that some activations are clamped
    compress_ratios=[0, 2, 2, 1, 1, 1, 0, 0],
    kv_source_layer_ids=[1, 3],
    index_source_layer_ids=[1, 3, 5],
    index_n_heads=4,
    index_topk=3,
    candidate_source_layer_id=3,
    candidate_topk_blocks=2,
    candidate_block_size=2,
    hc_sinkhorn_iters=4,
    moe_intermediate_size=32,
    n_routed_experts=4,
    engram_layer_ids=[0, 2],
    num_nextn_predict_layers=2,
    dspark_block_size=3,
    dspark_target_layer_ids=[4, 5],
    dspark_n_routed_experts=4,
)
TOKENS = torch.tensor([[5, 301, 17, 5, 301, 17, 44, 460, 9, 80, 5, 301, 200]])
STEP = 1e-6  # relative to a parameter's own size
TOLERANCE = 1e-5  # of a slope; a mistake of one part in ten thousand would show
# They take part in choices alone.
WITHOUT_GRADIENT = r"(layers|draft\.blocks)\.#\.ffn\.gate\.bias"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("toy")
    write_tiny(Path(folder), config=TOY)
    return open_source(folder)


def trainable(source: Source, mode: str, dtype: torch.dtype) -> Network:
    """A network whose Engram tables are parameters too."""
    config = source.config
    network = build_network(
        config, source.checkpoint, source.token_map, kernels_of(mode), dtype=dtype
    )
    for layer_id, height in zip(config.engram_layer_ids, config.engram_num_embeddings, strict=True):
        engram = network.layers[layer_id].engram
        engram.table = ResidentTable(engram.table.rows(torch.arange(height)))
    return network


@pytest.fixture
def wide(toy: Source, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """The network in float64 throughout."""
    network = trainable(toy, "fp32_noqdq", torch.float64).double()
    monkeypatch.setattr(torch, "float32", torch.float64)
    torch.set_default_dtype(torch.float64)
    yield network
    torch.set_default_dtype(torch.float)


def probe(values: Tensor, seed: int) -> Tensor:
    """A smooth number made of all values, each with a weight of its own."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(values.shape, generator=generator, dtype=values.dtype)
    return (values * weights).sum()


def outcome(network: Network) -> Tensor:
    """One number that depends on every output: logits, index scores, drafts, confidence."""
    config = network.setup.config
    with recording(network) as calls:
        hidden = network.run(make_batch(config, TOKENS), FreshStore())
    scores = [
        call.output.scores for name in calls for call in calls[name] if "indexer" in name[-7:]
    ]
    assert len(scores) == len(config.index_source_layer_ids)
    total = probe(network.head(hidden.final), seed=0)
    for seed, score in enumerate(scores, start=1):
        total = total + probe(score.masked_fill(score == -torch.inf, 0.0), seed)

    anchors, golden_ids = torch.tensor([2, 9]), torch.tensor([70, 400])
    batch = draft_batch(config, golden_ids, anchors, torch.zeros(2).long(), TOKENS.shape[1])
    main_kv = network.draft.main_kv(hidden.features, torch.arange(TOKENS.shape[1]))
    raw = network.draft.run(network.embed(batch.token_ids), batch, DraftStore(main_kv))
    proposal = network.draft.propose(
        raw.unflatten(0, (2, -1)), golden_ids, network.head, lambda _, i: golden_ids + 7 * (i + 1)
    )
    return total + probe(proposal.logits, seed=10) + probe(proposal.confidence, seed=11)


def kinds(network: Network) -> dict[str, list[Tensor]]:
    """Parameters by name, with # for every layer number."""
    groups: dict[str, list[Tensor]] = {}
    for name, parameter in network.named_parameters():
        groups.setdefault(re.sub(r"\d+", "#", name, count=1), []).append(parameter)
    return groups


def slope_by_differences(network: Network, group: list[Tensor], direction: list[Tensor]) -> float:
    ends = []
    for sign in (1, -1):
        for parameter, way in zip(group, direction, strict=True):
            parameter.data.add_(way, alpha=sign * STEP)
        ends.append(float(outcome(network)))
        for parameter, way in zip(group, direction, strict=True):
            parameter.data.sub_(way, alpha=sign * STEP)
    return (ends[0] - ends[1]) / (2 * STEP)


@torch.no_grad()
def compare_slopes(network: Network) -> dict[str, tuple[float, float]]:
    """By kind of parameter: the slope that differences show, and the one autograd promises."""
    with torch.enable_grad():
        outcome(network).backward()
    generator = torch.Generator().manual_seed(3)
    slopes = {}
    for kind, group in kinds(network).items():
        direction = [
            torch.randn(p.shape, generator=generator, dtype=p.dtype) * p.std(correction=0)
            for p in group
        ]
        promised = sum(
            float((p.grad * way).sum())
            for p, way in zip(group, direction, strict=True)
            if p.grad is not None
        )
        slopes[kind] = slope_by_differences(network, group, direction), promised
    return slopes


def test_gradient_of_every_kind_of_parameter(wide):
    """Guards training: no op may detach, drop or misplace a part of a gradient."""
    slopes = compare_slopes(wide)
    assert len(slopes) > 60
    for kind, (real, promised) in slopes.items():
        if re.fullmatch(WITHOUT_GRADIENT, kind):
            assert real == promised == 0, kind
            continue
        assert abs(real) > 1e-3, kind
        assert promised == pytest.approx(real, rel=TOLERANCE), kind


def test_every_parameter_has_a_gradient(wide):
    """Guards the test above: no layer of a kind may be left out of what it compares."""
    outcome(wide).backward()
    for name, parameter in wide.named_parameters():
        if re.fullmatch(WITHOUT_GRADIENT, re.sub(r"\d+", "#", name, count=1)):
            assert parameter.grad is None, name
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_pass_through_round_trips(toy, dtype):
    """Guards straight-through: caches round, and all that made what they hold still learns."""
    network = trainable(toy, "fp32", dtype)
    outcome(network).backward()
    for kind, group in kinds(network).items():
        if re.fullmatch(WITHOUT_GRADIENT, kind):
            continue
        for parameter in group:
            assert parameter.grad is not None, kind
            assert parameter.grad.isfinite().all(), kind
            assert parameter.grad.abs().max() > 0, kind


def test_round_trips_change_gradients_little(toy):
    """Guards the estimate: through the round trips gradients point where they point without."""
    plain, rounded = (trainable(toy, mode, torch.float32) for mode in ("fp32_noqdq", "fp32"))
    for network in (plain, rounded):
        outcome(network).backward()
    for name in ("layers.0.attn.wkv.weight", "layers.1.attn.compressor.wkv.weight"):
        one, other = (n.get_parameter(name).grad.flatten() for n in (plain, rounded))
        assert torch.cosine_similarity(one, other, dim=0) > 0.5, name
