"""Drafts never change an answer, on the demo model: its drafts are good enough to be accepted,
and bad enough to be rejected at every place.

The slow tests are long; a part of each is short enough to run always.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from deepinfer import LLM, SamplingParams
from deepinfer.outputs import RequestOutput
from deepinfer.tools.eval_drafts import make_prompts

DEMO = Path(__file__).parents[2] / "models" / "demo"
FIXED = [{"draft_schedule": "fixed", "num_drafts": num} for num in range(1, 6)]
WAYS = [*FIXED, {"draft_schedule": "confidence"}]
PERSON = (
    'root ::= "{\\"name\\": \\"" [a-z]{1,12} "\\", \\"age\\": " [1-9] [0-9]{0,2} ", \\"tags\\": [" '
    'tag (", " tag){0,4} "]}"\ntag ::= "\\"" [a-z]{1,8} "\\""'
)
AHEAD = {"draft_schedule": "fixed", "async_scheduling": True}
SHORT = [FIXED[4], {"draft_schedule": "confidence"}]
SAMPLED: dict[str, dict[str, Any]] = {
    "temperature 0.7": {"temperature": 0.7},
    "temperature 1": {"temperature": 1.0},
    "top_p and min_p": {"temperature": 1.0, "top_p": 0.9, "min_p": 0.02},
    "penalties": {
        "temperature": 1.0,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
        "repetition_penalty": 1.1,
    },
    "grammar": {"temperature": 0.7, "so_args": {"schema_type": "ebnf", "schema": PERSON}},
}


@contextmanager
def demo(**options: Any) -> Iterator[LLM]:
    options = {"max_num_seqs": 32, "max_model_len": 1024, **options}
    with LLM(DEMO, **options) as llm:
        yield llm


def prompts(count: int) -> list[list[int]]:
    with demo(draft_schedule="off") as llm:
        return make_prompts(llm, count)


def answers(llm: LLM, asked: Sequence[Any], params: Any) -> list[RequestOutput]:
    found = llm.generate(prompt_token_ids=asked, sampling_params=params)
    assert all(output.error is None for output in found)
    return found


@cache
def greedy(num_prompts: int, num_tokens: int) -> tuple[Any, SamplingParams, list[list[int]]]:
    """Prompts, what each asks for, and what it gives without drafts."""
    asked = prompts(num_prompts)
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    with demo(draft_schedule="off") as llm:
        return asked, params, [output.token_ids for output in answers(llm, asked, params)]


def check_greedy(num_prompts: int, num_tokens: int, way: dict[str, Any]) -> None:
    asked, params, wanted = greedy(num_prompts, num_tokens)
    with demo(**way) as llm:
        found = answers(llm, asked, params)
        assert [output.token_ids for output in found] == wanted
        stats = llm.draft_stats()
        assert 0 < stats.num_accepted < stats.num_verified


@pytest.mark.slow
@pytest.mark.parametrize("way", [*WAYS, AHEAD], ids=str)
def test_greedy_answers_are_the_same(way):
    """Must not differ in one token of 51,200, whatever is drafted (C07)."""
    check_greedy(200, 256, way)


@pytest.mark.parametrize("way", SHORT, ids=str)
def test_some_greedy_answers_are_the_same(way):
    """As the long test, in seconds."""
    check_greedy(5, 40, way)


def test_log_probabilities_are_the_same():
    """A token's log-probability is that of another row, or of the draft module (C11, C12)."""
    asked = prompts(5)
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, logprobs=3)
    found = []
    for way in ({"draft_schedule": "off"}, *SHORT):
        with demo(dtype="float32", **way) as llm:
            found.append(answers(llm, asked, params))
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert one.token_ids == same.token_ids
            values = [[record.logprob for record in output.logprobs] for output in (one, same)]
            assert [r.token_id for r in same.logprobs] == same.token_ids
            np.testing.assert_allclose(values[0], values[1], atol=1e-5, rtol=0)


@cache
def sampled(name: str, num_prompts: int, num_tokens: int) -> tuple[Any, Any, list[list[int]]]:
    """Prompts, what each asks for, and what it gives without drafts."""
    asked = prompts(num_prompts)
    params = [
        SamplingParams(max_tokens=num_tokens, seed=number, **SAMPLED[name])
        for number in range(num_prompts)
    ]
    with demo(draft_schedule="off") as llm:
        return asked, params, [output.token_ids for output in answers(llm, asked, params)]


def check_sampled(
    name: str, num_prompts: int, num_tokens: int, batch: int, ways: Sequence[dict[str, Any]]
) -> None:
    asked, params, wanted = sampled(name, num_prompts, num_tokens)
    rng = Random(f"{name} {batch}")
    for way in ways:
        order = rng.sample(range(num_prompts), num_prompts)
        with demo(**{**way, "max_num_seqs": batch}) as llm:
            found = answers(llm, [asked[i] for i in order], [params[i] for i in order])
        assert [output.token_ids for output in found] == [wanted[i] for i in order], way


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("way", [*WAYS, AHEAD], ids=str)
def test_seeded_answers_are_the_same(name, batch, way):
    """One seed gives several answers: by schedule, length of drafts, batch or order (F01, F02)."""
    check_sampled(name, 32, 16, batch, [way])


@pytest.mark.parametrize("name", ["penalties", "grammar"])
def test_some_seeded_answers_are_the_same(name):
    """As the long test, in seconds."""
    check_sampled(name, 4, 24, 4, SHORT)
