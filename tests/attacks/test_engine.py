"""Requests meant to hurt others: refused in their place or survived, and no neighbour notices.

Two good neighbours, one greedy and one drawn, stand around every hostile request; what they get is
compared to the bit with what they get by themselves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer import LLM, RequestOutput, SamplingParams
from deepinfer.errors import RequestError
from tests.laws.engines import assert_empty, poison_free

VOCAB_SIZE = 512
MAX_MODEL_LEN = 300
NEIGHBOURS = ([11, 12, 13], [21, 22, 23, 24])
PARAMS = (
    SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=1),
    SamplingParams(temperature=1.1, seed=5, max_tokens=6, logprobs=3, stop=["zzz"]),
)
BAD_TOKEN = 77
BAD_PROMPT = [30, BAD_TOKEN, 31]


@pytest.fixture(scope="module")
def llm(tiny_dir: Path) -> Iterator[LLM]:
    """Five slots and few blocks, so that memory soon goes to the next."""
    options = {"max_num_seqs": 5, "max_model_len": MAX_MODEL_LEN, "dtype": "float32"}
    with LLM(tiny_dir, device="cpu", kv_cache_bytes=2_000_000, **options) as made:
        yield made
        assert_empty(made._requests.model.engine)


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[RequestOutput]:
    """The neighbours by themselves."""
    return [alone(llm, prompt, one) for prompt, one in zip(NEIGHBOURS, PARAMS, strict=True)]


def alone(llm: LLM, prompt: list[int], params: SamplingParams) -> RequestOutput:
    return llm.generate(prompt_token_ids=[prompt], sampling_params=params)[0]


def between(llm: LLM, prompt: Any, params: SamplingParams) -> tuple[RequestOutput, list[Any]]:
    """(the result of a request that stands between the neighbours, theirs)."""
    first, found, last = llm.generate(
        prompt_token_ids=[NEIGHBOURS[0], prompt, NEIGHBOURS[1]],
        sampling_params=[PARAMS[0], params, PARAMS[1]],
    )
    assert_empty(llm._requests.model.engine)
    return found, [first, last]


# ---- parameters ----------------------------------------------------------------------------------

ALLOWED: list[dict[str, Any]] = [
    {"temperature": 1.7e308},
    {"temperature": 5e-324, "seed": 2**64 - 1},
    {"temperature": 1e-5, "top_p": 5e-324},
    {"top_p": 1, "top_k": 2**31 - 1, "min_p": 0},
    {"top_k": 0, "min_p": 1},
    {"top_k": VOCAB_SIZE, "top_p": 1 - 2**-53},
    {"presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 1.7e308},
    {"presence_penalty": -2, "frequency_penalty": -2, "repetition_penalty": 5e-324},
    {"logit_bias": dict.fromkeys(range(VOCAB_SIZE), -100)},
    {"logit_bias": {0: 100, VOCAB_SIZE - 1: 100}},
    {"seed": -(2**63), "n": 9},
    {"max_tokens": 2**31 - 1, "min_tokens": 9, "stop": ["e"]},
    {"max_tokens": 1, "min_tokens": 1, "n": 1024},
    {"min_tokens": 20, "max_tokens": 20, "logit_bias": {1: 100}},
    {"stop": ["\ud800", "x" * 100_000, "\x00"] + [str(i) for i in range(13)]},
    {"stop_token_ids": list(range(VOCAB_SIZE))},
    {"stop_token_ids": [i for i in range(VOCAB_SIZE) if i != 9], "min_tokens": 8},
    {"logprobs": VOCAB_SIZE, "prompt_logprobs": VOCAB_SIZE},
    {"top_logprobs": VOCAB_SIZE, "golden_token_ids": [0, VOCAB_SIZE - 1] * 100},
    {"golden_token_ids": [1, 1, 1], "ignore_eos": True},
    {"golden_token_ids": [-1] * 1000},
    {"first_n_token_no_eos": 1, "seq_seed": 0},
    {"temperature": np.float32(0.5), "top_k": np.int64(3), "seed": np.uint64(2**63)},
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fields", ALLOWED, ids=" ".join)
def test_fields_at_their_bounds(
    fields: dict[str, Any], llm: LLM, expected: list[RequestOutput]
) -> None:
    """G01, G02, G03, G05, G13: one request's parameters end the engine, or move a neighbour."""
    params = SamplingParams(**fields)
    found, neighbours = between(llm, [5, 6, 7], params)
    assert neighbours == expected
    assert found.error is None
    assert len(found.outputs) == params.n
    for one in found.outputs:
        assert one.finish_reason in ("stop", "length")
        assert all(0 <= token_id < VOCAB_SIZE for token_id in one.token_ids)
        assert params.min_tokens <= len(one.token_ids) <= params.max_tokens
        for score in one.logprobs or []:
            assert -9999 <= score.logprob <= 0
            assert len(score.top) == params.num_logprobs


PAST: list[tuple[str, Any]] = [
    *(("temperature", value) for value in (-1e-9, float("nan"), float("inf"), "1", None, True, 1j)),
    *(("top_p", value) for value in (0, -1, 1.0000001, float("nan"), "x", [1])),
    *(("min_p", value) for value in (-1e-9, 1.1, float("nan"), "x")),
    *(("top_k", value) for value in (-2, 2**31, 1.5, float("nan"), "5", True)),
    *(("presence_penalty", value) for value in (-2.1, 2.1, float("nan"), None)),
    *(("frequency_penalty", value) for value in (-2.1, 2.1, float("inf"), "")),
    *(("repetition_penalty", value) for value in (0, -1, float("nan"), float("inf"), b"1")),
    *(("logit_bias", value) for value in ({-1: 1}, {3: 101}, {3: float("nan")}, [3], {"3": 1})),
    *(("seed", value) for value in (2**64, -(2**63) - 1, 1.0, "7", True)),
    *(("n", value) for value in (0, -1, 1025, 1.0, None)),
    *(("max_tokens", value) for value in (0, -1, 2**31, 16.0, None, float("inf"))),
    *(("min_tokens", value) for value in (-1, 17, float("nan"))),
    *(("ignore_eos", value) for value in (1, None, "yes")),
    *(("include_stop_str_in_output", value) for value in (0, "no")),
    *(("stop", value) for value in ("", ["a", ""], 5, [5], ["a"] * 17, b"a")),
    *(("stop_token_ids", value) for value in ([-1], "12", [1.5], 3, [None])),
    *(("golden_token_ids", value) for value in ([-2], "12", [float("nan")], 3)),
    *(("logprobs", value) for value in (-1, 1001, 1.5, "1")),
    *(("top_logprobs", value) for value in (-1, 1001, None, True)),
    *(("prompt_logprobs", value) for value in (-1, 1001, 2.0)),
    ("so_args", "a*"),
    ("so_args.regex", {"regex": "a*"}),
    ("so_args.schema", {"schema_type": "json"}),
    ("max_thinking_tokens", -1),
    ("eos_id", 5),
    ("first_n_token_no_eos", 2),
    ("seq_seed", "x"),
]


@pytest.mark.parametrize(("field", "value"), PAST, ids=lambda value: repr(value)[:20])
def test_fields_past_their_bounds(field: str, value: Any) -> None:
    """G01, G04, G06: a value that cannot be honoured is taken, or refused without its name."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field.partition(".")[0]: value})
    assert caught.value.field == field
    assert caught.value.hint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {VOCAB_SIZE: 1}),
        ("logit_bias", {2**31 - 1: 1}),
        ("stop_token_ids", [5, VOCAB_SIZE]),
        ("golden_token_ids", [-1, VOCAB_SIZE]),
        ("logprobs", VOCAB_SIZE + 1),
        ("top_logprobs", VOCAB_SIZE + 1),
        ("prompt_logprobs", VOCAB_SIZE + 1),
        ("min_tokens", MAX_MODEL_LEN),
    ],
)
def test_what_this_model_has_not(
    field: str, value: Any, llm: LLM, expected: list[RequestOutput]
) -> None:
    """G06: an id outside the vocabulary ends the process, or the whole list."""
    params = SamplingParams(**{field: value}, **({"max_tokens": 999} if "min" in field else {}))
    found, neighbours = between(llm, [5, 6, 7], params)
    assert neighbours == expected
    assert found.error is not None
    assert found.error.field == ("logprobs" if field == "top_logprobs" else field)
    assert found.outputs == []


@pytest.mark.parametrize(
    "prompt",
    [[], [-1], [VOCAB_SIZE], [2**70], [1.5], [None], "12", 7, None, [True], [[1]], [5] * 300],
    ids=lambda prompt: repr(prompt)[:12],
)
def test_prompts_that_are_none(prompt: Any, llm: LLM, expected: list[RequestOutput]) -> None:
    """L06: a prompt's id is used as an index before it is looked at, or all prompts fail."""
    found, neighbours = between(llm, prompt, SamplingParams())
    assert neighbours == expected
    assert found.error is not None
    assert found.error.field in ("prompt", "prompt_token_ids")


@pytest.mark.parametrize("params", [None, 5, {"temperature": 0}, SamplingParams], ids=repr)
def test_params_that_are_none(params: Any, llm: LLM, expected: list[RequestOutput]) -> None:
    """K04: one wrong object in the list leaves the requests before it running for nobody."""
    with pytest.raises(RequestError) as caught:
        between(llm, [5, 6, 7], params)
    assert caught.value.field == "sampling_params"
    assert_empty(llm._requests.model.engine)
    assert alone(llm, NEIGHBOURS[0], PARAMS[0]) == expected[0]


# ---- numbers that are none -----------------------------------------------------------------------


@contextmanager
def bad_token(llm: LLM) -> Iterator[None]:
    """One token of the vocabulary is embedded as NaN, while the context lasts."""
    weight = llm._requests.model.engine.worker.network.embed.weight
    kept = weight[BAD_TOKEN].clone()
    with torch.no_grad():
        weight[BAD_TOKEN] = torch.nan
    try:
        yield
    finally:
        with torch.no_grad():
            weight[BAD_TOKEN] = kept


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(SamplingParams(temperature=0), id="greedy", marks=pytest.mark.slow),
        pytest.param(SamplingParams(seed=1, top_k=5, logprobs=2, prompt_logprobs=2), id="drawn"),
        pytest.param(SamplingParams(seed=1, n=3, repetition_penalty=2.0), id="choices"),
        pytest.param(
            SamplingParams(golden_token_ids=[5, 6, 7], logprobs=True),
            id="forced",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_row_of_nan(params: SamplingParams, llm: LLM, expected: list[RequestOutput]) -> None:
    """A14: a row that is not finite ends its neighbours, or the engine, or goes on."""
    with bad_token(llm):
        found, neighbours = between(llm, BAD_PROMPT, params)
        assert neighbours == expected
        assert [one.finish_reason for one in found.outputs] == ["error"] * params.n
        assert [one.token_ids for one in found.outputs] == [[]] * params.n
        # The slot and the blocks are full of NaN now, and the next ones get them.
        for _ in range(6):
            assert alone(llm, NEIGHBOURS[0], PARAMS[0]) == expected[0]
            assert alone(llm, NEIGHBOURS[1], PARAMS[1]) == expected[1]


def test_nan_in_the_middle_of_an_answer(llm: LLM, expected: list[RequestOutput]) -> None:
    """A14: what was said before the numbers broke is lost, or the request never ends."""
    params = SamplingParams(golden_token_ids=[40, 41, BAD_TOKEN, 42], max_tokens=9, logprobs=1)
    with bad_token(llm):
        found, neighbours = between(llm, [5, 6, 7], params)
    assert neighbours == expected
    assert (found.token_ids, found.finish_reason) == ([40, 41, BAD_TOKEN], "error")
    assert found.logprobs is not None
    assert len(found.logprobs) == 3


def test_nan_in_a_long_prompt_beside_a_long_one(llm: LLM) -> None:
    """A13, A14: a broken prompt writes into what a neighbour reads, over chunks and blocks."""
    good = [100 + i % 300 for i in range(250)]
    bad = [*good[:200], BAD_TOKEN, *good[200:205]]
    params = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=True)
    by_itself = alone(llm, good, params)
    with bad_token(llm):
        broken, whole = llm.generate(prompt_token_ids=[bad, good], sampling_params=params)
        assert whole == by_itself
        assert broken.finish_reason == "error"
        # What came before the break is as sound as ever.
        assert broken.prompt_logprobs is not None
        assert by_itself.prompt_logprobs is not None
        assert broken.prompt_logprobs[:200] == by_itself.prompt_logprobs[:200]
        assert alone(llm, good, params) == by_itself


def test_memory_of_the_dead_is_never_read(llm: LLM, expected: list[RequestOutput]) -> None:
    """A13, B02, G11: NaN and ids that do not exist in free memory reach a request that gets it."""
    engine = llm._requests.model.engine
    for _ in range(3):
        poison_free(engine)
        _, neighbours = between(llm, list(range(100, 240)), SamplingParams(seed=1, n=2))
        assert neighbours == expected


def test_nan_far_back_in_a_prompt(llm: LLM) -> None:
    """A14: a NaN that left the window empties the selection, and the answer is finite and wrong."""
    bad = [100 + i % 300 for i in range(240)]
    bad[60] = BAD_TOKEN
    with bad_token(llm):
        (found,) = llm.generate(
            prompt_token_ids=[bad], sampling_params=SamplingParams(temperature=0, max_tokens=4)
        )
    assert found.finish_reason == "error"
