"""`deepinfer eval --drafts`: what drafts bring a model, from traces and live.

Traces: its own answers, with every schedule replayed over them. Live: tokens a second of the three
schedules in turn, in this process, on this machine. Knows `LLM`, tasks and the engine's steps.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any, Final

import numpy as np

from deepinfer.engine.engine import Engine
from deepinfer.entrypoints.llm import LLM
from deepinfer.sampling_params import SamplingParams
from deepinfer.scheduler.draft_schedule import survival_rates
from deepinfer.tools.draft_traces import Trace, least_budget
from deepinfer.tools.eval import held_out_text
from deepinfer.tools.eval_network import drafts, loaded_model, network_of
from deepinfer.tools.eval_run import asked, cut, draw_cases
from deepinfer.tools.eval_stories import STORY
from deepinfer.tools.eval_structured import CALL, JSON
from deepinfer.tools.eval_tasks import COPY

BATCHES: Final = (1, 8, 32, 64)
SCHEDULES: Final = ("off", "fixed", "confidence")
# Kept of the accepted length while drafts are saved (as published, 3.20 of 3.29).
_KEPT: Final = 0.97
_REPEATS: Final = 3
_MOST_TOKENS: Final = 96
_MAX_MODEL_LEN: Final = 1024


@dataclass(frozen=True)
class Pace:
    """Steps that only generated, nearly all sequences still running: tokens and seconds."""

    num_tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """0 if there was no such step."""
        return self.num_tokens / self.seconds if self.seconds else 0.0


def make_prompts(llm: LLM, count: int) -> list[list[int]]:
    """`count` prompts: copies, calls, JSON, stories and passages of text, in turn."""
    each = -(-count // 5)
    examples = [draw_cases(task, each) for task in (COPY, CALL, JSON, STORY)]
    questions = [[asked(llm, one).prompt_ids for one in cases] for cases in examples]
    passages = cut(llm, held_out_text(loaded_model(llm).folder), each, 64)
    mixed = [prompt for group in zip(*questions, passages, strict=True) for prompt in group]
    Random("prompts for drafts").shuffle(mixed)
    return mixed[:count]


def traces(llm: LLM, prompts: Sequence[Sequence[int]]) -> list[Trace]:
    """What the draft module would propose at every place of the model's answers."""
    params = SamplingParams(temperature=0, max_tokens=_MOST_TOKENS)
    network, found = network_of(llm), []
    for output in llm.generate(prompt_token_ids=prompts, sampling_params=params):
        start = len(output.prompt_token_ids)
        drafted = drafts(network, [*output.prompt_token_ids, *output.token_ids], start)
        if drafted:
            leading = np.array([one.num_leading for one in drafted])
            found.append(Trace(leading, survival_rates([one.chances for one in drafted])))
    return found


def trace_lines(found: Sequence[Trace]) -> Iterator[str]:
    """For each batch: what sharing by confidence saves at nearly the same accepted length."""
    yield f"traces of {len(found)} answers; fixed verifies every draft"
    yield "batch   drafts each   accepted length        verified in vain, of fixed's"
    for batch in BATCHES:
        budget, kept, full = least_budget(found, batch, _KEPT)
        yield (
            f"{batch:5}   {budget:11.1f}   {kept.accepted_len:.2f} of {full.accepted_len:.2f} "
            f"({kept.accepted_len / full.accepted_len:.1%})   "
            f"{kept.rejected} of {full.rejected} ({kept.rejected / max(1, full.rejected):.0%})"
        )


def live_lines(
    model: str | None, options: Mapping[str, Any], prompts: Sequence[Sequence[int]]
) -> Iterator[str]:
    """Tokens a second of each schedule at each batch, in turns, the median of three."""
    yield "live, tokens/s of steps that only generate (median of 3, in turns)"
    yield "batch" + "".join(f"{schedule:>14}" for schedule in SCHEDULES) + "   confidence : best"
    for batch in BATCHES:
        sized = {**options, "max_num_seqs": batch, "max_model_len": _MAX_MODEL_LEN}
        llms = {
            schedule: LLM(model, **{**sized, "draft_schedule": schedule}) for schedule in SCHEDULES
        }
        paces: dict[str, list[float]] = {schedule: [] for schedule in SCHEDULES}
        for _ in range(_REPEATS + 1):
            for schedule, llm in llms.items():
                pace = measure(loaded_model(llm).engine, prompts[: max(16, 3 * batch)], batch)
                paces[schedule].append(pace.tokens_per_s)
        # The first round warms up.
        rates = {schedule: median(of[1:]) for schedule, of in paces.items()}
        best = max(rates["off"], rates["fixed"])
        yield (
            f"{batch:5}"
            + "".join(f"{rates[schedule]:14.1f}" for schedule in SCHEDULES)
            + f"   {rates['confidence'] / best:.3f}"
        )
        for llm in llms.values():
            llm.close()


def measure(engine: Engine, prompts: Sequence[Sequence[int]], batch: int) -> Pace:
    """Answer all prompts; count the steps in which at least three quarters of the batch generated
    and nobody read a prompt."""
    params = SamplingParams(temperature=0, max_tokens=_MOST_TOKENS)
    for number, prompt in enumerate(prompts):
        engine.submit(str(number), prompt, params, seed=number)
    num_tokens, seconds = 0, 0.0
    while engine.has_work:
        running = engine.scheduler.running
        is_steady = (
            4 * len(running) >= 3 * batch
            and (len(running) == batch or not engine.scheduler.waiting)
            and all(request.num_output > 0 for request in running)
        )
        start = time.perf_counter()
        news = engine.step()
        if is_steady:
            seconds += time.perf_counter() - start
            num_tokens += sum(delta.token_id is not None for delta in news)
    return Pace(num_tokens, seconds)


def main(model: str | None, options: Mapping[str, Any], show: Callable[[str], None]) -> int:
    """Print both tables. options: of `LLM`."""
    # The same prompts come again and again: each time they are to be computed.
    options = {**options, "enable_prefix_caching": False}
    with LLM(model, **{**options, "draft_schedule": "off"}) as llm:
        prompts = make_prompts(llm, 3 * max(BATCHES))
        for line in trace_lines(traces(llm, prompts)):
            show(line)
    for line in live_lines(model, options, prompts):
        show(line)
    return 0
