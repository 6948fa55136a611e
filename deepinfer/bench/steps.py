"""One step of the worker, ready to be repeated, at a context that nobody had to compute.

The pools hold noise where earlier tokens would have left their keys and values: a step costs the
same, and a context of thousands of tokens costs nothing to reach.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.cache.layout import blocks_for
from deepinfer.engine.continuation import begin, next_rows, prepare
from deepinfer.engine.sample_plan import build_sample_plan
from deepinfer.model.network import Network
from deepinfer.sampling_params import SamplingParams
from deepinfer.step import SamplePlan, StepPlan
from deepinfer.worker.pools import Pools, make_pools
from deepinfer.worker.worker import Worker

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Case:
    """`batch` sequences with `context` tokens behind them run `num_rows` rows each."""

    batch: int
    context: int
    num_rows: int = 1

    @property
    def words(self) -> str:
        """What to call it in a table."""
        if self.num_rows > 1:
            return f"prompt, {self.batch * self.num_rows} rows"
        return f"decode, batch {self.batch}"


def make_step(network: Network, case: Case) -> Step:
    """A greedy step of `case`. Repeating it repeats the very same rows."""
    num_blocks = blocks_for(case.context + case.num_rows)
    config, storage = network.setup.config, network.kernels.storage
    pools = make_pools(config, case.batch * num_blocks, case.batch, storage=storage)
    _fill(pools)
    worker = Worker(network, pools)
    plan, sample_plan = _step_plan(network, case, num_blocks), _greedy(case)

    def step() -> None:
        worker.launch(plan)
        worker.sample(sample_plan)

    return step


def _fill(pools: Pools) -> None:
    generator = torch.Generator().manual_seed(0)
    for part in (pools.window, pools.pending, pools.entries, pools.keys):
        for tensor in part.values():
            tensor.normal_(generator=generator)


def _step_plan(network: Network, case: Case, num_blocks: int) -> StepPlan:
    batch, nothing = case.batch, np.zeros(0, np.int32)
    rng = np.random.default_rng(0)
    token_ids = rng.integers(0, network.setup.config.vocab_size, batch * case.num_rows)
    return StepPlan(
        slot_ids=np.arange(batch, dtype=np.int32),
        num_computed=np.full(batch, case.context, np.int32),
        num_rows=np.full(batch, case.num_rows, np.int32),
        block_tables=np.arange(batch * num_blocks, dtype=np.int32).reshape(batch, num_blocks),
        decoder_starts=np.zeros(batch, np.int32),
        window_starts=np.zeros(batch, np.int32),
        entry_starts=np.zeros(batch, np.int32),
        token_ids=token_ids.astype(np.int32),
        sample_rows=np.arange(1, batch + 1, dtype=np.int32) * case.num_rows - 1,
        score_rows=nothing,
        score_ids=nothing,
    )


def _greedy(case: Case) -> SamplePlan:
    prepared = prepare(SamplingParams(temperature=0.0), seed=0, choice=0, eos_ids=[])
    return build_sample_plan(
        next_rows([begin(prepared, range(case.context + case.num_rows))] * case.batch)
    )
