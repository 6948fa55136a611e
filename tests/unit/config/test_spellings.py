"""Newer spellings of config.json: the same model, or an error where two spellings differ."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from deepinfer.checkpoint.inventory import inventory
from deepinfer.config.layers import Kind, plan_layers
from deepinfer.config.model import ModelConfig, parse_model_config
from deepinfer.errors import ConfigError

Json = dict[str, Any]
Edit = Callable[[Json], object]

NAMES = {0: "sliding_attention", 2: "compressed_pair", 1: "compressed_single"}


def layer_types(config: Json) -> None:
    text = config["text_config"]
    text["layer_types"] = [NAMES[r] for r in text["compress_ratios"][:40]]
    text["compress_rates"] = {"compressed_pair": 2, "compressed_single": 1}


def rope_parameters(config: Json) -> None:
    text = config["text_config"]
    text["rope_parameters"] = {
        "main": {"rope_type": "default", "rope_theta": 10000},
        "compress": {**text["rope_scaling"], "rope_theta": 160000, "partial_rotary_factor": 0.125},
    }


def rope_type(config: Json) -> None:
    scaling = config["text_config"]["rope_scaling"]
    scaling["type"] = scaling["rope_type"]


def torch_dtype(config: Json) -> None:
    config["torch_dtype"] = config["dtype"]


def expert_dtype(config: Json) -> None:
    config["expert_dtype"] = config["quantization_config"]["expert_dtype"]


# The newer key, how it is added, the older ones it stands for, and a change that contradicts them.
PAIRS: dict[str, tuple[Edit, tuple[str, ...], Edit]] = {
    "layer_types": (
        layer_types,
        ("text_config.compress_ratios",),
        lambda c: c["text_config"]["layer_types"].__setitem__(19, "compressed_single"),
    ),
    "compress_rates": (
        layer_types,
        ("text_config.compress_ratios",),
        lambda c: c["text_config"]["compress_rates"].update(compressed_pair=1),
    ),
    "main theta": (
        rope_parameters,
        ("text_config.rope_theta",),
        lambda c: c["text_config"]["rope_parameters"]["main"].update(rope_theta=20000),
    ),
    "compress theta": (
        rope_parameters,
        ("text_config.compress_rope_theta",),
        lambda c: c["text_config"]["rope_parameters"]["compress"].update(rope_theta=20000),
    ),
    "scaling": (
        rope_parameters,
        ("text_config.rope_scaling",),
        lambda c: c["text_config"]["rope_parameters"]["compress"].update(factor=8),
    ),
    "rope_type": (
        rope_type,
        ("text_config.rope_scaling.rope_type",),
        lambda c: c["text_config"]["rope_scaling"].update(type="linear"),
    ),
    "torch_dtype": (torch_dtype, ("dtype",), lambda c: c.update(torch_dtype="float16")),
    "expert_dtype": (
        expert_dtype,
        ("quantization_config.expert_dtype",),
        lambda c: c.update(expert_dtype="fp8"),
    ),
}


def drop(config: Json, dotted: str) -> None:
    *path, name = dotted.split(".")
    for key in path:
        config = config[key]
    del config[name]


@pytest.mark.parametrize("case", PAIRS)
def test_pairs(released_json: Json, released_config: ModelConfig, case: str) -> None:
    """N03: old spelling, new spelling, both and equal: one model. Both and different: an error."""
    add, old_keys, contradict = PAIRS[case]
    add(released_json)
    assert parse_model_config(released_json) == released_config, "both, equal"

    contradicting = deepcopy(released_json)
    contradict(contradicting)
    with pytest.raises(ConfigError) as caught:
        parse_model_config(contradicting)
    assert old_keys[0].split(".")[-1] in caught.value.where
    assert caught.value.hint

    for key in old_keys:
        drop(released_json, key)
    assert parse_model_config(released_json) == released_config, "new alone"


def test_all_new_spellings_at_once(released_json: Json, released_config: ModelConfig) -> None:
    """N03: a file as a newer library writes it, with none of the older keys."""
    for add in (layer_types, rope_parameters, torch_dtype, expert_dtype):
        add(released_json)
    for key in ("compress_ratios", "rope_theta", "compress_rope_theta", "rope_scaling"):
        drop(released_json, f"text_config.{key}")
    drop(released_json, "dtype")
    drop(released_json, "quantization_config.expert_dtype")
    assert parse_model_config(released_json) == released_config


def test_window_layers_need_no_rate(released_json: Json, released_config: ModelConfig) -> None:
    """N04: window layers have no entry in the table of rates, drafts no layer type at all.

    What is planned from the ratios, here layers and tensors, is that of the older spelling.
    """
    layer_types(released_json)
    drop(released_json, "text_config.compress_ratios")
    config = parse_model_config(released_json)
    assert config.compress_ratios == (0,) * 2 + (2,) * 18 + (1,) * 20 + (0,) * 3
    assert [p.layer_id for p in plan_layers(config) if p.kind is Kind.WINDOW] == [0, 1]
    assert plan_layers(config) == plan_layers(released_config)
    assert inventory(config) == inventory(released_config)


INCOMPLETE: dict[str, tuple[Edit, str]] = {
    "types without rates": (lambda c: c["text_config"].pop("compress_rates"), "layer_types"),
    "rates without types": (lambda c: c["text_config"].pop("layer_types"), "layer_types"),
    "a type without a rate": (
        lambda c: c["text_config"]["compress_rates"].pop("compressed_pair"),
        "layer_types",
    ),
    "types are a text": (lambda c: c["text_config"].update(layer_types="all"), "layer_types"),
    "type is a list": (lambda c: c["text_config"].update(layer_types=[["x"]] * 40), "layer_types"),
    "rates are a list": (lambda c: c["text_config"].update(compress_rates=[2]), "layer_types"),
    "a rate of 4": (
        lambda c: c["text_config"]["compress_rates"].update(compressed_pair=4),
        "compress_ratios",
    ),
    "a rate of text": (
        lambda c: c["text_config"]["compress_rates"].update(compressed_pair="2"),
        "compress_ratios",
    ),
    "rope without groups": (
        lambda c: c["text_config"].update(rope_parameters={"rope_theta": 1}),
        "rope_parameters",
    ),
    "rope group is a number": (
        lambda c: c["text_config"].update(rope_parameters={"main": 1, "compress": 2}),
        "rope_parameters",
    ),
    "rope is null": (lambda c: c["text_config"].update(rope_parameters=None), "rope_parameters"),
    "endless drafts": (
        lambda c: c["text_config"].update(num_nextn_predict_layers=2**40),
        "text_config.",
    ),
    "no main theta": (
        lambda c: c["text_config"].update(
            rope_parameters={"main": {}, "compress": {"rope_theta": 160000}}
        ),
        "rope_theta",
    ),
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_what_cannot_be_translated(released_json: Json, case: str) -> None:
    """N03: half of a new spelling is an error that names it, not a crash and not a guess."""
    edit, key = INCOMPLETE[case]
    layer_types(released_json)
    for name in ("compress_ratios", "rope_theta", "rope_scaling"):
        if name == "compress_ratios" or "rope" in case or "theta" in case:
            drop(released_json, f"text_config.{name}")
    edit(released_json)
    with pytest.raises(ConfigError) as caught:
        parse_model_config(released_json)
    assert key in caught.value.where
    assert caught.value.hint
