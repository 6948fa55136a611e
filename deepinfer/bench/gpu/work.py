"""What a step must move and compute, by part of a layer: sizes alone, for any GPU.

Bytes are those that one perfect kernel after another would move, weights as they are kept.
"""

from collections import defaultdict
from dataclasses import dataclass

from torch import Tensor

from deepinfer.bench.steps import Case
from deepinfer.cache.layout import vector_bytes
from deepinfer.config.layers import LayerPlan
from deepinfer.config.model import ModelConfig
from deepinfer.model.basic import products
from deepinfer.model.moe import Experts
from deepinfer.model.network import Network

_SCORE_BYTES = 2  # written by the scores, read by the selection


@dataclass(frozen=True)
class Work:
    """Of one part of the layers in one step."""

    num_bytes: float
    num_flops: float

    def __add__(self, other: "Work") -> "Work":
        return Work(self.num_bytes + other.num_bytes, self.num_flops + other.num_flops)

    def floor_ms(self, bytes_per_s: float, flops_per_s: float) -> float:
        """No kernel is faster: what takes longer, to move or to compute."""
        return 1e3 * max(self.num_bytes / bytes_per_s, self.num_flops / flops_per_s)


def work_of(network: Network, case: Case, num_kept: int | None = None) -> dict[str, Work]:
    """By part, of a step of `case`. num_kept: rows of each sequence that the decoder half runs;
    None is all. Every expert is visited if the rows choose as many pairs as there are experts."""
    config, parts = network.setup.config, defaultdict[str, Work](lambda: Work(0, 0))
    all_rows = case.batch * case.num_rows
    kept_rows = all_rows if num_kept is None else case.batch * num_kept
    for plan, layer in zip(network.plans, network.layers, strict=True):
        rows = kept_rows if plan.in_decoder else all_rows
        for _, weight in products(layer):
            parts["products"] += _product(weight, rows)
        for module in layer.modules():
            if isinstance(module, Experts):
                parts["experts"] += _experts(config, module, rows)
        moved = 2 * rows * config.hidden_size * 2 * (2 * config.hc_mult + 2)
        parts["hyper-connections"] += Work(moved, 0)
        parts["attention"] += _attention(config, rows, config.index_topk if plan.ratio else 0)
        if plan.owns_index:
            parts["index scores"] += _scores(config, plan, case, rows)
    parts["products"] += _product(network.head.weight, kept_rows)
    return dict(parts)


def _product(weight: Tensor, rows: int) -> Work:
    return Work(2 * weight.numel(), 2 * rows * weight.numel())


def _experts(config: ModelConfig, experts: Experts, rows: int) -> Work:
    each = sum(one.nbytes for one in experts.parameters()) / experts.num_experts
    pairs = rows * config.num_experts_per_tok
    flops = 6 * pairs * config.hidden_size * config.moe_intermediate_size
    return Work(each * min(pairs, experts.num_experts), flops)


def _attention(config: ModelConfig, rows: int, num_entries: int) -> Work:
    vector = vector_bytes(config, "packed")
    heads = config.num_attention_heads * config.head_dim
    kept = config.sliding_window * vector.window + num_entries * vector.entry
    flops = 4 * rows * heads * (config.sliding_window + num_entries)
    return Work(rows * (kept + 4 * heads), flops)


def _scores(config: ModelConfig, plan: LayerPlan, case: Case, rows: int) -> Work:
    """Keys are read once a sequence; those of candidates once a row. Rows see as many as the one in
    the middle."""
    vector = vector_bytes(config, "packed")
    entries = (case.context + (case.num_rows + 1) // 2) // plan.ratio
    readers = case.batch
    if plan.candidate_source is not None:
        entries = min(entries, config.candidate_topk_blocks * config.candidate_block_size)
        readers = rows
    width = config.index_n_heads * config.index_head_dim
    moved = readers * entries * vector.index_key + 2 * _SCORE_BYTES * rows * entries
    return Work(moved, 2 * rows * entries * width)
