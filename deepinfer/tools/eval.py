"""`deepinfer eval`: how good a model is at held-out tasks and text, with confidence intervals.

Knows which lines there are and how many cases each has. The tasks are in eval_tasks.py and
eval_structured.py, the judging in eval_judge.py.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

from deepinfer.entrypoints.llm import LLM
from deepinfer.sampling_params import SamplingParams
from deepinfer.tools.eval_examples import Task
from deepinfer.tools.eval_hits import with_hits
from deepinfer.tools.eval_judge import has_right_values, is_right
from deepinfer.tools.eval_network import (
    Drafted,
    drafts,
    engram_off,
    loaded_model,
    long_attention_off,
    network_of,
    replay_on,
)
from deepinfer.tools.eval_run import Answered, answer, cut, draw_cases, long_again, losses
from deepinfer.tools.eval_scores import (
    Line,
    as_json,
    as_text,
    calibration_error,
    mean,
    paired,
    perplexity,
    rise,
    share,
)
from deepinfer.tools.eval_stories import STORY
from deepinfer.tools.eval_structured import CALL, JSON
from deepinfer.tools.eval_tasks import COPY, SUM, make_fact_task

# A text that the model never saw, beside its weights.
HELD_OUT_FILE: Final = "held_out.txt"
_BINS: Final = 10


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    cases, long_cases: of each task, and of facts in long texts. fact_tokens: how long those are.
    replay_all: whether long prompts of all abilities are asked again with compact replay and hits,
    or only facts. passages of passage_tokens: of text. drafted: sequences of each kind whose drafts
    are looked at.
    """

    cases: int = 500
    long_cases: int = 100
    fact_tokens: int = 1500
    replay_all: bool = True
    passages: int = 80
    passage_tokens: int = 256
    drafted: int = 20


QUICK: Final = Plan(
    cases=16,
    long_cases=4,
    fact_tokens=500,
    replay_all=False,
    passages=8,
    passage_tokens=128,
    drafted=2,
)


def tasks(llm: LLM, plan: Plan) -> dict[str, tuple[Task, int]]:
    """The abilities by name, each with its number of cases."""
    tokenizer = llm.get_tokenizer()
    fact = make_fact_task(lambda text: len(tokenizer.encode(f" {text}", add_bos=False)))
    size = plan.fact_tokens
    return {
        "sums and differences of two digits, thinking off": (SUM, plan.cases),
        "copy of 20 to 60 random words": (_of_sizes(COPY, 20, 60), plan.cases),
        f"a fact anywhere in {size} tokens": (_of_sizes(fact, size, size), plan.long_cases),
        "tool call: markup, tool and arguments": (CALL, plan.cases),
        "JSON valid against its schema, no grammar": (JSON, plan.cases),
    }


def abilities(llm: LLM, plan: Plan) -> dict[str, list[Answered]]:
    """What the model answers to every task, by ability: to be judged, or compared case by case.

    All at once: a few long answers then cost no steps of their own.
    """
    cases = {name: draw_cases(task, num) for name, (task, num) in tasks(llm, plan).items()}
    answered = iter(answer(llm, [example for drawn in cases.values() for example in drawn]))
    return {name: list(islice(answered, len(drawn))) for name, drawn in cases.items()}


def rights(answered: list[Answered]) -> list[bool]:
    """Which answers are right."""
    return [is_right(one.example, one.message) for one in answered]


def compared(
    first: Mapping[str, list[Answered]], second: Mapping[str, list[Answered]], how: str = ""
) -> Iterator[Line]:
    """How many points the second is worse at each ability, case by case; then at all together.

    Both are results of `abilities` with one plan: of two models, or of one whose network was
    changed in between, as eval_network.py does it. how: what the second is, for the lines' names.
    """
    before: list[bool] = []
    after: list[bool] = []
    for name, cases in first.items():
        yield paired(f"worse: {name}{how}", rights(cases), rights(second[name]))
        before += rights(cases)
        after += rights(second[name])
    yield paired(f"worse: all abilities{how}", before, after)


def evaluate(llm: LLM, plan: Plan, text: str) -> Iterator[Line]:
    """All lines, as they come. text: what perplexity is measured on."""
    answered = abilities(llm, plan)
    for name, cases in answered.items():
        yield share(name, rights(cases))
        if cases[0].example.judge == "json":
            values = [has_right_values(one.example, one.message) for one in cases]
            yield share("JSON with the right values", values)
    network = network_of(llm)
    with long_attention_off(network):
        facts = next(cases for cases in answered.values() if cases[0].example.task == "fact")
        examples = [one.example for one in facts]
        yield share("the fact, compressed attention off", rights(answer(llm, examples)))
    yield from replay_lines(llm, plan, answered)
    passages = cut(llm, text, plan.passages, plan.passage_tokens)
    before = losses(llm, passages)
    yield perplexity("perplexity of held-out text", before)
    if any(one.engram_id is not None for one in network.plans):
        with engram_off(network):
            yield rise("perplexity with Engram off, worse by", before, losses(llm, passages))
    if network.draft is not None:
        yield from _draft_lines(llm, plan, answered, passages)


def replay_lines(llm: LLM, plan: Plan, answered: Mapping[str, list[Answered]]) -> Iterator[Line]:
    """What compact replay and bounded hits cost each ability that has long prompts, and all.

    Nothing where the answers had it.
    """
    if loaded_model(llm).engine.keep_tokens is not None:
        return
    if not plan.replay_all:
        answered = {n: cases for n, cases in answered.items() if cases[0].example.task == "fact"}
    ways = {" with compact replay": with_replay(llm, answered)}
    if loaded_model(llm).options.enable_prefix_caching:
        ways[" behind bounded hits"] = with_hits(llm, answered)
    for how, replayed in ways.items():
        *lines, total = compared(answered, replayed, how)
        for (name, cases), line in zip(answered.items(), lines, strict=True):
            if any(one is not again for one, again in zip(cases, replayed[name], strict=True)):
                yield line
        if plan.replay_all:
            yield total


def with_replay(llm: LLM, answered: Mapping[str, list[Answered]]) -> dict[str, list[Answered]]:
    """The same cases with compact replay. A prompt of which it keeps all has the same answer by
    construction, and is not asked again.
    """
    with replay_on(llm) as keep_tokens:
        return long_again(answered, keep_tokens, partial(answer, llm))


def _draft_lines(
    llm: LLM, plan: Plan, answered: Mapping[str, list[Answered]], passages: list[list[int]]
) -> Iterator[Line]:
    """Drafts in what the model itself wrote: answers, and texts that it goes on with.

    Kinds of sequences count alike, however many tokens each has: the mean is of sequences.
    """
    network, size = network_of(llm), loaded_model(llm).config.dspark_block_size
    sequences = []
    for cases in answered.values():
        # Short answers have no room for a block; they are passed over.
        long = [one for one in cases if len(one.answer_ids) > size]
        sequences += [(one.prompt_ids, one.answer_ids) for one in long[: plan.drafted]]
    params = SamplingParams(temperature=0, max_tokens=8 * size)
    starts = [passage[: len(passage) // 2] for passage in passages[: plan.drafted]]
    outputs = llm.generate(prompt_token_ids=starts, sampling_params=params)
    sequences += [(out.prompt_token_ids, out.token_ids) for out in outputs]
    found: list[list[Drafted]] = [
        drafts(network, [*prompt, *said], len(prompt)) for prompt, said in sequences
    ]
    found = [drafted for drafted in found if drafted]
    if not found:
        return
    leading = [sum(one.num_leading for one in drafted) / len(drafted) for drafted in found]
    yield mean(f"leading drafts equal to the model's, of {size}", leading, "tokens")
    every = [one for drafted in found for one in drafted]
    said = [chance for one in every for chance in one.said]
    came = [match for one in every for match in one.came]
    yield calibration_error(f"calibration error of confidence, {_BINS} bins", said, came, _BINS)


def held_out_text(folder: Path) -> str:
    """The text beside the model, or stories of our own if there is none."""
    path = folder / HELD_OUT_FILE
    if path.exists():
        return path.read_text(encoding="utf-8")
    rng = Random("stories to read")
    return "\n\n".join(STORY.draw(rng, "held_out").answer.content for _ in range(300))


def main(llm: LLM, *, quick: bool, as_lines: bool, show: Callable[[str], None]) -> int:
    """Measure and print. as_lines: a table while it grows; else one JSON object at the end."""
    start = time.monotonic()
    model = loaded_model(llm)
    lines: list[dict[str, Any]] = []
    for line in evaluate(llm, QUICK if quick else Plan(), held_out_text(model.folder)):
        lines.append(as_json(line))
        if as_lines:
            show(as_text(line))
    took = time.monotonic() - start
    if as_lines:
        show(f"in {took:.0f} s, {model.options.device}, {model.options.dtype}, temperature 0")
    else:
        options = {"device": model.options.device, "dtype": model.options.dtype}
        show(json.dumps({"lines": lines, "took_s": round(took, 1), "quick": quick} | options))
    return 0


def _of_sizes(task: Task, low: int, high: int) -> Task:
    return replace(task, sizes=(low, high))
