"""The network against the golden numbers, inside and out, the draft module included.

The rules are those of `test_oracle.py`: a golden position is as exact as its `noise` says, and
selections are compared where the margin to the next choice is clear. Intermediates are recorded by
forward hooks, so production code knows nothing of these tests.
"""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.backends import load_kernels
from deepinfer.model.batch import make_batch
from tests.golden.goldens import PROMPTS, assert_close, load_golden
from tests.laws.networks import (
    Drafted,
    Seen,
    golden_network,
    golden_source,
    run_draft,
    run_greedily,
    run_recorded,
    run_whole,
)

CLEAR_MARGIN = 1e-3  # of a top-k or router choice
QUIET_NOISE = 1e-3  # of a position
GREEDY_MARGIN = 0.5  # fp32 is sure of a token whose logit leads by this much

CASES = [(name, prompt) for name, prompts in PROMPTS.items() for prompt in prompts]
NOQDQ_CASES = [case for case in CASES if case[0] == "a" or case[1] == "p40"]
DRAFT_CASES = [(name, prompt) for name in PROMPTS for prompt in ("p17", "p40")]
SHORT_PROMPTS = [(name, index) for name in PROMPTS for index in range(3)]


@cache
def seen(name: str, mode: str, prompt: str) -> Seen:
    return run_recorded(golden_network(name, mode), tokens_of(name, prompt))


def tokens_of(name: str, prompt: str) -> Tensor:
    return load_golden(name).tensors[f"{prompt}/input_ids"].long()


@torch.no_grad()
def logits_of(name: str, mode: str, prompt: str) -> Tensor:
    return golden_network(name, mode).head(seen(name, mode, prompt).hidden.final)


def index_sources(name: str) -> tuple[int, ...]:
    return golden_source(name).config.index_source_layer_ids


# ---- the whole model -----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "prompt"), CASES)
def test_fp32_logits(name, prompt):
    """Guards every formula of the model: any slip moves the logits of some position by 0.1."""
    golden = load_golden(name)
    expected = golden.tensors[f"{prompt}/logits.fp32"]
    assert_close(logits_of(name, "fp32", prompt), expected, golden.tolerance(prompt))


@pytest.mark.parametrize(("name", "prompt"), NOQDQ_CASES)
def test_logits_without_cache_round_trips(name, prompt):
    """Guards what noise hides: without roundings no position is near a tie and all must agree."""
    expected = load_golden(name).tensors[f"{prompt}/logits.fp32_noqdq"]
    assert_close(logits_of(name, "fp32_noqdq", prompt), expected, 1e-4)


@pytest.mark.parametrize("judge", ["bf16", "fp32"])
@pytest.mark.parametrize(("name", "prompt"), [(n, p) for n in PROMPTS for p in ("p40", "p200")])
def test_bf16_logits(name, prompt, judge):
    """Guards the bf16 roundings: a wrong place for one pushes logits off or flips best tokens."""
    expected = load_golden(name).tensors[f"{prompt}/logits.{judge}"]
    actual = logits_of(name, "bf16", prompt)
    assert (actual - expected).abs().median() < 0.15
    assert (actual.argmax(1) == expected.argmax(1)).float().mean() >= 0.85


@pytest.mark.parametrize(("name", "index"), SHORT_PROMPTS)
def test_fp32_greedy(name, index):
    """Guards generation: one token a forward, also where a ratio-2 entry is half done."""
    expected = load_golden(name).tensors
    prompt = expected[f"greedy/{index}/prompt"].tolist()
    tokens = expected[f"greedy/{index}/tokens.fp32"].tolist()
    assert run_greedily(golden_network(name), prompt, len(tokens)) == tokens


@pytest.mark.parametrize(("name", "index"), SHORT_PROMPTS)
def test_bf16_greedy(name, index):
    """Guards bf16 generation: it follows the golden one until fp32 itself is unsure of a token.

    After that step a run may go its own way, so the rest is judged along the golden's way.
    """
    expected = load_golden(name).tensors
    prompt = expected[f"greedy/{index}/prompt"].long()
    golden = expected[f"greedy/{index}/tokens.bf16"].long()
    logits = run_whole(golden_network(name, "bf16"), torch.cat((prompt, golden))[None])[0]
    agree = logits[len(prompt) - 1 : -1].argmax(-1) == golden
    unsure = (expected[f"greedy/{index}/margins.fp32"] < GREEDY_MARGIN).nonzero()
    assert agree[: int(unsure[0])].all()
    assert agree.float().mean() >= 0.85


@pytest.mark.parametrize(("name", "prompt"), CASES)
def test_batch_of_three(name, prompt):
    """Guards the batch dimension: a sequence must not feel its neighbours.

    Two copies of a prompt lie around the prompt reversed. Without the caches' roundings all but the
    order of a few sums is the same, so 1e-5 is enough.
    """
    network = golden_network(name, "fp32_noqdq")
    tokens = tokens_of(name, prompt)
    together = run_whole(network, torch.stack((tokens, tokens.flip(0), tokens)))
    assert_close(together[1], run_whole(network, tokens.flip(0)[None])[0], 1e-5)
    for place in (0, 2):
        assert_close(together[place], logits_of(name, "fp32_noqdq", prompt), 1e-5)


# ---- inside the model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prompt", "mode"),
    [(*case, "fp32") for case in CASES] + [(*case, "fp32_noqdq") for case in NOQDQ_CASES],
)
def test_selected_entries(name, prompt, mode):
    """Guards the indexer: visibility, its scores, and candidates restricting later layers."""
    expected = load_golden(name).tensors
    quiet = expected[f"{prompt}/noise.{mode}"] < QUIET_NOISE
    num_compared = 0
    for layer in index_sources(name):
        selected = seen(name, mode, prompt).output(f"layers.{layer}.attn.indexer").selected
        golden = expected[f"{prompt}/topk.{mode}.layer{layer}"]
        # Our lists have room for top-k entries at any length; what is beyond the goldens' is empty.
        selected, beyond = selected[:, : golden.shape[1]], selected[:, golden.shape[1] :]
        assert bool((beyond == -1).all())
        if golden.shape[1] == 0:
            continue  # a prompt shorter than the ratio: no margins are given
        rows = quiet & (expected[f"{prompt}/topk_margin.{mode}.layer{layer}"] > CLEAR_MARGIN)
        num_compared += int(rows.sum())
        wrong = (selected != golden).any(1) & rows
        assert not wrong.any(), f"layer {layer}, positions {wrong.nonzero().flatten().tolist()}"
    assert num_compared >= len(quiet)


@pytest.mark.parametrize(("name", "prompt"), CASES)
def test_candidate_entries(name, prompt):
    """Guards the candidate stage: block scores, the newest block, visibility; who makes them."""
    expected = load_golden(name).tensors
    source = golden_source(name).config.candidate_source_layer_id
    quiet = expected[f"{prompt}/noise.fp32"] < QUIET_NOISE
    assert quiet.any()
    for layer in index_sources(name):
        made = seen(name, "fp32", prompt).output(f"layers.{layer}.attn.indexer").candidates
        assert (made is not None) == (layer == source)
        if layer == source:
            golden = expected[f"{prompt}/candidates.fp32.layer{layer}"].bool()
            assert torch.equal(made[quiet], golden[quiet])


@pytest.mark.parametrize("name", PROMPTS)
def test_index_scores(name):
    """Guards the score formula itself: a wrong factor would leave the selection alone. A07."""
    for layer in index_sources(name):
        actual = seen(name, "fp32", "p40").output(f"layers.{layer}.attn.indexer").scores
        assert_close(actual, load_golden(name).tensors[f"p40/index_scores.layer{layer}.fp32"], 1e-4)


@pytest.mark.parametrize("name", PROMPTS)
def test_entries_and_keys(name):
    """Guards what would be cached: pooling, rotation at the first token, the round trips. A01."""
    expected = load_golden(name).tensors
    store = seen(name, "fp32", "p40").store
    assert tuple(store.kept_entries) == golden_source(name).config.kv_source_layer_ids
    for layer, entries in store.kept_entries.items():
        assert_close(entries, expected[f"p40/compressed_kv.layer{layer}.fp32"], 1e-4)
        assert_close(store.kept_keys[layer], expected[f"p40/index_keys.layer{layer}.fp32"], 1e-4)


@pytest.mark.parametrize("name", PROMPTS)
def test_routing(name):
    """Guards the router: the bias must choose experts and must not weigh them."""
    expected = load_golden(name).tensors
    layers = range(golden_source(name).config.num_hidden_layers)
    routed = [seen(name, "fp32", "p40").output(f"layers.{i}.ffn.gate") for i in layers]
    golden_ids, order = expected["p40/router_ids.fp32"].long().sort(-1)
    golden_weights = expected["p40/router_weights.fp32"].gather(-1, order)
    clear = expected["p40/router_margin.fp32"] > CLEAR_MARGIN
    assert clear.float().mean() > 0.9
    assert torch.equal(torch.stack([ids for ids, _ in routed])[clear], golden_ids[clear])
    weights = torch.stack([weights for _, weights in routed])
    assert_close(weights[clear], golden_weights[clear], 1e-4)


LAYER_TENSORS: dict[str, Callable[[Seen, str], Tensor]] = {
    "streams": lambda run, layer: run.flow(layer).streams,
    "pre_mix": lambda run, layer: run.output(layer).pre,
    "attn_in": lambda run, layer: run.output(f"{layer}.hc_attn").u,
    "attn_out": lambda run, layer: run.output(f"{layer}.attn"),
    "ffn_in": lambda run, layer: run.output(f"{layer}.hc_ffn").u,
    "ffn_out": lambda run, layer: run.output(f"{layer}.ffn"),
    "mix_attn_pre": lambda run, layer: run.output(f"{layer}.hc_attn").pre,
    "mix_attn_post": lambda run, layer: run.output(f"{layer}.hc_attn").post,
    "mix_attn_comb": lambda run, layer: run.output(f"{layer}.hc_attn").comb,
    "mix_ffn_pre": lambda run, layer: run.output(f"{layer}.hc_ffn").pre,
    "mix_ffn_post": lambda run, layer: run.output(f"{layer}.hc_ffn").post,
    "mix_ffn_comb": lambda run, layer: run.output(f"{layer}.hc_ffn").comb,
}


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (name, tensor)
        for name in PROMPTS
        for tensor in LAYER_TENSORS
        if f"p40/{tensor}.fp32" in load_golden(name).tensors
    ],
)
def test_layer_tensors(name, tensor):
    """Guards the place of an error: the first layer and tensor that is off names it."""
    golden = load_golden(name)
    expected = golden.tensors[f"p40/{tensor}.fp32"]
    tolerance = golden.tolerance("p40").view(-1, *[1] * (expected.dim() - 2))
    assert len(expected) == golden_source(name).config.num_hidden_layers
    for layer, layer_expected in enumerate(expected):
        actual = LAYER_TENSORS[tensor](seen(name, "fp32", "p40"), f"layers.{layer}")
        assert_close(actual, layer_expected, tolerance)


def test_ends_of_the_stack():
    """Guards what lies outside the layers: the streams' start, Engram, the last collapse."""
    expected, run = load_golden("a").tensors, seen("a", "fp32", "p40")
    assert_close(run.input("layers.0").streams, expected["p40/streams_in.fp32"], 0)
    for layer in golden_source("a").config.engram_layer_ids:
        actual = run.output(f"layers.{layer}.engram")
        assert_close(actual, expected[f"p40/engram_out.layer{layer}.fp32"], 1e-4)
    last = run.flow(f"layers.{golden_source('a').config.num_hidden_layers - 1}")
    collapsed = load_kernels().hyper_collapse(last.streams, last.pre)
    assert_close(collapsed, expected["p40/collapsed.fp32"], 1e-4)


@pytest.mark.parametrize("name", PROMPTS)
def test_final_hidden(name):
    """Guards the head's input: the last norm's gain and epsilon."""
    expected = load_golden(name).tensors["p40/final_hidden.fp32"]
    assert_close(seen(name, "fp32", "p40").hidden.final, expected, 1e-4)


@pytest.mark.parametrize(("name", "prompt"), CASES)
def test_hash_ids(name, prompt):
    """Guards the Engram look-up: compression, padding at the start, hash, primes, offsets."""
    network, config = golden_network(name), golden_source(name).config
    lookback = make_batch(config, tokens_of(name, prompt)[None]).lookback
    rows = [network.layers[i].engram.row_ids(lookback) for i in config.engram_layer_ids]
    assert torch.equal(torch.stack(rows, 1), load_golden(name).tensors[f"{prompt}/hash_ids"])


# ---- the draft module ----------------------------------------------------------------------------


@cache
def drafted(name: str, mode: str, prompt: str) -> Drafted:
    """The teacher-forced drafts at every golden anchor of a prompt."""
    expected = load_golden(name).tensors
    previous = expected[f"dspark/{prompt}/previous_token_ids"].long()
    after = previous.roll(-1, 1)  # what follows a token; of the last one nothing is asked
    return run_draft(
        golden_network(name, mode),
        seen(name, mode, prompt).hidden.features,
        expected[f"dspark/{prompt}/anchors"].long(),
        previous[:, 0],
        lambda _logits, i: after[:, i],
    )


@pytest.mark.parametrize(("name", "prompt"), DRAFT_CASES)
def test_features(name, prompt):
    """Guards the taps: inputs of the tapped layers, after Engram, not their outputs."""
    golden = load_golden(name)
    expected = golden.tensors[f"dspark/{prompt}/target_features.fp32"]
    actual = seen(name, "fp32", prompt).hidden.features
    assert_close(actual, expected, golden.tolerance(prompt))


@pytest.mark.parametrize("name", PROMPTS)
def test_draft_main_kv(name):
    """Guards the projection of the features, and whose rotation the main tokens' KV gets."""
    expected = load_golden(name).tensors["dspark/p40/main_x.fp32"]
    assert_close(drafted(name, "fp32", "p40").main_x, expected, 1e-4)


def test_draft_stages():
    """Guards the hand-over between draft blocks: streams, and `pre` from block to block."""
    expected = load_golden("a").tensors["dspark/p40/stage_streams.fp32"]
    for actual, golden in zip(drafted("a", "fp32", "p40").stages, expected, strict=True):
        assert_close(actual, golden, 1e-4)


@pytest.mark.parametrize(
    ("name", "prompt", "tensor"),
    [
        (name, prompt, tensor)
        for name, prompt in DRAFT_CASES
        for tensor in ("raw", "normalized", "base_logits", "transition_logits", "confidence_raw")
        if f"dspark/{prompt}/{tensor}.fp32" in load_golden(name).tensors
    ],
)
def test_fp32_draft(name, prompt, tensor):
    """Guards the draft block: positions, the window before it, keys both ways, the heads."""
    expected = load_golden(name).tensors
    golden = expected[f"dspark/{prompt}/{tensor}.fp32"]
    tolerance = (3 * expected[f"dspark/{prompt}/noise.fp32"]).clamp(min=1e-4)
    tolerance = tolerance.view(*tolerance.shape, *[1] * (golden.dim() - 2))
    assert_close(drafted(name, "fp32", prompt).tensors[tensor], golden, tolerance)


@pytest.mark.parametrize("tensor", ["normalized", "confidence_raw"])
@pytest.mark.parametrize(("name", "prompt"), DRAFT_CASES)
def test_bf16_draft(name, prompt, tensor):
    """Guards the draft's bf16 roundings, by the same rule as the logits."""
    golden = load_golden(name).tensors[f"dspark/{prompt}/{tensor}.bf16"]
    actual = drafted(name, "bf16", prompt).tensors[tensor]
    assert (actual - golden).abs().median() < 0.15


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
@pytest.mark.parametrize(("name", "index"), SHORT_PROMPTS)
def test_draft_tokens(name, index, mode):
    """Guards drafting as it is used: anchor right after the prompt, each token from the last."""
    expected = load_golden(name).tensors
    prompt = expected[f"draft/{index}/input_ids"].long()
    network = golden_network(name, mode)
    hidden = run_recorded(network, prompt).hidden
    anchor, anchor_id = torch.tensor([len(prompt)]), network.head(hidden.final[-1:]).argmax(-1)
    done = run_draft(network, hidden.features, anchor, anchor_id, lambda row, _: row.argmax(-1))
    golden = expected[f"draft/{index}/tokens.{mode}"].tolist()
    assert [int(anchor_id), *done.proposal.token_ids[0].tolist()] == golden
    confidence = expected[f"draft/{index}/confidence_raw.{mode}"]
    if mode == "fp32":
        assert_close(done.proposal.logits[0], expected[f"draft/{index}/logits.fp32"], 1e-4)
        assert_close(done.proposal.confidence[0], confidence.view(-1), 1e-4)
