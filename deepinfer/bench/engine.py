"""Steps of the engine against the bare matrix products of the same steps.

Both run in turn, so that whatever else the machine does meets both alike. Knows the worker; knows
neither the scheduler nor texts.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from deepinfer.bench.products import record_products, run_products
from deepinfer.bench.steps import Case, Step, make_step
from deepinfer.model.network import Network

CASES = (
    *(Case(batch, context) for context in (512, 4096) for batch in (1, 8, 32)),
    Case(1, 0, num_rows=512),
)
_NUM_WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class StepTime:
    """Medians, and in brackets of the table the best, of one case in milliseconds."""

    case: Case
    num_threads: int
    num_products: int
    step_ms: float
    best_step_ms: float
    bare_ms: float
    best_bare_ms: float

    @property
    def ratio(self) -> float:
        """How many times the bare products the step takes."""
        return self.step_ms / self.bare_ms

    @property
    def rows_per_s(self) -> float:
        """Rows of the step a second."""
        return 1000 * self.case.batch * self.case.num_rows / self.step_ms


def bench_engine(
    network: Network, cases: Sequence[Case] = CASES, *, num_threads: int, num_repeats: int
) -> Iterator[StepTime]:
    """Time each case with so many threads, as soon as it is asked for. Sets torch's threads."""
    torch.set_num_threads(num_threads)
    for case in cases:
        step = make_step(network, case)
        for _ in range(_NUM_WARM_UPS):
            step()
        products = record_products(network, step)
        bare = partial(run_products, products)
        steps: list[float] = []
        bares: list[float] = []
        for _ in range(num_repeats):
            steps.append(milliseconds(step))
            bares.append(milliseconds(bare))
        yield StepTime(
            case=case,
            num_threads=num_threads,
            num_products=len(products),
            step_ms=median(steps),
            best_step_ms=min(steps),
            bare_ms=median(bares),
            best_bare_ms=min(bares),
        )


def growth(times: Sequence[StepTime], batch: int) -> float | None:
    """Time of a decode step of `batch` at the longest context over that at the shortest; None if
    they are one.
    """
    own = [t for t in times if t.case.batch == batch and t.case.num_rows == 1]
    own.sort(key=lambda t: t.case.context)
    if len(own) < 2:
        return None
    return own[-1].step_ms / own[0].step_ms


def step_lines(times: Iterator[StepTime]) -> Iterator[str]:
    """A table, line by line as the times come in."""
    yield (
        f"{'step':22}{'context':>8}{'threads':>8}{'step ms':>9}{'(best)':>9}{'bare ms':>9}"
        f"{'(best)':>9}{'ratio':>7}{'rows/s':>9}"
    )
    seen = []
    for t in times:
        seen.append(t)
        yield (
            f"{t.case.words:22}{t.case.context:>8,}{t.num_threads:>8}{t.step_ms:>9.1f}"
            f"{t.best_step_ms:>9.1f}{t.bare_ms:>9.1f}{t.best_bare_ms:>9.1f}{t.ratio:>7.2f}"
            f"{t.rows_per_s:>9.0f}"
        )
    for batch in sorted({t.case.batch for t in seen}):
        times_longer = growth(seen, batch)
        if times_longer is not None:
            yield f"longest context over shortest, batch {batch}: {times_longer:.2f} times"


def milliseconds(run: Step) -> float:
    """How long one run takes."""
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start)
