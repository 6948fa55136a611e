"""`deepinfer bench rank`: what one rank of the released model computes in a step, on one GPU.

A network of the released sizes with random weights holds the rank's share of the experts. Under
expert parallelism a rank's experts get rows from all ranks, on average as many as its own rows
choose: so every row's choices are replaced by local experts, evenly. The exchange itself, the draft
module and Engram's tables (rows are made up) are not part of it.
"""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from deepinfer.bench.steps import Case, make_worker, step_plan
from deepinfer.config import model as model_config
from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.model.network import Network
from deepinfer.worker.build import build_dummy
from deepinfer.worker.follow import follow
from deepinfer.worker.worker import Worker

RELEASED = Path(model_config.__file__).with_name("released.json")
_REPLAYS = 10
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
    "norms and cache rows": ("_norm_kernel", "_encode_kernel", "pool"),
}


def released_network(num_ranks: int) -> Network:
    """The released model with share 0 of `num_ranks` of the experts, evenly visited."""
    config = model_config.parse_model_config(json.loads(RELEASED.read_text(encoding="utf-8")))
    share = config.n_routed_experts // num_ranks
    kernels = _evenly(load_kernels("triton"), share)
    token_map = [i % config.engram_compressed_vocab_size for i in range(config.vocab_size)]
    return build_dummy(config, token_map, kernels, expert_shard=(0, num_ranks), device="cuda")


def _evenly(kernels: KernelSet, num_local: int) -> KernelSet:
    """The router runs, and its choices are replaced: row t takes the local experts 6 t and so on,
    round and round."""

    def route(logits: Tensor, bias: Tensor, topk: int, scale: float) -> tuple[Tensor, Tensor]:
        ids, weights = kernels.route(logits, bias, topk, scale)
        place = torch.arange(ids.numel(), device=ids.device) % num_local
        return place.view_as(ids).sort(-1).values, weights

    return replace(kernels, route=route)


@dataclass(frozen=True)
class Taken:
    """ms: of a step, the median. parts: of one step, milliseconds by part of a layer."""

    ms: float
    parts: dict[str, float]
    launches: int


def decode(network: Network, case: Case) -> Taken:
    """A step of `case` with everything known, captured in a CUDA graph."""
    worker = make_worker(network, case, "cuda")
    step = _static_step(worker, case)
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(_REPLAYS):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        graph.replay()
        torch.cuda.synchronize()
    parts: Counter[str] = Counter()
    for event in seen.events():
        parts[_part(event.name)] += event.device_time / 1e3
    return Taken(float(statistics.median(times)), dict(parts.most_common()), len(seen.events()))


def _static_step(worker: Worker, case: Case) -> Callable[[], Any]:
    """Rows through all layers, and the likeliest token of each, from tensors that stay in place."""
    plan = step_plan(worker.network, case)
    starts, token_ids = follow(plan, None, None, worker.device)
    index = worker._index(plan, starts)
    batch = worker._batch(token_ids, worker._lookback(token_ids, index), index)

    def step() -> Tensor:
        with torch.inference_mode():
            hidden = worker.network.run(batch, worker._store(index))
            best: Tensor = worker.network.head(hidden.final).argmax(-1)
        return best

    return step


def _part(name: str) -> str:
    for part, words in _PARTS.items():
        if any(word in name for word in words):
            return part
    return "the rest"


def rank_lines(num_ranks: int, case: Case) -> Iterator[str]:
    """What a step takes, and where it goes."""
    gpu = torch.cuda.get_device_properties(0)
    yield (
        f"{gpu.name}, torch {torch.__version__}: one rank of {num_ranks}, random weights, no "
        "expert traffic, no draft module"
    )
    taken = decode(released_network(num_ranks), case)
    # Of a token's row one token comes, of a draft's as many as are accepted of it.
    tokens = 1 + _ACCEPTED * (case.num_rows - 1)
    yield (
        f"{case.batch} requests of {case.context:,} tokens, {case.num_rows} rows each: "
        f"{taken.ms:.2f} ms a step, {taken.launches} kernels, "
        f"{case.batch * tokens / taken.ms * 1e3:,.0f} tokens/s at {tokens:.2f} of a request"
    )
    for part, ms in taken.parts.items():
        yield f"  {part:24}{ms:9.3f} ms {100 * ms / taken.ms:6.1f} %"
