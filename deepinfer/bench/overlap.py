"""How much of the host's time asynchronous stepping hides behind the device's.

First a stand-in for a device that only sleeps, and a host that is busy after each step, so that
the right answer is known; then a model.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deepinfer.bench.offline import random_prompts
from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.layout import blocks_for
from deepinfer.cache.slots import SlotPool
from deepinfer.config.engine import EngineArgs
from deepinfer.engine.engine import Engine
from deepinfer.engine.loading import load_model
from deepinfer.sampling_params import SamplingParams
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.step import SamplePlan, StepPlan, StepResult

_DEVICE_MS, _SAMPLE_MS, _HOST_MS = 4.0, 1.0, 2.0
_TOY_STEPS = 400
BATCHES = (1, 8, 32)
_MODEL_TOKENS = 128
_PROMPT_LEN = 64
_TRIES = 3


@dataclass(frozen=True)
class Run:
    """Seconds: of all steps, and of the device's calls in them."""

    num_steps: int
    wall_s: float
    device_s: float

    @property
    def step_ms(self) -> float:
        """Milliseconds of a step."""
        return 1000 * self.wall_s / self.num_steps

    @property
    def host_ms(self) -> float:
        """Of a step, what is not the device's."""
        return 1000 * (self.wall_s - self.device_s) / self.num_steps


class SleepingWorker:
    """A device that takes its time and always says 7."""

    device = "cpu"

    def __init__(self) -> None:
        self._num_rows = 0

    def launch(self, plan: StepPlan) -> None:
        """As Worker.launch."""
        time.sleep(_DEVICE_MS / 1000)

    def start_sample(self, plan: SamplePlan) -> Callable[[], StepResult]:
        """As Worker.start_sample."""
        time.sleep(_SAMPLE_MS / 1000)
        num_rows = len(plan.temperature)
        result = StepResult(np.full(num_rows, 7, np.int32), np.zeros(num_rows, np.bool_))
        return lambda: result

    def lose_step(self) -> None:
        """As Worker.lose_step."""


def toy_run(*, is_ahead: bool) -> Run:
    """One request on the sleeping device; after each step the host is busy for a while."""
    longest = 2 * _TOY_STEPS
    bounds = SchedulerConfig(1, 64, longest)
    scheduler = Scheduler(bounds, BlockPool(blocks_for(longest)), SlotPool(1))
    worker: Any = SleepingWorker()
    engine = Engine(scheduler, worker, [0], is_ahead=is_ahead)
    params = SamplingParams(temperature=0, max_tokens=_TOY_STEPS, ignore_eos=True)
    try:
        return _run(engine, [[1]], params, busy_s=_HOST_MS / 1000)
    finally:
        engine.close()


def _run(
    engine: Engine, prompts: list[list[int]], params: SamplingParams, busy_s: float = 0.0
) -> Run:
    for number, prompt in enumerate(prompts):
        engine.submit(str(number), prompt, params)
    # Prompts and their first tokens are not counted.
    waiting = set(range(len(prompts)))
    while waiting:
        waiting -= {int(delta.request_id) for delta in engine.step()}
    times: list[Callable[[], float]] = []
    lane: Any = engine.lane
    timed, lane._timed = lane._timed, _counting(lane._timed, times)
    num_steps, start = 0, time.perf_counter()
    while engine.has_work:
        engine.step()
        num_steps += 1
        end = time.perf_counter() + busy_s
        while time.perf_counter() < end:
            pass
    wall_s = time.perf_counter() - start
    lane._timed = timed
    return Run(num_steps, wall_s, sum(taken_s() for taken_s in times))


def _counting(timed: Callable[..., Any], times: list[Callable[[], float]]) -> Callable[..., Any]:
    def counted(function: Callable[[], Any]) -> Any:
        result, taken_s = timed(function)
        times.append(taken_s)
        return result, taken_s

    return counted


def overlap_lines(model: str | None) -> Iterator[str]:
    """The toy's lines, then the model's."""
    yield (
        f"toy: a device of {_DEVICE_MS + _SAMPLE_MS:.0f} ms a step, a host of {_HOST_MS:.0f} ms"
        " and what the engine takes"
    )
    yield _line("one request", toy_run(is_ahead=False), toy_run(is_ahead=True))
    args = EngineArgs(max_num_seqs=max(BATCHES), draft_schedule="off")
    both = [
        load_model(model, replace(args, async_scheduling=is_ahead)) for is_ahead in (False, True)
    ]
    yield f"{both[0].folder.name}, no drafts, {both[0].options.num_threads} thread"
    params = SamplingParams(temperature=0, max_tokens=_MODEL_TOKENS, ignore_eos=True, logprobs=0)
    for batch in BATCHES:
        prompts = random_prompts(both[0].config, batch, _PROMPT_LEN, batch)
        # The better of a few: a busy neighbour only adds.
        waits, goes_on = (
            min((_run(one.engine, prompts, params) for _ in range(_TRIES)), key=_wall)
            for one in both
        )
        yield _line(f"batch {batch}", waits, goes_on)
    for one in both:
        one.engine.close()


def _wall(run: Run) -> float:
    return run.wall_s


def _line(name: str, waits: Run, goes_on: Run) -> str:
    saved_ms = waits.step_ms - goes_on.step_ms
    return (
        f"  {name:<12} a step {waits.step_ms:7.2f} ms, of which the host {waits.host_ms:5.2f}; "
        f"asynchronous {goes_on.step_ms:7.2f} ms: {saved_ms / waits.host_ms:6.1%} of the host's"
        " time hidden"
    )
