"""Throughput of the whole engine: requests of random tokens, all at once, until the last has ended.

Says what was asked and what was delivered, because the two have been different in other benchmarks,
and how tokens were chosen. Knows the engine; does not know texts.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from deepinfer.config.model import ModelConfig
from deepinfer.engine.engine import Engine
from deepinfer.errors import ConfigError
from deepinfer.sampling_params import SamplingParams
from deepinfer.scheduler.draft_stats import DraftStats
from deepinfer.step import StepPlan
from deepinfer.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked: `batch` requests of `input_len` prompt tokens and `output_len` new ones.

    temperature, top_p, top_k, ignore_eos: see SamplingParams. seed: of the prompts and the draws.
    cold: nothing runs before. Raises ConfigError for what would measure something else.
    """

    input_len: int = 512
    output_len: int = 64
    batch: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    ignore_eos: bool = True
    seed: int = 0
    cold: bool = False

    def __post_init__(self) -> None:
        for name, least, hint in (
            ("input_len", 1, "a prompt has at least one token"),
            ("output_len", 2, "the first token comes with the prompt: one alone shows no decoding"),
            ("batch", 1, "ask for at least one request"),
        ):
            found = getattr(self, name)
            if found < least:
                raise ConfigError(
                    f"found {found}, expected {least} or more",
                    where="--" + name.replace("_", "-"),
                    hint=hint,
                )

    def params(self) -> SamplingParams:
        """Of every request. Raises RequestError for a value out of its range."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            ignore_eos=self.ignore_eos,
            max_tokens=self.output_len,
        )


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: its time, its rows (of prompts; of generated tokens and drafts), its tokens."""

    ms: float
    prompt_rows: int
    decode_rows: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Steps of one sort together."""

    num_steps: int
    total_s: float
    median_ms: float
    prompt_rows: int
    decode_rows: int
    num_tokens: int


@dataclass(frozen=True)
class OfflineResult:
    """What was measured. delivered: output tokens of each request. reasons: how each ended.

    drafts: what became of them.
    """

    workload: Workload
    wall_s: float
    first_token_s: list[float]
    delivered: list[int]
    reasons: list[str]
    num_preemptions: int
    prompt_steps: StepGroup
    mixed_steps: StepGroup
    decode_steps: StepGroup
    drafts: DraftStats
    faults: list[str] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together."""
        return self.workload.batch * self.workload.input_len

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens for which no row ran. Rows that a preemption repeats hide some."""
        return max(0, self.prompt_tokens - self.prompt_rows)

    @property
    def prompt_rows(self) -> int:
        """Rows of prompt tokens that ran."""
        return self.prompt_steps.prompt_rows + self.mixed_steps.prompt_rows

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt rows a second in steps that have some; decode rows in them ran along."""
        return _rate(self.prompt_rows, self.prompt_steps.total_s + self.mixed_steps.total_s)

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens a second in steps that only generate."""
        return _rate(self.decode_steps.num_tokens, self.decode_steps.total_s)


class RowCounter(Worker):
    """A worker that tells prompt rows from others: their positions lie within the prompt."""

    def __init__(self, worker: Worker, input_len: int) -> None:
        super().__init__(
            worker.network,
            worker.pools,
            worker.device,
            worker.drafter,
            is_compact=worker.is_compact,
            record=worker.record,
        )
        self._input_len = input_len
        # Prompt rows and others of each step, in the order in which they were launched. Their news
        # come in the same order, if maybe later.
        self.rows: list[tuple[int, int]] = []

    def launch(self, plan: StepPlan) -> None:
        """As Worker.launch."""
        in_prompt = (self._input_len - plan.num_computed).clip(0, plan.num_rows)
        prompt_rows = int(in_prompt.sum())
        self.rows.append((prompt_rows, len(plan.token_ids) - prompt_rows))
        super().launch(plan)


def bench_offline(engine: Engine, config: ModelConfig, workload: Workload) -> OfflineResult:
    """Run the workload on an engine that has no other requests."""
    if not workload.cold:
        _run(engine, random_prompts(config, 1, workload.input_len, workload.seed + 1), workload)
    prompts = random_prompts(config, workload.batch, workload.input_len, workload.seed)
    return _run(engine, prompts, workload)


def random_prompts(config: ModelConfig, count: int, length: int, seed: int) -> list[list[int]]:
    """Prompts of random tokens, none of which ends a text or stands for something else."""
    rng = random.Random(seed)
    special = {config.bos_token_id, config.eos_token_id, config.pad_token_id, config.image_token_id}
    usual = [i for i in range(config.vocab_size) if i not in special]
    return [rng.choices(usual, k=length) for _ in range(count)]


def _run(engine: Engine, prompts: list[list[int]], workload: Workload) -> OfflineResult:
    counter = RowCounter(engine.worker, workload.input_len)
    engine.lane.worker, worker = counter, engine.worker
    drafts_before = engine.drafting.stats.copy()
    preempted_before = engine.scheduler.counters.num_preemptions
    params = workload.params()
    delivered, reasons = [0] * len(prompts), [""] * len(prompts)
    first_token_s: dict[int, float] = {}
    records: list[StepRecord] = []
    start = time.perf_counter()
    for number, prompt in enumerate(prompts):
        engine.submit(str(number), prompt, params, seed=workload.seed + number)
    while engine.has_work:
        before = time.perf_counter()
        news = engine.step()
        after = time.perf_counter()
        ms, num_tokens = 1000 * (after - before), sum(one.token_id is not None for one in news)
        records.append(StepRecord(ms, *counter.rows[len(records)], num_tokens))
        for delta in news:
            number = int(delta.request_id)
            if delta.token_id is not None:
                delivered[number] += 1
                first_token_s.setdefault(number, after - start)
            if delta.finish_reason is not None:
                reasons[number] = delta.finish_reason
    wall_s = time.perf_counter() - start
    engine.lane.worker = worker
    return OfflineResult(
        workload=workload,
        wall_s=wall_s,
        first_token_s=[first_token_s[number] for number in sorted(first_token_s)],
        delivered=delivered,
        reasons=reasons,
        num_preemptions=engine.scheduler.counters.num_preemptions - preempted_before,
        prompt_steps=_group(records, lambda r: not r.decode_rows),
        mixed_steps=_group(records, lambda r: r.prompt_rows > 0 and r.decode_rows > 0),
        decode_steps=_group(records, lambda r: not r.prompt_rows),
        drafts=engine.drafting.stats.since(drafts_before),
        faults=find_faults(workload, delivered, reasons),
    )


def find_faults(workload: Workload, delivered: list[int], reasons: list[str]) -> list[str]:
    """A line for each request that did not deliver what was asked."""
    return [
        f"request {number}: {found} of {workload.output_len} output tokens ({reason})"
        for number, (found, reason) in enumerate(zip(delivered, reasons, strict=True))
        if found != workload.output_len
    ]


def _group(records: list[StepRecord], belongs: Callable[[StepRecord], bool]) -> StepGroup:
    own = [record for record in records if belongs(record)]
    return StepGroup(
        num_steps=len(own),
        total_s=sum(record.ms for record in own) / 1000,
        median_ms=median(record.ms for record in own) if own else 0.0,
        prompt_rows=sum(record.prompt_rows for record in own),
        decode_rows=sum(record.decode_rows for record in own),
        num_tokens=sum(record.num_tokens for record in own),
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0
