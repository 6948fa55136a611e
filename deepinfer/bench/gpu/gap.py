"""`deepinfer bench gap`: how long a GPU waits for the host between steps of the engine.

The engine decodes on one rank of the released model (`rank`), requests all at once, plain ones. Its
time is the wall's; how long the device was busy is what torch's profiler saw of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from deepinfer.bench.gpu.rank import released_network
from deepinfer.bench.gpu.timing import idle_share, kernels_of
from deepinfer.bench.offline import random_prompts
from deepinfer.config.engine import EngineArgs, resolve
from deepinfer.engine.drafting import Drafting
from deepinfer.engine.engine import Engine
from deepinfer.engine.machine import this_machine
from deepinfer.engine.parts import lay_out, make_scheduler, make_worker
from deepinfer.sampling_params import SamplingParams

_PROMPT_LEN = 96  # no block is begun while steps are counted
_WARM_UPS, _TIMED, _PROFILED = 12, 16, 8


@dataclass(frozen=True)
class Gap:
    """Of a step of the engine, milliseconds; the share of them in which the device had nothing to
    do; and how many kernels it ran."""

    ms: float
    idle: float
    launches: int


def gap_lines(num_ranks: int, batch: int, num_drafts: int) -> Iterator[str]:
    """With and without asynchronous stepping and CUDA graphs."""
    network = released_network(num_ranks)
    gpu = torch.cuda.get_device_properties(0)
    yield (
        f"{gpu.name}, torch {torch.__version__}: {batch} requests, {num_drafts} drafts each, on "
        f"one rank of {num_ranks}, random weights"
    )
    for words, is_ahead, is_eager in (
        ("ahead, graphs", True, False),
        ("in turn, graphs", False, False),
        ("ahead, op by op", True, True),
    ):
        gap = measure(network, batch, num_drafts, is_ahead=is_ahead, is_eager=is_eager)
        yield (
            f"  {words:18}{gap.ms:9.2f} ms a step, the device idle for {gap.idle:6.1%}, "
            f"{gap.launches} kernels"
        )


def measure(network: Any, batch: int, num_drafts: int, *, is_ahead: bool, is_eager: bool) -> Gap:
    """Decode steps of `batch` requests; drafts of random weights are all refused."""
    config = network.setup.config
    args = EngineArgs(
        device="cuda",
        max_num_seqs=batch,
        max_model_len=4 * _PROMPT_LEN,
        draft_schedule="fixed" if num_drafts else "off",
        num_drafts=num_drafts or None,
        enforce_eager=is_eager,
    )
    options = resolve(args, config, this_machine("cuda"))
    options, sizes = lay_out(config, options, network.kernels.storage)
    engine = Engine(
        make_scheduler(options, sizes),
        make_worker(network, options, sizes),
        [config.eos_token_id],
        drafting=Drafting(options.num_drafts, options.accept),
        is_ahead=is_ahead,
    )
    params = SamplingParams(temperature=0, max_tokens=2 * _PROMPT_LEN, ignore_eos=True)
    try:
        for number, prompt in enumerate(random_prompts(config, batch, _PROMPT_LEN, 0)):
            engine.submit(str(number), prompt, params)
        waiting = set(range(batch))
        while waiting:
            waiting -= {int(delta.request_id) for delta in engine.step()}
        _steps(engine, _WARM_UPS)
        start = perf_counter()
        _steps(engine, _TIMED)
        wall_s = perf_counter() - start
        kernels_of(
            lambda: _steps(engine, 1)
        )  # at its first use the profiler keeps the device waiting
        kernels = kernels_of(lambda: _steps(engine, _PROFILED))
    finally:
        engine.close()
    spans = [span for _, span in kernels]
    return Gap(1e3 * wall_s / _TIMED, idle_share(spans), len(spans) // _PROFILED)


def _steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()
