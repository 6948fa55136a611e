"""The layer schedule as data: one `LayerPlan` a layer (spec 1.1, 7.5, 7.8).

The only place that does arithmetic on layer numbers. Knows nothing of tensors.
"""

from dataclasses import dataclass, replace
from enum import Enum

from deepinfer.config.model import ModelConfig
from deepinfer.config.option_checks import span
from deepinfer.errors import ConfigError


class Kind(Enum):
    """Beside its window a layer has: nothing, owns KV and index, owns an index, reads both."""

    WINDOW = "window"
    FULL = "full"
    REINDEX = "reindex"
    REUSE = "reuse"


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What one layer computes itself and whose results it reads.

    ratio: tokens an entry stands for; 0 in window layers, which have no entries.
    kv_source, index_source: the layers whose entries and selection it reads (itself in a source).
    candidate_source: the layer whose candidate blocks restrict this layer's own selection, if any.
    makes_candidates: this layer's scores choose the candidate blocks.
    engram_id: which Engram table is added before the layer, if any.
    tap_id: which slice of the draft module's features its input streams are, if any.
    in_decoder: the layer belongs to the decoder half (spec 7.9).
    """

    layer_id: int
    kind: Kind
    ratio: int = 0
    kv_source: int | None = None
    index_source: int | None = None
    candidate_source: int | None = None
    makes_candidates: bool = False
    engram_id: int | None = None
    tap_id: int | None = None
    in_decoder: bool = False

    @property
    def owns_kv(self) -> bool:
        """Compresses entries and their index keys."""
        return self.kind is Kind.FULL

    @property
    def owns_index(self) -> bool:
        """Scores the index keys and selects entries."""
        return self.kind in (Kind.FULL, Kind.REINDEX)


def plan_layers(config: ModelConfig) -> tuple[LayerPlan, ...]:
    """The backbone's schedule, in order, of the layers that are held.

    Example, the released model: layer 24 is kind reindex, ratio 1, kv_source 20, index_source 24,
    candidate_source 20.
    """
    plans: list[LayerPlan] = []
    kv_source: int | None = None
    index_source: int | None = None
    candidates: int | None = None
    for layer_id in range(config.num_hidden_layers):
        ratio = config.compress_ratios[layer_id]
        owns_kv = layer_id in config.kv_source_layer_ids
        owns_index = layer_id in config.index_source_layer_ids
        if owns_kv:
            # New entries: blocks chosen among the old ones mean nothing any more.
            kv_source, candidates = layer_id, None
        if owns_index:
            index_source = layer_id
        plans.append(
            LayerPlan(
                layer_id=layer_id,
                kind=_kind(ratio, owns_kv, owns_index),
                ratio=ratio,
                kv_source=kv_source if ratio else None,
                index_source=index_source if ratio else None,
                candidate_source=candidates if owns_index else None,
                makes_candidates=layer_id == config.candidate_source_layer_id,
                engram_id=_position(config.engram_layer_ids, layer_id),
                tap_id=_position(config.dspark_target_layer_ids, layer_id),
                in_decoder=ratio == 1,
            )
        )
        if layer_id == config.candidate_source_layer_id:
            candidates = layer_id
    first, end = config.held_layers or (0, len(plans))
    return tuple(plans[first:end])


def hold_layers(config: ModelConfig, layers: str | None) -> ModelConfig:
    """The same model with layers "a:b" alone, a to b - 1, to measure one rank of a pipeline: the
    first takes embeddings, the last one's streams go to the head. None holds all.

    There is no draft module then unless all layers that it taps are held. Raises ConfigError for
    other text, and where a layer reads what one outside makes.
    """
    first, end = span("layers", layers, config.num_hidden_layers)
    if layers is None:
        return config
    held = replace(config, held_layers=(first, end))
    for plan in plan_layers(held):
        for source in (plan.kv_source, plan.index_source, plan.candidate_source):
            if source is not None and source < first:
                raise ConfigError(
                    f"found {layers!r}: layer {plan.layer_id} reads what layer {source} makes",
                    where="layers",
                    hint=f"begin at {source} or before, or end at {plan.layer_id} or before",
                )
    if all(first <= tapped < end for tapped in config.dspark_target_layer_ids):
        return held
    return replace(held, num_nextn_predict_layers=0)


def plan_draft_layers(config: ModelConfig) -> tuple[LayerPlan, ...]:
    """The draft module's blocks: window layers that share nothing (spec 11.1)."""
    return tuple(LayerPlan(i, Kind.WINDOW) for i in range(config.num_nextn_predict_layers))


def _kind(ratio: int, owns_kv: bool, owns_index: bool) -> Kind:
    if not ratio:
        return Kind.WINDOW
    if owns_kv:
        return Kind.FULL
    return Kind.REINDEX if owns_index else Kind.REUSE


def _position(ids: tuple[int, ...], layer_id: int) -> int | None:
    return ids.index(layer_id) if layer_id in ids else None
