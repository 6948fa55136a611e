"""The oracle against the golden numbers: the rules under which two correct implementations agree.

A golden position is as exact as its `noise` says (`Golden.tolerance`); selections are compared
where the margin to the next choice is clear. A mistake in a formula moves logits by 0.1 and more.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.oracle.model import DraftTrace, Oracle, Trace
from tests.golden.goldens import PROMPTS, assert_close, load_golden, load_released_tensors

CLEAR_MARGIN = 1e-3  # of a top-k or router choice
QUIET_NOISE = 1e-3  # of a position
GREEDY_MARGIN = 0.5  # a bf16 run may pick another token once fp32 is less sure than this

MODES = {
    "fp32": {},
    "fp32_noqdq": {"cache_round_trip": False},
    "bf16": {"dtype": torch.bfloat16},
}
CASES = [(name, prompt) for name, prompts in PROMPTS.items() for prompt in prompts]
NOQDQ_CASES = [case for case in CASES if case[0] == "a" or case[1] == "p40"]
DRAFT_CASES = [(name, prompt) for name in PROMPTS for prompt in ("p17", "p40")]
SHORT_PROMPTS = [(name, index) for name in PROMPTS for index in range(3)]
DRAFT_TENSORS = (
    *("raw", "normalized", "base_logits", "transition_logits"),
    *("confidence_raw", "confidence_normalized"),
)
LAYER_TENSORS = {
    "streams": lambda layer: layer.streams,
    "pre_mix": lambda layer: layer.mix_ffn.pre,
    "attn_in": lambda layer: layer.attn_in,
    "attn_out": lambda layer: layer.attn_out,
    "ffn_in": lambda layer: layer.ffn_in,
    "ffn_out": lambda layer: layer.ffn_out,
    "mix_attn_pre": lambda layer: layer.mix_attn.pre,
    "mix_attn_post": lambda layer: layer.mix_attn.post,
    "mix_attn_comb": lambda layer: layer.mix_attn.comb,
    "mix_ffn_pre": lambda layer: layer.mix_ffn.pre,
    "mix_ffn_post": lambda layer: layer.mix_ffn.post,
    "mix_ffn_comb": lambda layer: layer.mix_ffn.comb,
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def config_of(name: str) -> ModelConfig:
    return read_model_config(load_golden(name).config_dir)


@cache
def oracle_of(name: str, mode: str) -> Oracle:
    token_map = load_golden(name).tensors["engram/token_map"].numpy()
    return Oracle(config_of(name), load_released_tensors(name), token_map, **MODES[mode])


@cache
def trace_of(name: str, mode: str, prompt: str) -> Trace:
    token_ids = load_golden(name).tensors[f"{prompt}/input_ids"].tolist()
    return oracle_of(name, mode).forward(token_ids)


@cache
def drafts_of(name: str, mode: str, prompt: str) -> list[DraftTrace]:
    """The teacher-forced drafts at every golden anchor of a prompt."""
    expected = load_golden(name).tensors
    features = trace_of(name, mode, prompt).target_features
    previous = expected[f"dspark/{prompt}/previous_token_ids"].tolist()
    anchors = expected[f"dspark/{prompt}/anchors"].tolist()
    oracle = oracle_of(name, mode)
    return [
        oracle.draft(features, a, ids[0], ids) for a, ids in zip(anchors, previous, strict=True)
    ]


# ---- the whole model -----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "prompt"), CASES)
def test_fp32_logits(name, prompt):
    """Guards every formula of the model: any slip moves the logits of some position by 0.1."""
    golden = load_golden(name)
    actual = trace_of(name, "fp32", prompt).logits
    assert_close(actual, golden.tensors[f"{prompt}/logits.fp32"], golden.tolerance(prompt))


@pytest.mark.parametrize(("name", "prompt"), NOQDQ_CASES)
def test_logits_without_cache_round_trips(name, prompt):
    """Guards what noise hides: without roundings no position is near a tie and all must agree."""
    expected = load_golden(name).tensors[f"{prompt}/logits.fp32_noqdq"]
    assert_close(trace_of(name, "fp32_noqdq", prompt).logits, expected, 1e-4)


@pytest.mark.parametrize("judge", ["bf16", "fp32"])
@pytest.mark.parametrize(("name", "prompt"), [(n, p) for n in PROMPTS for p in ("p40", "p200")])
def test_bf16_logits(name, prompt, judge):
    """Guards the bf16 roundings: a wrong place for one pushes logits off or flips best tokens."""
    expected = load_golden(name).tensors[f"{prompt}/logits.{judge}"]
    actual = trace_of(name, "bf16", prompt).logits
    assert (actual - expected).abs().median() < 0.15
    assert (actual.argmax(1) == expected.argmax(1)).float().mean() >= 0.85


@pytest.mark.parametrize(("name", "index"), SHORT_PROMPTS)
def test_fp32_greedy(name, index):
    """Guards generation: lengths that end inside a ratio-2 group, one after the other."""
    expected = load_golden(name).tensors
    prompt = expected[f"greedy/{index}/prompt"].tolist()
    tokens = expected[f"greedy/{index}/tokens.fp32"].tolist()
    assert oracle_of(name, "fp32").greedy(prompt, len(tokens)) == tokens


@pytest.mark.parametrize(("name", "index"), SHORT_PROMPTS)
def test_bf16_greedy(name, index):
    """Guards bf16 generation: the first other token, if any, is one that fp32 was unsure of."""
    expected = load_golden(name).tensors
    prompt = expected[f"greedy/{index}/prompt"].tolist()
    golden = expected[f"greedy/{index}/tokens.bf16"].tolist()
    actual = oracle_of(name, "bf16").greedy(prompt, len(golden))
    forks = [step for step in range(len(golden)) if actual[step] != golden[step]]
    assert not forks or expected[f"greedy/{index}/margins.fp32"][forks[0]] < GREEDY_MARGIN


def test_bf16_values_are_bf16():
    """Guards against a rounding left out: too small to see in logits, wrong in a cache."""
    trace = trace_of("a", "bf16", "p40")
    rounded = {"final_hidden": trace.final_hidden, "target_features": trace.target_features}
    for layer, done in enumerate(trace.layers):
        for tensor in ("streams", "attn_in", "attn_out", "ffn_in", "ffn_out"):
            rounded[f"{tensor} of layer {layer}"] = getattr(done, tensor)
    for tensor in ("engram_out", "compressed_kv", "index_keys", "index_scores"):
        rounded |= {f"{tensor} of {layer}": x for layer, x in getattr(trace, tensor).items()}
    wrong = [name for name, x in rounded.items() if not torch.equal(x, x.bfloat16().float())]
    assert not wrong


# ---- inside the model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prompt", "mode"),
    [(*case, "fp32") for case in CASES] + [(*case, "fp32_noqdq") for case in NOQDQ_CASES],
)
def test_selected_entries(name, prompt, mode):
    """Guards the indexer: visibility, its scores, and candidates restricting later layers."""
    golden = load_golden(name)
    trace = trace_of(name, mode, prompt)
    quiet = golden.tensors[f"{prompt}/noise.{mode}"] < QUIET_NOISE
    assert list(trace.topk) == list(config_of(name).index_source_layer_ids)
    num_compared = 0
    for layer, actual in trace.topk.items():
        expected = golden.tensors[f"{prompt}/topk.{mode}.layer{layer}"]
        assert actual.shape == expected.shape
        if actual.shape[1] == 0:
            continue  # a prompt shorter than the ratio: no margins are given
        margin = golden.tensors[f"{prompt}/topk_margin.{mode}.layer{layer}"]
        rows = quiet & (margin > CLEAR_MARGIN)
        num_compared += int(rows.sum())
        wrong = (actual != expected).any(1) & rows
        assert not wrong.any(), f"layer {layer}, positions {wrong.nonzero().flatten().tolist()}"
    assert num_compared >= len(quiet)


@pytest.mark.parametrize(("name", "prompt"), CASES)
def test_candidate_entries(name, prompt):
    """Guards the candidate stage: block scores, the newest block, visibility."""
    golden = load_golden(name)
    layer = config_of(name).candidate_source_layer_id
    quiet = golden.tensors[f"{prompt}/noise.fp32"] < QUIET_NOISE
    expected = golden.tensors[f"{prompt}/candidates.fp32.layer{layer}"].bool()
    actual = trace_of(name, "fp32", prompt).candidates[layer]
    assert quiet.any()
    assert torch.equal(actual[quiet], expected[quiet])


def test_new_source_clears_candidates():
    """Guards candidates of one source's entries restricting the entries of the next one."""
    golden, tensors = load_golden("a"), load_released_tensors("a")
    token_map = golden.tensors["engram/token_map"].numpy()
    token_ids = golden.tensors["p200/input_ids"].tolist()
    early, never = (
        Oracle(replace(config_of("a"), candidate_source_layer_id=layer), tensors, token_map)
        for layer in (2, None)  # 4 and 6 are sources of their own, 8 reads the entries of 6
    )
    assert torch.equal(early.forward(token_ids).logits, never.forward(token_ids).logits)


@pytest.mark.parametrize("name", PROMPTS)
def test_routing(name):
    """Guards the router: the bias must choose experts and must not weigh them."""
    expected = load_golden(name).tensors
    layers = trace_of(name, "fp32", "p40").layers
    ids = torch.stack([layer.router_ids for layer in layers])
    weights = torch.stack([layer.router_weights for layer in layers])
    golden_ids, order = expected["p40/router_ids.fp32"].long().sort(-1)
    golden_weights = expected["p40/router_weights.fp32"].gather(-1, order)
    sorted_ids, order = ids.sort(-1)
    clear = expected["p40/router_margin.fp32"] > CLEAR_MARGIN
    assert clear.float().mean() > 0.9
    assert torch.equal(sorted_ids[clear], golden_ids[clear])
    assert_close(weights.gather(-1, order)[clear], golden_weights[clear], 1e-4)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [(n, t) for n in PROMPTS for t in LAYER_TENSORS if f"p40/{t}.fp32" in load_golden(n).tensors],
)
def test_layer_tensors(name, tensor):
    """Guards the place of an error: the first layer and tensor that is off names it."""
    golden = load_golden(name)
    expected = golden.tensors[f"p40/{tensor}.fp32"]
    for layer, actual in enumerate(trace_of(name, "fp32", "p40").layers):
        tolerance = golden.tolerance("p40").view(-1, *[1] * (expected.dim() - 2))
        assert_close(LAYER_TENSORS[tensor](actual), expected[layer], tolerance)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        *[("a", t) for t in ("streams_in", "collapsed", "final_hidden", "engram_out")],
        *[("b", "final_hidden")],
        *[(n, t) for n in PROMPTS for t in ("compressed_kv", "index_keys", "index_scores")],
    ],
)
def test_trace_tensors(name, tensor):
    """Guards the tensors outside the layers' frame, among them what would be cached."""
    expected = load_golden(name).tensors
    actual = getattr(trace_of(name, "fp32", "p40"), tensor)
    if isinstance(actual, Tensor):
        assert_close(actual, expected[f"p40/{tensor}.fp32"], 1e-4)
        return
    golden_names = {key for key in expected if key.startswith(f"p40/{tensor}.layer")}
    assert golden_names == {f"p40/{tensor}.layer{layer}.fp32" for layer in actual}
    for layer, value in actual.items():
        assert_close(value, expected[f"p40/{tensor}.layer{layer}.fp32"], 1e-4)


@pytest.mark.parametrize(("name", "prompt"), CASES)
def test_hash_ids(name, prompt):
    """Guards the Engram lookup: compression, padding at the start, hash, primes, offsets."""
    expected = load_golden(name).tensors[f"{prompt}/hash_ids"]
    assert torch.equal(trace_of(name, "fp32", prompt).hash_ids, expected)


# ---- the draft module ----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "prompt"), DRAFT_CASES)
def test_target_features(name, prompt):
    """Guards the taps: inputs of the target layers, after Engram, not their outputs."""
    golden = load_golden(name)
    actual = trace_of(name, "fp32", prompt).target_features
    expected = golden.tensors[f"dspark/{prompt}/target_features.fp32"]
    assert_close(actual, expected, golden.tolerance(prompt))


@pytest.mark.parametrize(
    ("name", "prompt", "tensor"),
    [
        (name, prompt, tensor)
        for name, prompt in DRAFT_CASES
        for tensor in DRAFT_TENSORS
        if f"dspark/{prompt}/{tensor}.fp32" in load_golden(name).tensors
    ],
)
def test_fp32_draft(name, prompt, tensor):
    """Guards the draft block: positions, context window, keys in both directions, heads."""
    expected = load_golden(name).tensors
    golden = expected[f"dspark/{prompt}/{tensor}.fp32"]
    actual = torch.stack([getattr(draft, tensor) for draft in drafts_of(name, "fp32", prompt)])
    tolerance = (3 * expected[f"dspark/{prompt}/noise.fp32"]).clamp(min=1e-4)
    assert_close(actual, golden, tolerance.view(*tolerance.shape, *[1] * (golden.dim() - 2)))


def test_fp32_draft_stages():
    """Guards the hand-over between draft stages: streams, and `pre` from block to block."""
    expected = load_golden("a").tensors["dspark/p40/stage_streams.fp32"]
    drafts = drafts_of("a", "fp32", "p40")
    for stage, streams in enumerate(expected):
        actual = torch.stack([draft.stages[stage].streams for draft in drafts])
        assert_close(actual, streams, 1e-4)


@pytest.mark.parametrize("name", PROMPTS)
def test_fp32_draft_context(name):
    """Guards the projection of the taps that the draft attends to."""
    expected = load_golden(name).tensors["dspark/p40/main_x.fp32"]
    assert_close(drafts_of(name, "fp32", "p40")[0].main_x, expected, 1e-4)


@pytest.mark.parametrize("tensor", ["normalized", "confidence_raw", "confidence_normalized"])
@pytest.mark.parametrize(("name", "prompt"), DRAFT_CASES)
def test_bf16_draft(name, prompt, tensor):
    """Guards the draft's bf16 roundings, by the same rule as the logits."""
    golden = load_golden(name).tensors[f"dspark/{prompt}/{tensor}.bf16"]
    actual = torch.stack([getattr(draft, tensor) for draft in drafts_of(name, "bf16", prompt)])
    assert (actual - golden).abs().median() < 0.15


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
@pytest.mark.parametrize(("name", "index"), SHORT_PROMPTS)
def test_draft_tokens(name, index, mode):
    """Guards drafting as it is used: anchor right after the prompt, each token from the last."""
    expected = load_golden(name).tensors
    prompt = expected[f"draft/{index}/input_ids"].tolist()
    oracle = oracle_of(name, mode)
    trace = oracle.forward(prompt)
    anchor_id = int(trace.logits[-1].argmax())
    draft = oracle.draft(trace.target_features, len(prompt), anchor_id)
    assert [anchor_id, *draft.token_ids] == expected[f"draft/{index}/tokens.{mode}"].tolist()
    if mode == "fp32":
        logits = draft.base_logits + draft.transition_logits
        assert_close(logits, expected[f"draft/{index}/logits.fp32"], 1e-4)
