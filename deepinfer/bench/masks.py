"""What structured output costs a step: masks made, tokens taken in, masks applied to the logits.

Requests of several schemas, each at its own place in its text; tokens are drawn among those that
the mask allows. Grammars are compiled here, without the pool.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch

from deepinfer.engine.continuation import Continuation, begin, next_rows, prepare
from deepinfer.engine.sample_plan import build_sample_plan
from deepinfer.engine.steering import GrammarState, Steering
from deepinfer.sampling.logits import adjust_logits
from deepinfer.sampling_params import SamplingParams
from deepinfer.so_args import SoArgs
from deepinfer.step import SamplePlan
from deepinfer.structured.control_chars import token_text
from deepinfer.structured.library import (
    TokenTable,
    compile_text,
    new_grammar_compiler,
    new_matcher,
)
from deepinfer.structured.output_grammar import output_grammar
from deepinfer.tokenizer.tokenizer_file import open_tokenizer_json, token_bytes_by_id

NUM_REQUESTS = 64
_WORD = '{"type": "string", "maxLength": 40}'
_ITEM = f'{{"type": "object", "properties": {{"id": {{"type": "integer"}}, "name": {_WORD}}}}}'
SCHEMAS = {
    "record": SoArgs(
        "json",
        f'{{"type": "object", "properties": {{"name": {_WORD}, "age": {{"type": "integer", '
        '"minimum": 0, "maximum": 150}, "kind": {"enum": ["red", "green", "blue"]}, '
        '"when": {"type": "string", "format": "date-time"}}, '
        '"required": ["name", "age", "kind", "when"], "additionalProperties": false}',
    ),
    "list": SoArgs("json", f'{{"type": "array", "items": {_ITEM}, "minItems": 8}}'),
    "free": SoArgs("json_object", ""),
    "regex": SoArgs("regex", r"([A-Z][a-z]{2,9} ){4,12}[0-9]{1,5}"),
}


@dataclass
class MaskTimes:
    """Seconds. first, later: of a mask, by whether its step was among the first of its grammar.

    accept: of one token. step: of the host's whole sample plan. apply: of the masks on the logits.
    """

    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    accept: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    apply: list[float] = field(default_factory=list)


def token_table(path: Path) -> TokenTable:
    """The tokens of a tokenizer.json; token 1 ends a text, as in the released tokenizer."""
    raw = open_tokenizer_json(path)
    spellings = {n: token.content for n, token in raw.get_added_tokens_decoder().items()}
    texts = token_bytes_by_id(raw)
    vocab = [token_text(spellings.get(n), texts[n]) for n in range(len(texts))]
    return TokenTable(vocab, [1], len(vocab))


def bench_masks(
    table: TokenTable, num_requests: int, num_steps: int, compiled: dict[str, Any]
) -> MaskTimes:
    """Time so many steps; requests whose text has ended begin again."""
    rng, times = random.Random(num_requests), MaskTimes()
    logits = torch.randn(num_requests, table.vocab_size)
    prepared = prepare(SamplingParams(), seed=0, choice=0, eos_ids=table.stop_token_ids)
    names = [list(SCHEMAS)[n % len(SCHEMAS)] for n in range(num_requests)]
    states = [_state(compiled[name], table) for name in names]
    for step in range(num_steps):
        masks = times.first if step < num_steps // 2 else times.later
        for state in states:
            masks.append(_seconds(state.mask))
        rows = [begin(prepared, [5], steering=Steering(grammar=state)) for state in states]
        times.step.append(_seconds(partial(_plan, rows)))
        plan = _plan(rows)
        times.apply.append(_seconds(partial(adjust_logits, logits, plan)))
        for place, mask in enumerate(plan.masks):
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            token_id = int(rng.choice(allowed))
            times.accept.append(_seconds(partial(states[place].add, token_id)))
            if token_id in table.stop_token_ids:
                states[place] = _state(compiled[names[place]], table)
    return times


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _plan(rows: list[Continuation]) -> SamplePlan:
    return build_sample_plan(next_rows(rows))


def _state(compiled: Any, table: TokenTable) -> GrammarState:
    return GrammarState(new_matcher(compiled), table.stop_token_ids, table.vocab_size)


def compile_all(table: TokenTable) -> Iterator[tuple[str, Any, float, float]]:
    """(name, compiled grammar, seconds of our own part, seconds of xgrammar's) of each schema."""
    compiler = new_grammar_compiler(table)
    for name, so_args in SCHEMAS.items():
        start = time.perf_counter()
        text = output_grammar(so_args)
        lowered = time.perf_counter()
        found = compile_text(compiler, text)
        yield name, found, lowered - start, time.perf_counter() - lowered


def mask_lines(path: Path, num_steps: int) -> Iterator[str]:
    """The measurement, a line each."""
    table = token_table(path)
    yield f"{path.name}: {table.vocab_size} tokens, {torch.get_num_threads()} threads"
    compiled = {}
    for name, found, own_s, library_s in compile_all(table):
        compiled[name] = found
        yield f"{name}: grammar {1e3 * own_s:.1f} ms, compiled in {1e3 * library_s:.1f} ms"
    cold = bench_masks(table, NUM_REQUESTS, num_steps, compiled)
    yield from _lines("cold", cold)
    yield from _lines("warm", bench_masks(table, NUM_REQUESTS, num_steps, compiled))


def _lines(title: str, times: MaskTimes) -> Iterator[str]:
    for name, seconds in (("first half", times.first), ("second half", times.later)):
        p99 = quantiles(seconds, n=100)[-1]
        mean = sum(seconds) / len(seconds)
        yield (
            f"{title}, {name}: a mask takes {1e6 * median(seconds):.0f} us (median), "
            f"{1e6 * mean:.0f} (mean), {1e6 * p99:.0f} (99 of 100 are faster)"
        )
    yield (
        f"{title}: {NUM_REQUESTS} rows a step: sample plan {1e3 * median(times.step):.2f} ms, "
        f"masks applied {1e3 * median(times.apply):.2f} ms, "
        f"a token taken in {1e6 * median(times.accept):.1f} us"
    )
