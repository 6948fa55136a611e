"""Translates the newer spelling of config.json, as the transformers library writes it, to the
released one.

`layer_types` with `compress_rates` stands for `compress_ratios`; `rope_parameters` for
`rope_theta`, `compress_rope_theta` and `rope_scaling`; `torch_dtype` for `dtype`; `type` for
`rope_type`; a list of end tokens for one; a top-level `expert_dtype` belongs into
`quantization_config`. Both spellings may stand side by side when they agree; a contradiction is an
error. Values are not checked here.
"""

from typing import Any

from deepinfer.errors import ConfigError

WINDOW_LAYER_TYPES = ("sliding_attention",)


def to_released_spelling(raw: dict[str, Any]) -> dict[str, Any]:
    """A copy of the parsed config.json with every newer key replaced by the released one.

    Raises ConfigError when two spellings of one fact differ or a new key cannot be translated.
    """
    top = dict(raw)
    if "torch_dtype" in top:
        _merge(top, "dtype", top.pop("torch_dtype"), "torch_dtype", "")
    if "expert_dtype" in top and isinstance(top.get("quantization_config"), dict):
        quantization = dict(top["quantization_config"])
        _merge(
            quantization,
            "expert_dtype",
            top.pop("expert_dtype"),
            "expert_dtype",
            "quantization_config.",
        )
        top["quantization_config"] = quantization
    if isinstance(top.get("eos_token_id"), list) and top["eos_token_id"]:
        _merge(top, "all_eos_token_ids", top["eos_token_id"], "eos_token_id", "")
        top["eos_token_id"] = top["all_eos_token_ids"][0]
    if isinstance(top.get("text_config"), dict):
        top["text_config"] = _text(dict(top["text_config"]))
    return top


def _text(text: dict[str, Any]) -> dict[str, Any]:
    if "layer_types" in text or "compress_rates" in text:
        names, rates = text.pop("layer_types", None), text.pop("compress_rates", None)
        ratios = _ratios(names, rates, text.get("num_nextn_predict_layers", 0))
        _merge(text, "compress_ratios", ratios, "layer_types", "text_config.")
    if "rope_parameters" in text:
        for key, value in _rope(text.pop("rope_parameters")).items():
            _merge(text, key, value, "rope_parameters", "text_config.")
    scaling = text.get("rope_scaling")
    if isinstance(scaling, dict) and "type" in scaling:
        scaling = dict(scaling)
        _merge(scaling, "rope_type", scaling.pop("type"), "type", "text_config.rope_scaling.")
        text["rope_scaling"] = scaling
    return text


def _ratios(names: object, rates: object, num_draft_layers: object) -> list[int]:
    """One ratio a layer. Window layers need no entry in the table of rates; draft blocks follow as
    0.
    """
    where = "config.json: text_config.layer_types"
    if not isinstance(names, list) or not isinstance(rates, dict):
        raise ConfigError(
            "layer_types and compress_rates belong together: names, and a table of rates",
            where=where,
            hint="give both, or compress_ratios alone",
        )
    unknown = [n for n in names if not isinstance(n, str) or n not in (*WINDOW_LAYER_TYPES, *rates)]
    if unknown:
        raise ConfigError(
            f"layer type {unknown[0]!r} has no entry in compress_rates",
            where=where,
            hint=f"only {WINDOW_LAYER_TYPES[0]!r} layers have no rate",
        )
    # A count that cannot be right is refused by name later; here it must not fill the memory.
    drafts = num_draft_layers if isinstance(num_draft_layers, int) else 0
    return [rates.get(name, 0) for name in names] + [0] * min(max(drafts, 0), 4096)


def _rope(parameters: object) -> dict[str, Any]:
    """`{"main": {...}, "compress": {...}}` to the three released keys."""
    where = "config.json: text_config.rope_parameters"
    if not isinstance(parameters, dict) or set(parameters) != {"main", "compress"}:
        raise ConfigError(
            "expected one group of settings named 'main' and one named 'compress'",
            where=where,
            hint="or use rope_theta, compress_rope_theta and rope_scaling",
        )
    main, compress = parameters["main"], parameters["compress"]
    if not isinstance(main, dict) or not isinstance(compress, dict):
        raise ConfigError("both groups must be objects", where=where, hint="see rope_scaling")
    # The rotated share of a head follows from qk_rope_head_dim; the newer form repeats it here.
    compress = {k: v for k, v in compress.items() if k != "partial_rotary_factor"}
    translated = {
        "rope_theta": main.get("rope_theta"),
        "compress_rope_theta": compress.pop("rope_theta", None),
    }
    translated["rope_scaling"] = compress
    return translated


def _merge(into: dict[str, Any], key: str, value: object, alias: str, prefix: str) -> None:
    if key in into and into[key] != value:
        raise ConfigError(
            f"{key} is {into[key]!r} but {alias} says {value!r}",
            where=f"config.json: {prefix}{key}",
            hint="one fact is spelled in two ways and they differ; remove the wrong one",
        )
    into[key] = value
