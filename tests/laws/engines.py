"""Engines made by hand from a network: any sizes of pools and steps, full logits, poisoned memory.

What an engine does with requests is driven as `LLM` drives it, with arrivals and aborts at chosen
steps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.slots import SlotPool
from deepinfer.cache.tiers import Tiers
from deepinfer.config.words import Accept, DraftSchedule, PrefixReplay, Storage
from deepinfer.engine.drafting import Drafting
from deepinfer.engine.engine import Engine
from deepinfer.engine.grammars import Grammars
from deepinfer.engine.sample_plan import build_sample_plan
from deepinfer.front.collector import Collector
from deepinfer.model.network import Network
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.draft_pause import DraftPause
from deepinfer.scheduler.draft_schedule import Float64
from deepinfer.scheduler.prefix_cache import PrefixCache
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.scheduler.step_time import StepTime
from deepinfer.scheduler.verify_lengths import VerifyLengths
from deepinfer.step import StepPlan
from deepinfer.tokenizer.tokenizer import Tokenizer
from deepinfer.worker.drafter import Drafter
from deepinfer.worker.graphs import Recorder
from deepinfer.worker.pools import Pools, make_pools
from deepinfer.worker.worker import Worker

# What a request of `test_engine`'s repertoire gives by itself: mode and number of the request.
Alone = Callable[[str, int], RequestOutput]
# Rows of sequences in one step: (number of the sequence, how many rows).
Step = list[tuple[int, int]]


@dataclass(frozen=True)
class Drafts:
    """How an engine drafts. curve: rows of a step -> milliseconds, for confidence."""

    num_drafts: int = 0
    schedule: DraftSchedule = "fixed"
    accept: Accept = "auto"
    curve: Mapping[int, float] = field(default_factory=lambda: {1: 5.0, 100: 104.0})


NO_DRAFTS = Drafts()


@dataclass
class FewDrafts(DraftPause):
    """Leaves drafts out behind every fifth and sixth step, whatever they are worth."""

    num_asked: int = 0

    def wants(self, rates: Sequence[Float64 | None], max_rows: int) -> bool:
        """As of `DraftPause`."""
        self.num_asked += 1
        return self.num_asked % 6 < 4


def make_engine(
    network: Network,
    *,
    num_blocks: int = 64,
    num_slots: int = 8,
    num_rows: int = 512,
    max_model_len: int = 512,
    kept_as: Storage = "bfloat16",
    keep_tokens: int | None = None,
    grammars: Grammars | None = None,
    drafts: Drafts = NO_DRAFTS,
    is_ahead: bool = False,
    prefix: PrefixReplay | None = None,
    tiers: Tiers | None = None,
    is_compact: bool = False,
    record: Recorder[Any] | None = None,
) -> Engine:
    """An engine with nothing in it.

    kept_as: of the pools; a network whose caches round nothing needs its own dtype. record: of the
    worker's steps and drafts.
    """
    config = network.setup.config
    bounds = SchedulerConfig(num_slots, num_rows, max_model_len)
    step_time = StepTime(drafts.curve, graphs=False) if drafts.schedule == "confidence" else None
    scheduler = Scheduler(
        bounds,
        BlockPool(num_blocks),
        SlotPool(num_slots),
        VerifyLengths(bounds, drafts.schedule, step_time),
        None
        if prefix is None
        else PrefixCache("m", "f", config.sliding_window, config.num_hidden_layers, prefix, tiers),
    )
    device = network.embed.weight.device.type
    pools = make_pools(config, num_blocks, num_slots, storage=kept_as, device=device)
    drafter = Drafter(network, pools, record=record) if drafts.num_drafts else None
    return Engine(
        scheduler,
        Worker(network, pools, device, drafter, is_compact=is_compact, record=record),
        [config.eos_token_id],
        grammars=grammars,
        keep_tokens=keep_tokens,
        # Real times would make every run another one.
        drafting=Drafting(
            drafts.num_drafts,
            drafts.accept,
            pause=None if step_time is None else FewDrafts(step_time),
        ),
        is_ahead=is_ahead,
    )


def assert_empty(engine: Engine) -> None:
    """Nothing runs, and every block and slot is back."""
    counters, memory = engine.scheduler.counters, engine.scheduler.memory
    assert (counters.num_running, counters.num_waiting) == (0, 0)
    assert counters.num_free_blocks == memory.blocks.num_blocks
    assert counters.num_free_slots == memory.slots.num_slots
    assert (memory.tables == -1).all()
    assert not engine.has_work
    assert not engine._continuations


# ---- requests ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A request. arrival: the step before which it comes; aborted: before which it goes."""

    prompt: Sequence[int]
    params: SamplingParams
    arrival: int = 0
    aborted: int | None = None


@dataclass
class Run:
    """Requests on their way through an engine, in the order of `jobs`."""

    engine: Engine
    tokenizer: Tokenizer
    jobs: Sequence[Job]
    collectors: dict[str, Collector] = field(default_factory=dict)

    def steps(self) -> Iterator[int]:
        """Run to the end, one step at a time: numbers the steps, after each."""
        last = max((job.arrival for job in self.jobs), default=0)
        number = 0
        while number <= last or self.engine.has_work:
            self._come_and_go(number)
            ended = set()
            for delta in self.engine.step():
                key = (delta.request_id, delta.choice)
                if key in ended:
                    continue
                _, stopped = self.collectors[delta.request_id].add(delta)
                if stopped:
                    ended.add(key)
                    self.engine.finish(*key, "stop")
            yield number
            number += 1

    def outputs(self) -> list[RequestOutput]:
        """As far as they have come."""
        return [self.collectors[str(number)].output() for number in range(len(self.jobs))]

    def _come_and_go(self, now: int) -> None:
        for number, job in enumerate(self.jobs):
            if job.arrival == now:
                prompt = list(job.prompt)
                collector = Collector(str(number), None, prompt, job.params, self.tokenizer)
                self.engine.submit(str(number), prompt, job.params)
                self.collectors[str(number)] = collector
            if job.aborted == now:
                self.engine.abort(str(number))


def run_jobs(engine: Engine, tokenizer: Tokenizer, jobs: Sequence[Job]) -> list[RequestOutput]:
    """All of them; the engine is empty before and after."""
    assert_empty(engine)
    run = Run(engine, tokenizer, jobs)
    for _ in run.steps():
        pass
    assert_empty(engine)
    return run.outputs()


# ---- logits --------------------------------------------------------------------------------------


def run_plan(worker: Worker, plan: StepPlan) -> Tensor:
    """The logits of all rows of a plan that draws no token: float32 [T, vocab]."""
    worker.launch(plan)
    assert worker._launched is not None
    final = worker._launched.hidden.final
    worker.sample(build_sample_plan([]))
    with torch.inference_mode():
        return worker.network.head(final)


def run_logits(
    worker: Worker,
    sequences: Sequence[Sequence[int]],
    steps: Iterable[Step],
    *,
    slots: Sequence[int],
    blocks: Sequence[Sequence[int]],
    done: Sequence[int] | None = None,
) -> list[Tensor]:
    """Sequences in the given steps: the logits of all rows of each, [S, vocab].

    done: how many tokens of each are in the worker's memory already.
    """
    done = list(done or [0] * len(sequences))
    found: list[list[Tensor]] = [[] for _ in sequences]
    for step in steps:
        names, counts = [name for name, _ in step], [count for _, count in step]
        ids = [sequences[n][done[n] : done[n] + count] for n, count in step]
        plan = StepPlan(
            slot_ids=_int32([slots[n] for n in names]),
            num_computed=_int32([done[n] for n in names]),
            num_rows=_int32(counts),
            block_tables=_tables([blocks[n] for n in names]),
            decoder_starts=_int32([0] * len(names)),
            window_starts=_int32([0] * len(names)),
            entry_starts=_int32([0] * len(names)),
            token_ids=_int32(list(chain.from_iterable(ids))),
            sample_rows=_int32([]),
            score_rows=_int32([]),
            score_ids=_int32([]),
        )
        for name, rows in zip(names, run_plan(worker, plan).split(counts), strict=True):
            found[name].append(rows)
            done[name] += len(rows)
    assert done == [len(ids) for ids in sequences]
    return [torch.cat(parts) for parts in found]


def in_chunks(num: int, lengths: Sequence[int]) -> Iterator[Step]:
    """One sequence after the other, `num` rows a step."""
    for name, length in enumerate(lengths):
        yield from ([(name, min(num, length - start))] for start in range(0, length, num))


def side_by_side(num: int, lengths: Sequence[int]) -> Iterator[Step]:
    """All sequences in every step, `num` rows of each until it ends."""
    for start in range(0, max(lengths), num):
        yield [(n, min(num, length - start)) for n, length in enumerate(lengths) if length > start]


def _int32(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.int32)


def _tables(blocks: Sequence[Sequence[int]]) -> np.ndarray:
    tables = np.full((len(blocks), max(map(len, blocks))), -1, np.int32)
    for row, ids in zip(tables, blocks, strict=True):
        row[: len(ids)] = ids
    return tables


# ---- memory --------------------------------------------------------------------------------------


def poison(pools: Pools, slots: Iterable[int], blocks: Iterable[int]) -> None:
    """NaN, and a token id that does not exist, in memory that nobody has."""
    slot_ids, block_ids = list(slots), list(blocks)
    for held in (pools.window, pools.draft_window, pools.pending):
        for pool in held.values():
            pool[slot_ids] = _nan_of(pool)
    pools.token_ids[slot_ids] = 2**31 - 1
    for held in (pools.entries, pools.keys):
        for pool in held.values():
            pool[block_ids] = _nan_of(pool)


def _nan_of(pool: Tensor) -> float:
    """NaN, also as the bytes of packed rows: all bits of a scale."""
    return torch.nan if pool.is_floating_point() else 255


def poison_free(engine: Engine) -> None:
    """All slots and blocks that no running request owns."""
    running, memory = engine.scheduler.running, engine.scheduler.memory
    slots = {request.slot_id for request in running}
    blocks = {block_id for request in running for block_id in request.block_ids}
    poison(
        engine.worker.pools,
        set(range(memory.slots.num_slots)) - slots,
        set(range(memory.blocks.num_blocks)) - blocks,
    )


Watch = Callable[[Engine], None]


def run_watched(
    engine: Engine, tokenizer: Tokenizer, jobs: Sequence[Job], watch: Watch
) -> list[RequestOutput]:
    """As `run_jobs`, with something done to the engine before and between all steps."""
    watch(engine)
    run = Run(engine, tokenizer, jobs)
    for _ in run.steps():
        watch(engine)
    assert_empty(engine)
    return run.outputs()
