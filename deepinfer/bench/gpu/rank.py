"""What one rank of the released model computes in a step, on one GPU: `deepinfer bench rank`.

A network of the released sizes with random weights holds the rank's share of the experts. Under
expert parallelism a rank's experts get rows from all ranks, on average as many as its own rows
choose: so every row's choices are replaced by local experts, evenly or not. The exchange itself,
the draft module and Engram's tables (rows are made up) are not part of it.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.bench.gpu.routing import choices
from deepinfer.bench.gpu.timing import kernels_of, own_times, replay_ms
from deepinfer.bench.steps import Case, make_worker, step_plan
from deepinfer.config.released import released_config
from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.model.network import Network
from deepinfer.sampling.arrays import on_device
from deepinfer.worker.build import build_dummy
from deepinfer.worker.worker import Worker

_MOST_DRAFTED = 8  # a step with more rows of a sequence is a prompt's
KEPT_ROWS = 140  # of a prompt, that its decoder half runs (deepinfer.config.replay)
_ACCEPTED = 0.75  # of the drafts, as in the figures that the release published
# Which part of a layer a kernel belongs to, by what its name contains; the first that fits.
_PARTS = {
    "experts": ("_product", "order", "sort_pairs", "add_pairs", "round_rows"),
    "products of few rows": ("product",),
    "attention": ("attend_kernel", "combine_kernel"),
    "index scores": ("_scores",),
    "selection": ("sieve", "choose", "numbers", "best_of_blocks", "_best"),
    "hyper-connections": ("tile", "finish", "norm_rows"),
    "products of cuBLAS": ("gemm", "nvjet", "cutlass", "gemv", "splitK", "cublas"),
    "norms and cache rows": ("_norm_kernel", "_encode_kernel", "_latents", "pool"),
}
_PRODUCTS = ("products of cuBLAS", "products of few rows")


def released_network(num_ranks: int, skew: float = 0.0) -> Network:
    """The released model with share 0 of `num_ranks` of the experts, visited as `choices` says."""
    config = released_config()
    share = config.n_routed_experts // num_ranks
    kernels = _routed(load_kernels("triton"), share, skew)
    token_map = [i % config.engram_compressed_vocab_size for i in range(config.vocab_size)]
    return build_dummy(config, token_map, kernels, expert_shard=(0, num_ranks), device="cuda")


def _routed(kernels: KernelSet, share: int, skew: float) -> KernelSet:
    """The router runs, and its choices are replaced."""

    @cache  # no part of a step
    def chosen(num_rows: int, topk: int, device: torch.device) -> Tensor:
        return choices(num_rows, topk, share, skew).to(device)

    def route(logits: Tensor, bias: Tensor, topk: int, scale: float) -> tuple[Tensor, Tensor]:
        ids, weights = kernels.route(logits, bias, topk, scale)
        return chosen(*ids.shape, ids.device), weights

    return replace(kernels, route=route)


@dataclass(frozen=True)
class Taken:
    """ms: of a step, the median. parts: of one step, milliseconds by part of a layer
    (`own_times`)."""

    ms: float
    parts: dict[str, float]
    launches: int


def run(network: Network, case: Case) -> Taken:
    """A step of `case` with everything known, captured in a CUDA graph. Of more rows than
    `_MOST_DRAFTED` only the last of each sequence run in the decoder half, as of a prompt."""
    worker = make_worker(network, case, "cuda", is_compact=is_prompt(case))
    step = _static_step(worker, case)
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    ms = replay_ms(graph)
    kernels = kernels_of(graph.replay)
    parts: dict[str, float] = defaultdict(float)
    for (name, _), us in zip(kernels, own_times([span for _, span in kernels]), strict=True):
        parts[_part(name)] += us / 1e3
    return Taken(ms, dict(sorted(parts.items(), key=lambda one: -one[1])), len(kernels))


def _static_step(worker: Worker, case: Case) -> Callable[[], Any]:
    """Rows through all layers, and the likeliest token of those that are sampled, from tensors that
    stay in place."""
    plan = step_plan(worker.network, case)
    if is_prompt(case):
        kept_from = np.full(case.batch, case.context + case.num_rows - KEPT_ROWS, np.int32)
        plan = replace(plan, decoder_starts=kept_from)
    kept_plan, ready = worker.ready(plan)
    sampled = on_device(kept_plan.sample_rows, worker.device, torch.int64)

    def step() -> Tensor:
        with torch.inference_mode():
            hidden = worker.network.run(ready.batch, ready.store, ready.rest)
            final = hidden.final if not is_prompt(case) else hidden.final[sampled]
            best: Tensor = worker.network.head(final).argmax(-1)
        return best

    return step


def is_prompt(case: Case) -> bool:
    """Whether its rows are a prompt's: more than any drafts."""
    return case.num_rows > _MOST_DRAFTED


def _part(name: str) -> str:
    for part, words in _PARTS.items():
        if any(word in name for word in words):
            return part
    return "the rest"


def tokens_of(case: Case) -> float:
    """That a step brings a request: all rows of a prompt; else one, and of drafts what is accepted
    of them."""
    if is_prompt(case):
        return case.num_rows
    return 1 + _ACCEPTED * (case.num_rows - 1)
