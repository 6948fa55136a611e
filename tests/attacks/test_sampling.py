"""Parameters meant to break the engine: refused by name, or survived, and no neighbour notices."""

from typing import Any

import pytest
import torch

from deepinfer.engine.continuation import Continuation, begin, next_rows, prepare
from deepinfer.engine.sample_plan import build_sample_plan
from deepinfer.errors import RequestError
from deepinfer.front.intake import check_against
from deepinfer.front.stream import TextStream
from deepinfer.sampling_params import SamplingParams
from deepinfer.tokenizer.tokenizer import Tokenizer
from tests.effort import effort
from tests.unit.sampling.plans import sample

VOCAB_SIZE = 64
EOS_ID = 1


def row(params: SamplingParams, prompt: list[int] | None = None) -> Continuation:
    check_against(params, VOCAB_SIZE, max_model_len=128)
    prepared = prepare(params, seed=params.seed_or_random(), choice=0, eos_ids=[EOS_ID])
    return begin(prepared, prompt or [3, 4, 5], [6, 7])


HOSTILE: list[dict[str, Any]] = [
    {"temperature": 1e308},
    {"temperature": 1e-5, "top_p": 5e-324, "min_p": 1.0},
    {"top_p": 1 - 2**-53, "top_k": 2**31 - 1},
    {"repetition_penalty": 1e308, "presence_penalty": -2, "frequency_penalty": -2},
    {"repetition_penalty": 5e-324, "temperature": 1e308},
    {"logit_bias": {i: 100 if i % 2 else -100 for i in range(VOCAB_SIZE)}},
    {"logit_bias": {EOS_ID: 100}, "min_tokens": 16},
    {"stop_token_ids": [i for i in range(VOCAB_SIZE) if i != 9], "min_tokens": 16},
    {"golden_token_ids": [-1] * 2 + [VOCAB_SIZE - 1]},
    {"logprobs": VOCAB_SIZE, "top_k": 1},
    {"temperature": 0, "logit_bias": {9: -100}, "seed": -(2**63)},
]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 3e37])
def test_hostile_params_in_one_batch(scale: float) -> None:
    """G01, G02, G03, G06: one request's parameters end the process or change another's token."""
    neighbour = SamplingParams(temperature=0.8, top_p=0.9, seed=11)
    rows = [row(SamplingParams(**params)) for params in HOSTILE]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(rows) + 1, VOCAB_SIZE, generator=generator) * scale
    together = sample(logits, build_sample_plan(next_rows([*rows, row(neighbour)])))
    alone = sample(logits[-1:], build_sample_plan(next_rows([row(neighbour)])))
    assert together.token_ids[-1] == alone.token_ids[0]
    assert not together.bad_rows.any()
    assert ((together.token_ids >= 0) & (together.token_ids < VOCAB_SIZE)).all()
    assert together.token_ids[6] != EOS_ID
    assert together.token_ids[7] == 9
    assert together.token_ids[8] == VOCAB_SIZE - 1
    assert together.logprobs is not None
    assert together.logprobs.chosen.isfinite().all()


def test_every_token_is_an_end() -> None:
    """G13: min_tokens with all tokens as end tokens leaves none, and the sampler dies."""
    params = SamplingParams(stop_token_ids=[*range(VOCAB_SIZE)], min_tokens=5)
    plan = build_sample_plan(next_rows([row(SamplingParams(temperature=0)), row(params)]))
    result = sample(torch.zeros(2, VOCAB_SIZE), plan)
    assert result.bad_rows.tolist() == [False, True]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 10**5000),
        ("temperature", 10**5000),
        ("seed", -(10**5000)),
        ("stop_token_ids", [10**5000]),
        ("logit_bias", {10**5000: 1}),
        ("logit_bias", {3: 10**5000}),
        ("stop", ["x"] * 10**6),
        ("stop_token_ids", ["x" * 10**7]),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_huge_values_are_refused_in_short(field: str, value: object) -> None:
    """The message that refuses a value fails over its size, or carries all of it."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
    assert len(str(caught.value)) < 300


class _Bytes:
    """Ids are bytes."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def stream(stop: list[str]) -> TextStream:
    tokenizer: Tokenizer = _Bytes()  # type: ignore[assignment]
    return TextStream(tokenizer, stop=stop)


def test_long_stop_strings_cost_no_more_than_short_ones() -> None:
    """Stop strings of 'aaa...ab' make every token of 'aaa...' cost their whole length."""
    stops = ["a" * n + "b" for n in range(20_000, 20_016)]
    text = stream(stops)
    with effort(200):
        for _ in range(100):
            text.push(b"a" * 100)
    assert text.push(b"c").endswith("aac")


def test_a_stop_with_half_a_character() -> None:
    """A lone surrogate in a stop string, which no text has, ends in a UnicodeEncodeError."""
    text = stream(["\ud800"])
    assert text.push(b"a\xed\xa0\x80b") + text.finish() == "a\ufffd\ufffd\ufffdb"
