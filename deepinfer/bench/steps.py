"""One step of the worker, ready to be repeated, at a context that nobody had to compute.

The pools hold noise where earlier tokens would have left their keys and values: a step costs the
same, and a context of thousands of tokens costs nothing to reach.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.cache.layout import blocks_for
from deepinfer.config.model import ModelConfig
from deepinfer.engine.continuation import begin, next_rows, prepare
from deepinfer.engine.sample_plan import build_sample_plan
from deepinfer.model.network import Network
from deepinfer.sampling_params import SamplingParams
from deepinfer.step import SamplePlan, StepPlan
from deepinfer.worker.pools import make_pools
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
    worker = make_worker(network, case)
    plan, sample_plan = step_plan(network, case), _greedy(case)

    def step() -> None:
        worker.launch(plan)
        worker.sample(sample_plan)

    return step


def make_worker(
    network: Network, case: Case, device: str = "cpu", *, is_compact: bool = False
) -> Worker:
    """With room for `case`, and noise where its context would be."""
    num_blocks = case.batch * blocks_for(case.context + case.num_rows)
    config, storage = network.setup.config, network.kernels.storage
    pools = make_pools(config, num_blocks, case.batch, storage=storage, device=device)
    generator = torch.Generator(device).manual_seed(0)
    for part in (pools.window, pools.pending, pools.entries, pools.keys):
        for tensor in part.values():
            if tensor.is_floating_point():
                tensor.normal_(generator=generator)
            else:
                fill_packed(tensor, config, generator)
    return Worker(network, pools, device, is_compact=is_compact)


def fill_packed(rows: Tensor, config: ModelConfig, generator: torch.Generator) -> None:
    """Any FP4 codes, FP8 codes of finite numbers, and scales near 1: UE8M0 from 123 on, or E4M3."""
    head, key, width = config.head_dim, config.index_head_dim, rows.shape[-1]
    of_format = {
        head + head // 32: (head, 120, 123),
        head // 2 + head // 16: (head // 2, 256, 54),
        key // 2 + key // 32: (key // 2, 256, 123),
    }
    size, codes, scale = of_format[width]
    rows[..., :size].random_(0, codes, generator=generator)
    rows[..., size:].random_(scale, scale + 4, generator=generator)


def step_plan(network: Network, case: Case) -> StepPlan:
    """The rows of `case`, the last of each sequence to be sampled."""
    batch, nothing = case.batch, np.zeros(0, np.int32)
    num_blocks = blocks_for(case.context + case.num_rows)
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
