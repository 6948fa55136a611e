"""The layer schedule against the released table (spec 1.1), and its rules at other shapes."""

from typing import Any

import pytest

from deepinfer.config.layers import Kind, LayerPlan, plan_draft_layers, plan_layers
from deepinfer.config.model import ModelConfig, parse_model_config

# Spec 1.1: first and last layer, kind, ratio, KV source, index source, candidate source.
RELEASED = """
0-1 window 0 - - -
2-2 full 2 2 2 -
3-7 reuse 2 2 2 -
8-8 full 2 8 8 -
9-13 reuse 2 8 8 -
14-14 full 2 14 14 -
15-19 reuse 2 14 14 -
20-20 full 1 20 20 -
21-23 reuse 1 20 20 -
24-24 reindex 1 20 24 20
25-27 reuse 1 20 24 -
28-28 reindex 1 20 28 20
29-31 reuse 1 20 28 -
32-32 reindex 1 20 32 20
33-35 reuse 1 20 32 -
36-36 reindex 1 20 36 20
37-39 reuse 1 20 36 -
""".split("\n")[1:-1]


@pytest.mark.parametrize("line", RELEASED)
def test_released_schedule(released_config: ModelConfig, line: str) -> None:
    """Guards against a layer that reads another's entries or selection."""
    span, kind, ratio, *sources = line.split()
    first, last = map(int, span.split("-"))
    expected = [None if s == "-" else int(s) for s in sources]
    plans = plan_layers(released_config)
    for layer_id in range(first, last + 1):
        plan = plans[layer_id]
        assert plan.layer_id == layer_id
        assert (plan.kind.value, plan.ratio) == (kind, int(ratio))
        assert [plan.kv_source, plan.index_source, plan.candidate_source] == expected


def test_released_extras(released_config: ModelConfig) -> None:
    """Guards against Engram, taps, candidates or the decoder half in the wrong layers."""
    plans = plan_layers(released_config)
    assert len(plans) == 40
    assert {p.layer_id: p.engram_id for p in plans if p.engram_id is not None} == {1: 0, 14: 1}
    assert {p.layer_id: p.tap_id for p in plans if p.tap_id is not None} == {37: 0, 38: 1, 39: 2}
    assert [p.layer_id for p in plans if p.makes_candidates] == [20]
    assert [p.layer_id for p in plans if p.in_decoder] == list(range(20, 40))
    assert [p.layer_id for p in plans if p.owns_kv] == [2, 8, 14, 20]
    assert [p.layer_id for p in plans if p.owns_index] == [2, 8, 14, 20, 24, 28, 32, 36]


def test_draft_blocks(released_config: ModelConfig) -> None:
    """Guards against drafts that take part in the backbone's sharing (spec 11.1)."""
    assert plan_draft_layers(released_config) == tuple(LayerPlan(i, Kind.WINDOW) for i in range(3))


def planned(released_json: dict[str, Any], **changes: Any) -> tuple[LayerPlan, ...]:
    released_json["text_config"].update(changes)
    return plan_layers(parse_model_config(released_json))


def test_reindex_before_the_candidates(released_json: dict[str, Any]) -> None:
    """Guards against restricting an index source that precedes the candidate source (spec 7.5)."""
    plans = planned(
        released_json,
        index_source_layer_ids=[2, 5, 8, 14, 20, 24, 28, 32],
        candidate_source_layer_id=24,
    )
    assert (plans[5].kind, plans[5].kv_source, plans[5].candidate_source) == (Kind.REINDEX, 2, None)
    assert plans[24].makes_candidates
    assert plans[24].candidate_source is None
    assert [p.layer_id for p in plans if p.candidate_source == 24] == [28, 32]


def test_a_new_source_clears_the_candidates(released_json: dict[str, Any]) -> None:
    """Guards against blocks chosen among the entries of an older source (spec 7.5)."""
    plans = planned(
        released_json,
        kv_source_layer_ids=[2, 8, 14, 20, 30],
        index_source_layer_ids=[2, 8, 14, 20, 24, 30, 36],
    )
    assert plans[24].candidate_source == 20
    assert plans[30].candidate_source is None
    assert plans[36].candidate_source is None
    assert plans[36].kv_source == 30


def test_without_candidates(released_json: dict[str, Any]) -> None:
    """Guards against a restriction where config.json says null."""
    plans = planned(released_json, candidate_source_layer_id=None)
    assert not [p for p in plans if p.makes_candidates or p.candidate_source is not None]
