"""`deepinfer bench rank`: a step of one rank beside what no kernel could undercut. Text or JSON."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from deepinfer.bench.gpu.ceilings import Ceilings, measure_ceilings
from deepinfer.bench.gpu.rank import KEPT_ROWS, is_prompt, released_network, run, tokens_of
from deepinfer.bench.gpu.routing import busiest, choices
from deepinfer.bench.gpu.work import work_of
from deepinfer.bench.steps import Case
from deepinfer.model.network import Network

_PRODUCTS = ("products of cuBLAS", "products of few rows")


def rank_lines(
    num_ranks: int, cases: Sequence[Case], skew: float = 0.0, *, as_json: bool = False
) -> Iterator[str]:
    """What a step of each case takes, and where it goes. skew: as of `choices`. as_json: one object
    a case."""
    gpu, ceilings = torch.cuda.get_device_properties(0), measure_ceilings()
    if not as_json:
        yield (
            f"{gpu.name}, torch {torch.__version__}: one rank of {num_ranks}, random weights, no "
            "expert traffic, no draft module"
        )
        yield (
            f"measured ceilings: {ceilings.bytes_per_s / 1e12:.2f} TB/s read, "
            f"{ceilings.flops_per_s / 1e12:.0f} TFLOP/s bfloat16"
        )
    network = released_network(num_ranks, skew)
    for case in cases:
        record = {**_record(network, case, ceilings), "busiest": _busiest(network, case, skew)}
        if as_json:
            yield json.dumps({"gpu": gpu.name, "ranks": num_ranks, "skew": skew, **record})
        else:
            yield from _lines(record)
        torch.cuda.empty_cache()


def _record(network: Network, case: Case, ceilings: Ceilings) -> dict[str, Any]:
    taken, tokens = run(network, case), tokens_of(case)
    work = work_of(network, case, KEPT_ROWS if is_prompt(case) else None)
    taken_ms = {**taken.parts, "products": sum(taken.parts.get(name, 0.0) for name in _PRODUCTS)}
    parts: dict[str, dict[str, float]] = {part: {"ms": ms} for part, ms in taken_ms.items()}
    for part, one in work.items():
        parts.setdefault(part, {"ms": 0.0}).update(
            gigabytes=one.num_bytes / 1e9,
            teraflops=one.num_flops / 1e12,
            least_ms=one.floor_ms(*ceilings),
        )
    return {
        "requests": case.batch,
        "context": case.context,
        "rows": case.num_rows,
        "ms": taken.ms,
        "least_ms": sum(one.floor_ms(*ceilings) for one in work.values()),
        "kernels": taken.launches,
        "tokens_per_s": case.batch * tokens / taken.ms * 1e3,
        "tokens_per_s_of_a_request": tokens / taken.ms * 1e3,
        "terabytes_per_s": ceilings.bytes_per_s / 1e12,
        "teraflops_per_s": ceilings.flops_per_s / 1e12,
        "parts": parts,
    }


def _busiest(network: Network, case: Case, skew: float) -> float:
    """Rows of the busiest expert, in those of the mean, of a layer that all rows run in."""
    config, (_, num_ranks) = network.setup.config, network.setup.expert_shard
    local = config.n_routed_experts // num_ranks
    ids = choices(case.batch * case.num_rows, config.num_experts_per_tok, local, skew)
    return busiest(ids, local)


def _lines(record: dict[str, Any]) -> Iterator[str]:
    ms = record["ms"]
    yield (
        f"{record['requests']} requests of {record['context']:,} tokens, {record['rows']:,} rows "
        f"each: {ms:.2f} ms a step ({100 * record['least_ms'] / ms:.0f} % of it by the roofline), "
        f"{record['kernels']} kernels, {record['tokens_per_s']:,.0f} tokens/s, "
        f"{record['tokens_per_s_of_a_request']:,.1f} a request; the busiest expert has "
        f"{record['busiest']:.2f} times the rows of the mean"
    )
    for part, one in record["parts"].items():
        line = f"  {part:24}{one['ms']:9.3f} ms {100 * one['ms'] / ms:6.1f} %"
        if "least_ms" in one:
            line += (
                f"{one['gigabytes']:10.2f} GB{one['teraflops']:9.2f} TFLOP, "
                f"at least {one['least_ms']:.3f} ms: "
                f"{100 * one['least_ms'] / max(one['ms'], 1e-9):.0f} %"
            )
        yield line
