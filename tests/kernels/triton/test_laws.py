"""The laws of the engine on a GPU with batch_invariant, by the demo model: whatever goes on around
a request, its answer has the same bits. And the worker waits for the device nowhere by itself.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.engine.engine import Engine
from deepinfer.engine.grammars import Grammars
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.tokenizer.tokenizer import load_tokenizer
from deepinfer.worker.graphs import record_graph
from tests.kernels.triton.networks import triton_network
from tests.laws.ahead import Small
from tests.laws.ahead_grammars import compiled, reading_so_args
from tests.laws.engines import Drafts, Job, make_engine, run_jobs
from tests.laws.networks import open_source
from tests.laws.test_engine import some_ids
from tests.laws.test_no_waiting_on_device import ASKS, CALLS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("needs_gpu")]

DEMO = Path(__file__).parents[3] / "models" / "demo"
# Shorter and longer than a window, a block, and what is split; pairs begin alike. Four go on into a
# next block.
LENGTHS = (5, 40, 120, 125, 250, 255, 515, 700)
JOBS = [
    Job(
        some_ids(n // 2, LENGTHS[n]),
        SamplingParams(**ask, seed=n, max_tokens=24),
        arrival=n // 3,
    )
    for n, ask in enumerate(ASKS)
]
WAYS: dict[str, dict[str, Any]] = {
    "chunks": {"num_rows": 24},
    "preempted": {"num_blocks": 6},
    "drafts": {"drafts": Drafts(3), "is_ahead": True},
    "drafts by confidence, chunks": {"drafts": Drafts(5, "confidence"), "num_rows": 100},
    "ahead": {"is_ahead": True},
    "prefix": {"prefix": "exact", "is_ahead": True},
    "prefix, drafts, preempted": {"prefix": "exact", "drafts": Drafts(4), "num_blocks": 9},
    "graphs": {"is_recorded": True},
    "graphs, drafts, ahead": {"is_recorded": True, "drafts": Drafts(3), "is_ahead": True},
    "graphs, drafts by confidence": {"is_recorded": True, "drafts": Drafts(5, "confidence")},
}


@pytest.fixture(scope="module")
def demo(device: str, needs_gpu: None) -> Small:
    """With kernels that no batch changes."""
    source = open_source(DEMO)
    network = triton_network(source, device, is_invariant=True)
    return Small(source, network, load_tokenizer(DEMO, source.config))


@pytest.fixture(scope="module")
def grammars(demo: Small) -> Iterator[Callable[[], Grammars]]:
    with compiled(demo) as new:
        yield new


@pytest.fixture(scope="module")
def make(demo: Small, grammars: Callable[[], Grammars]) -> Callable[..., Engine]:
    def one(**sizes: Any) -> Engine:
        options = {"num_blocks": 64, "max_model_len": 768, "kept_as": "packed"} | sizes
        options["record"] = record_graph() if options.pop("is_recorded", False) else None
        return reading_so_args(make_engine(demo.network, grammars=grammars(), **options))

    return one


@pytest.fixture(scope="module")
def plain(demo: Small, make: Callable[..., Engine]) -> list[RequestOutput]:
    return run_jobs(make(), demo.tokenizer, JOBS)


@pytest.mark.parametrize("way", WAYS)
def test_same_bits(
    way: str, demo: Small, make: Callable[..., Engine], plain: list[RequestOutput]
) -> None:
    """A user's answer depends on who else is served, or on how much room there is."""
    engine = make(**WAYS[way])
    try:
        for _ in range(2 if "prefix" in way else 1):
            found = run_jobs(engine, demo.tokenizer, JOBS)
            assert [one.outputs for one in found] == [one.outputs for one in plain]
            assert [one.prompt_logprobs for one in found] == [one.prompt_logprobs for one in plain]
        preempted = engine.scheduler.counters.num_preemptions
        assert (preempted > 0) == ("num_blocks" in WAYS[way])
    finally:
        engine.close()


def test_each_alone(demo: Small, make: Callable[..., Engine], plain: list[RequestOutput]) -> None:
    """The same of no neighbours at all."""
    engine = make()
    for job, expected in zip(JOBS, plain, strict=True):
        (found,) = run_jobs(engine, demo.tokenizer, [Job(job.prompt, job.params)])
        assert found.outputs == expected.outputs


@pytest.mark.parametrize("way", WAYS)
def test_nothing_waits(
    way: str, demo: Small, make: Callable[..., Engine], plain: list[RequestOutput]
) -> None:
    """The host waits for a step that it has just launched: the device then idles after it."""
    # Not ahead: the mode is the process's, and results are waited for in another thread then.
    engine = make(**{**WAYS[way], "is_ahead": False})
    for name in CALLS:
        setattr(engine.worker, name, _refusing_to_wait(getattr(engine.worker, name)))
    found = run_jobs(engine, demo.tokenizer, JOBS)
    assert [one.outputs for one in found] == [one.outputs for one in plain]


def _refusing_to_wait(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def guarded(plan: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return call(plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return guarded
