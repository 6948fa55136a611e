"""The oracle's formulas and number formats on their own: exact, and before any model runs.

When the whole model is off, these say whether the reason is one of its pieces.
"""

from dataclasses import replace

import pytest
import torch

from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.oracle import model as formulas
from deepinfer.oracle.model import (
    Weights,
    decode,
    fp8_round_trip,
    mxfp4_round_trip,
    nvfp4_round_trip,
)
from tests.golden.goldens import PROMPTS, assert_close, load_golden, load_released_tensors


def config_of(name: str) -> ModelConfig:
    return read_model_config(load_golden(name).config_dir)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [fp8_round_trip, mxfp4_round_trip, nvfp4_round_trip])
@pytest.mark.parametrize("name", PROMPTS)
def test_cache_round_trips(name, kind, dtype):
    """Guards scales and ties of the cache formats, to the bit."""
    expected = load_golden(name).tensors
    golden = expected[f"quant/{kind.__name__.removesuffix('_round_trip')}.{dtype}"]
    assert torch.equal(kind(expected[f"quant/input.{dtype}"].float()), golden.float())


def test_nvfp4_saturates():
    """Guards the clamp of the e4m3 scale: beyond 448 the cast alone would give NaN."""
    assert nvfp4_round_trip(torch.full((1, 16), 1e4)).tolist() == [[448.0 * 6.0] * 16]


@pytest.mark.parametrize("name", PROMPTS)
def test_rope_frequencies(name):
    """Guards the two bases and YaRN, b's short original length and its clamps included."""
    expected, config = load_golden(name).tensors, config_of(name)
    for kind in ("window", "compressed"):
        actual = formulas.rope_frequencies(config, compressed=kind == "compressed")
        golden = expected[f"rope/frequencies.{kind}"]
        assert_close(actual, golden, 1e-6 * golden)


def test_released_rope_frequencies():
    """Guards YaRN at the released head size, by the check values of spec 6."""
    config = replace(config_of("a"), qk_rope_head_dim=64)
    actual = formulas.rope_frequencies(config, compressed=True)[[14, 16, 20, 24, 31]]
    golden = torch.tensor([5.286856e-3, 2.265625e-3, 2.969778e-4, 1.953125e-5, 5.680529e-7])
    assert_close(actual, golden, 1e-6 * golden)


@pytest.mark.parametrize("name", PROMPTS)
def test_engram_constants(name):
    """Guards primes and multipliers on their own: a wrong one looks like random memory."""
    expected, config = load_golden(name).tensors, config_of(name)
    size = config.engram_compressed_vocab_size
    primes = formulas.engram_primes(config)
    assert primes.tolist() == expected["engram/primes"].tolist()
    assert primes.sum(1).tolist() == list(config.engram_num_embeddings)
    multipliers = formulas.engram_multipliers(config, size).tolist()
    assert multipliers == expected["engram/multipliers"].tolist()


def test_released_engram_constants():
    """Guards the released tables' heights and multipliers, by the figures of spec 9.3."""
    config = replace(
        config_of("a"), engram_layer_ids=(1, 14), engram_n_heads=8, engram_vocab_size=16_000_000
    )
    assert formulas.engram_primes(config).sum(1).tolist() == [384006168, 384016682]
    assert formulas.engram_multipliers(config, 99092).tolist() == [
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
    ]


def test_sinkhorn_by_hand():
    """Guards the count and the order of normalisations, which converged matrices do not show."""
    logits = torch.tensor([[1.0, 3.0], [2.0, 2.0]]).log()
    once = torch.tensor([[1 / 3, 0.6], [2 / 3, 0.4]])  # rows to 1/4 3/4, 1/2 1/2; then columns
    assert_close(formulas.sinkhorn(logits, 1, 0.0), once, 1e-6)
    rows = once / once.sum(1, keepdim=True)
    assert_close(formulas.sinkhorn(logits, 2, 0.0), rows / rows.sum(0), 1e-6)


def test_ties_go_to_the_lowest_index():
    """Guards against an order of equal scores that depends on the sort or on the platform."""
    scores = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0], [0.0, -torch.inf, 0.0, 0.0, -torch.inf]])
    assert formulas.top_indices(scores, 4).tolist()[0] == [1, 2, 4, 0]
    assert formulas.select_entries(scores, 2).tolist() == [[1, 2], [0, 2]]
    assert formulas.select_entries(scores, 4).tolist() == [[0, 1, 2, 4], [0, 2, 3, -1]]


def test_newest_candidate_block_stays():
    """Guards the forced block, partial last blocks, and rows that see nothing."""
    hidden = -torch.inf
    scores = torch.tensor([[9.0, 0.0, 9.0, 5.0, 1.0], [9.0, 0.0, 9.0, 5.0, hidden], [hidden] * 5])
    mask = formulas.candidate_mask(scores, num_blocks=2, block_size=2)
    assert mask.int().tolist() == [[1, 1, 0, 0, 1], [1, 1, 1, 1, 0], [0] * 5]


def test_scales_may_come_as_bytes():
    """Guards loaders that hand e8m0 over as uint8: the same weights must come out."""
    tensors = load_released_tensors("a")
    for name in ("layers.0.attn.wo_a", "layers.0.ffn.experts.0.w2"):
        weight, scale = tensors[f"{name}.weight"], tensors[f"{name}.scale"]
        assert torch.equal(decode(weight, scale), decode(weight, scale.view(torch.uint8)))


def test_act_quant_rounds_the_input_of_quantised_linears():
    """Guards act_quant: FP8 and FP4 linears see rounded rows, bf16 matrices the rows themselves."""
    options = {"eps": 1e-20, "dtype": torch.float32, "cache_round_trip": True}
    plain = Weights(load_released_tensors("a"), act_quant=False, **options)
    quantised = Weights(load_released_tensors("a"), act_quant=True, **options)
    x = load_golden("a").tensors["quant/input.fp32"]
    x = torch.cat([x, x], dim=1)[:, : config_of("a").hidden_size]
    for name in ("layers.0.attn.wq_a", "layers.0.ffn.experts.0.w1"):
        assert not torch.equal(quantised.linear(x, name), plain.linear(x, name))
        assert torch.equal(quantised.linear(x, name), plain.linear(fp8_round_trip(x), name))
    assert torch.equal(quantised.linear(x, "head"), plain.linear(x, "head"))
