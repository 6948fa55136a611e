"""No hidden synchronisation in device code: between launch and result nothing looks at a value.

The worker's three calls run under a guard, in an engine that does all that an engine can. Ops of
the kernel set are the backend's business, but for `pick`: the reference's runs on any device, and
only its short cut is the CPU's.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer.engine.engine import Engine
from deepinfer.engine.grammars import Grammars
from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.reference import pick
from deepinfer.model.engram import ResidentTable
from deepinfer.model.network import Network
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.worker import worker as worker_module
from deepinfer.worker.drafter import Drafter
from tests.laws.ahead import Small, around, make_small
from tests.laws.ahead_grammars import SO_ARGS, compiled, reading_so_args
from tests.laws.engines import Drafts, Job, make_engine, run_jobs
from tests.laws.guard import Waited, guarded, unguarded_kernels, watching
from tests.laws.test_engine import KEEP, some_ids

CALLS = ("launch", "start_sample", "start_draft")
ASKS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 3, "prompt_logprobs": 2},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
    {"temperature": 1.5, "min_p": 0.02, "logprobs": True},
    {"temperature": 1.0, "repetition_penalty": 1.7, "presence_penalty": 0.4, "n": 2},
    {"temperature": 1.0, "frequency_penalty": -0.7, "logit_bias": {7: 4.0, 11: -100}},
    {"temperature": 1.0, "golden_token_ids": [5, -1, 9], "stop_token_ids": [8, 9], "min_tokens": 4},
    {"temperature": 1.0, "so_args": SO_ARGS[0]},
    {"temperature": 0, "so_args": SO_ARGS[1], "logprobs": 1},
]
JOBS = [
    Job(some_ids(n, 7 + 6 * n), SamplingParams(**ask, seed=n, max_tokens=6), arrival=n // 3)
    for n, ask in enumerate(ASKS)
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def network(small: Small) -> Network:
    """Engram's tables are in the device's memory: one that is on disk is looked up by the host."""
    kernels = replace(unguarded_kernels(load_kernels()), pick=pick.pick)
    network = small.source.network("fp32", kernels)
    for plan, layer in zip(network.plans, network.layers, strict=True):
        if plan.engram_id is not None:
            table = layer.engram.table
            layer.engram.table = ResidentTable(table.rows(torch.arange(table.height)))
    return network


@pytest.fixture(scope="module")
def grammars(small: Small) -> Iterator[Callable[[], Grammars]]:
    with compiled(small) as new:
        yield new


@pytest.fixture(autouse=True)
def no_short_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other devices there is none."""
    monkeypatch.setattr(pick, "_few_places", lambda kept: None)


def run(engine: Engine, small: Small, *, is_guarded: bool) -> list[RequestOutput]:
    try:
        if not is_guarded:
            return run_jobs(reading_so_args(engine), small.tokenizer, JOBS)
        for name in CALLS:
            setattr(engine.worker, name, guarded(getattr(engine.worker, name)))
        with watching():
            return run_jobs(reading_so_args(engine), small.tokenizer, JOBS)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("drafts", "sizes"),
    [
        (Drafts(), {}),
        (Drafts(3), {"num_rows": 10}),
        (Drafts(5, accept="rejection"), {"keep_tokens": KEEP}),
        (Drafts(2, "confidence", "rejection"), {"num_rows": 16, "keep_tokens": KEEP}),
    ],
    ids=["no drafts", "coupled, chunks", "rejection, replay", "confidence"],
)
@pytest.mark.parametrize("is_ahead", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_device_code_does_not_wait(
    small: Small,
    network: Network,
    grammars: Callable[[], Grammars],
    drafts: Drafts,
    sizes: dict[str, Any],
    is_ahead: bool,
) -> None:
    """A look at a value, or a copy that waits, makes the host wait for all that was launched; and
    what stands for the CPU's ways gives other answers."""

    def make() -> Engine:
        options: Any = {"drafts": drafts, "is_ahead": is_ahead, "grammars": grammars()} | sizes
        return make_engine(network, **options)

    expected = run(make(), small, is_guarded=False)
    assert run(make(), small, is_guarded=True) == expected


# ---- whether the guard sees it -------------------------------------------------------------------

# Of int64 [n]: ways to look at a value, or to copy and wait.
WAYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x[:1].sum().item(),
    "int": lambda x: int(x.sum()),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool((x > 0).any()),
    "if": lambda x: 1 if x.sum() else 0,
    "index": lambda x: list(range(9))[x.sum() * 0],
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "to like": lambda x: x.to(x),
    "made there": lambda x: torch.tensor([1, 2], device=x.device),
    "in": lambda x: 3 in x,
    "mask": lambda x: x[x > 0],
    "mask set": lambda x: x.clone().__setitem__(x > 0, x[:1]),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x.double(), x.double()),
    "bincount": lambda x: x.clamp_min(0).bincount(),
    "repeat": lambda x: x.repeat_interleave(x.clamp(1, 2)),
    "print": lambda x: f"{x}",
}
# Functions of device code, each of one of the calls.
PLACES: dict[str, tuple[Any, str]] = {
    "launch": (worker_module, "follow"),
    "start_sample": (worker_module, "take_sample"),
    "start_draft": (Drafter, "_confidence"),
}


def spoilt(place: str, way: Callable[[torch.Tensor], Any]) -> pytest.MonkeyPatch:
    """Device code that also looks at a value there, until `undo`."""
    patch = pytest.MonkeyPatch()
    owner, name = PLACES[place]
    patch.setattr(owner, name, getattr(owner, name))  # to be put back

    def function(inner: Any, *args: Any) -> Any:
        way(torch.arange(5))
        return inner(*args)

    around(owner, name, function)
    return patch


def is_seen(small: Small, network: Network, place: str, way: Any) -> bool:
    engine = make_engine(network, drafts=Drafts(2), is_ahead=True)
    for name in CALLS:
        setattr(engine.worker, name, guarded(getattr(engine.worker, name)))
    patch = spoilt(place, way)
    try:
        with watching():
            run_jobs(engine, small.tokenizer, JOBS[:1])
    except Waited:
        return True
    finally:
        patch.undo()
        engine.close()
    return False


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_wait_is_seen(small: Small, network: Network, way: str) -> None:
    """The test above holds whatever device code does."""
    assert is_seen(small, network, "launch", WAYS[way])


@pytest.mark.parametrize("way", ["item", "mask", "cpu"])
@pytest.mark.parametrize("place", PLACES)
def test_each_call_is_watched(small: Small, network: Network, place: str, way: str) -> None:
    """The guard is off in one of the calls."""
    assert is_seen(small, network, place, WAYS[way])


def test_what_does_not_wait_is_let_through(small: Small, network: Network) -> None:
    """The guard raises at everything, so that the tests before this one say nothing."""

    def harmless(x: torch.Tensor) -> Any:
        chosen = torch.where(x > 0, x, 0)[torch.tensor([0, 1])]
        return chosen.to(torch.float64), x.repeat_interleave(2), x.clone().index_put_((x,), x)

    for place in PLACES:
        assert not is_seen(small, network, place, harmless)
