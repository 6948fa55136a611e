"""`SamplingParams`: every wrong value is refused by its field's name; the good ones mean what they
say.
"""

import math
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from deepinfer.errors import RequestError
from deepinfer.front.intake import check_against
from deepinfer.sampling_params import SamplingParams
from deepinfer.so_args import SoArgs, read_so_args

# Whole numbers that no float can hold: comparing them is fine, converting them is not.
HUGE = 10**400

WRONG: dict[str, tuple[object, ...]] = {
    "temperature": (-1e-9, -1, math.nan, math.inf, -math.inf, HUGE, "1", None, True, 1j, [1.0]),
    "top_p": (0, 0.0, -0.1, 1.0000001, 2, math.nan, math.inf, HUGE, "0.9", None, True),
    "top_k": (-2, 2**31, HUGE, 1.0, math.nan, "5", None, True),
    "seed": (2**64, -(2**63) - 1, HUGE, 0.0, math.nan, "0", False),
    "max_tokens": (0, -1, 2**31, HUGE, 1.0, math.nan, "16", None, True),
    "ignore_eos": (0, 1, None, "true"),
    "min_p": (-0.1, 1.1, math.nan, math.inf, HUGE, "0", None, False),
    "presence_penalty": (-2.1, 2.1, math.nan, -math.inf, HUGE, "0", None, True),
    "frequency_penalty": (-2.1, 2.1, math.nan, -math.inf, HUGE, "0", None, True),
    "repetition_penalty": (0, 0.0, -1, math.nan, math.inf, HUGE, "1", None, True),
    "logit_bias": (
        *({5: 101}, {5: -100.5}, {5: math.nan}, {5: -math.inf}, {5: "1"}, {5: True}, {5: None}),
        *({-1: 1}, {"5": 1}, {True: 1}, {HUGE: 1}, {5.0: 1}, [5], "5", 5),
    ),
    "n": (0, -1, 1025, HUGE, 1.0, math.nan, "1", None, True),
    "min_tokens": (-1, 17, 2**31, HUGE, 1.0, math.nan, "1", None, True),
    "stop": ("", [""], ["a", ""], [5], 5, b"a", {"a"}, ["a"] * 17, [None], [["a"]]),
    "include_stop_str_in_output": (0, 1, None, "true"),
    "stop_token_ids": (5, [-1], [HUGE], [1.0], ["1"], [True], [None], "5", b"5"),
    "logprobs": (-1, 1001, HUGE, 1.0, math.nan, "1", [1]),
    "top_logprobs": (-1, 1001, HUGE, 1.0, math.nan, "1", None, True),
    "prompt_logprobs": (-1, 1001, HUGE, 1.0, math.nan, "1", [1]),
    "golden_token_ids": (5, [-2], [HUGE], [1.0], ["1"], [True], [None], "5"),
    "first_n_token_no_eos": (-1, 2, HUGE, 1.0, math.nan, "1", None, True),
    "max_thinking_tokens": (-1, HUGE, 1.0, math.nan, "1", True),
    "so_args": ("json", 5, [], True),
    "cache_salt": (5, True, b"a", ["a"]),
}
RIGHT: dict[str, tuple[object, ...]] = {
    "temperature": (0, 0.0, -0.0, 1e-300, 1e-5, 1, 2.5, 1e308, np.float64(0.5)),
    "top_p": (1e-300, 1e-8, 0.5, 1, 1.0),
    "top_k": (-1, 0, 1, 2**31 - 1),
    "seed": (None, 0, -1, -(2**63), 2**63, 2**64 - 1),
    "max_tokens": (1, 2**31 - 1),
    "ignore_eos": (False, True),
    "min_p": (0, 0.0, 1e-300, 0.5, 1),
    "presence_penalty": (-2, 0, 1.5, 2.0),
    "frequency_penalty": (-2, 0, 1.5, 2.0),
    "repetition_penalty": (1e-300, 0.5, 1, 1e300),
    "logit_bias": ({}, {5: 100, 6: -100.0}, dict.fromkeys(range(300), 0.5), {np.int64(7): 1}),
    "n": (1, 1024, np.int32(3)),
    "min_tokens": (0, 1, 16),
    "stop": ((), ("a",), ("a",) * 16, ("\n\n", "é")),
    "include_stop_str_in_output": (False, True),
    "stop_token_ids": ((), (0, 5)),
    "logprobs": (None, False, True, 0, 5, 1000),
    "top_logprobs": (0, 5, 1000),
    "prompt_logprobs": (None, False, True, 0, 5, 1000),
    "golden_token_ids": ((), (-1, 0, 5)),
    "first_n_token_no_eos": (0, 1),
    "max_thinking_tokens": (None, 0, 5),
    "cache_salt": (None, "", "tenant"),
    "so_args": (
        None,
        {"schema_type": "json", "schema": {"type": "null"}},
        {"schema_type": "json_object"},
        {"schema_type": "regex", "schema": "a"},
        {"schema_type": "ebnf", "schema": 'root ::= "a"', "trigger_token_ids": [1, 2]},
        SoArgs("json", "{}", (3,), 4, "none"),
    ),
}


def cases(table: dict[str, tuple[object, ...]]) -> list[tuple[str, object]]:
    return [(field, value) for field, values in table.items() for value in values]


def shown(value: object) -> str:
    return str(value)[:24]


def test_every_field_is_tried() -> None:
    """A new field comes without its wrong values."""
    assert {f.name for f in fields(SamplingParams)} == set(WRONG) == set(RIGHT)


@pytest.mark.parametrize(("field", "value"), cases(WRONG), ids=shown)
def test_wrong_values(field: str, value: object) -> None:
    """G01, G04: a value that cannot be honoured is clamped, or breaks deep inside the engine."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
    assert caught.value.what.startswith("found ")
    assert caught.value.hint.startswith("expected ")


@pytest.mark.parametrize(("field", "value"), cases(RIGHT), ids=shown)
def test_right_values(field: str, value: object) -> None:
    """A border value that makes sense is refused, or changed on the way."""
    kept = read_so_args(value) if field == "so_args" else value
    assert getattr(SamplingParams(**{field: value}), field) == kept  # type: ignore[arg-type]


def test_defaults() -> None:
    """I08: a default moves, and with it everybody's text."""
    assert SamplingParams() == SamplingParams(
        temperature=1.0, top_p=1.0, top_k=-1, seed=None, max_tokens=16, ignore_eos=False
    )


def test_frozen() -> None:
    """A value is changed after it was checked, under requests that share the object."""
    with pytest.raises(FrozenInstanceError):
        SamplingParams().top_p = 7.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("temperature", "greedy"), [(0, True), (1e-12, True), (9e-6, True), (1e-5, False), (1, False)]
)
def test_greedy(temperature: float, greedy: bool) -> None:
    """G01: a temperature near zero is divided by instead of taken for zero."""
    assert SamplingParams(temperature=temperature).greedy is greedy


@pytest.mark.parametrize(
    ("seed", "word"), [(0, 0), (7, 7), (-1, 2**64 - 1), (-(2**63), 2**63), (2**64 - 1, 2**64 - 1)]
)
def test_seed_as_a_word(seed: int, word: int) -> None:
    """A negative seed leaves the range of 64-bit words, or is taken for another one."""
    assert SamplingParams(seed=seed).seed_or_random() == word


def test_no_seed_draws_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """C16: requests without a seed share one stream of random numbers."""
    asked: list[int] = []

    def randbelow(limit: int) -> int:
        asked.append(limit)
        return len(asked)

    monkeypatch.setattr("secrets.randbelow", randbelow)
    params = SamplingParams()
    assert [params.seed_or_random(), params.seed_or_random()] == [1, 2]
    assert asked == [2**64, 2**64]


def everything() -> SamplingParams:
    """Every field that can hold something that could change, does."""
    return SamplingParams(
        logit_bias={5: 1.5, 2: -3},
        stop=["a", "b"],
        stop_token_ids=[7],
        golden_token_ids=[-1, 4],
        seed=3,
        logprobs=2,
        so_args={"schema_type": "regex", "schema": "a+", "trigger_token_ids": [5]},
    )


def test_nothing_inside_changes() -> None:
    """The caller's list grows under a request that is running, or params cannot be a key."""
    stop, bias = ["a"], {5: 1.0}
    params = SamplingParams(stop=stop, logit_bias=bias)
    stop.append("b")
    bias[6] = 2.0
    assert params.stop == ("a",)
    assert params.logit_bias == {5: 1.0}
    with pytest.raises(TypeError):
        params.logit_bias[5] = 2.0  # type: ignore[index]
    assert hash(everything()) == hash(everything())
    assert everything() == everything()
    assert everything() != replace(everything(), logit_bias={5: 1.5})


def test_copies() -> None:
    """Params do not survive the way to another process, or a change of one field."""
    params = everything()
    assert pickle.loads(pickle.dumps(params)) == params
    assert replace(params) == params
    assert replace(params, seed=9).seed == 9
    assert "1.5" in repr(params)


def test_seq_seed_is_seed() -> None:
    """A DeepInfer script's seq_seed is ignored, or two seeds are taken for one."""
    assert SamplingParams(seq_seed=1) == SamplingParams(seed=1)
    assert SamplingParams(seed=1, seq_seed=1).seed == 1
    for wrong in ({"seed": 1, "seq_seed": 2}, {"seq_seed": 1.5}, {"seq_seed": 2**64}):
        with pytest.raises(RequestError) as caught:
            SamplingParams(**wrong)  # type: ignore[arg-type]
        assert caught.value.field == "seq_seed"


def test_refused_by_name() -> None:
    """A parameter that is not honoured is accepted and thrown away."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(eos_id=1)
    assert caught.value.field == "eos_id"
    SamplingParams(so_args=None, eos_id=None)


def test_so_args_are_refused_by_field() -> None:
    """A grammar that a request asks for is dropped, because some other field was in the way."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(so_args={"schema_type": "xml", "schema": "x"})
    assert caught.value.field == "so_args.schema_type"
    with pytest.raises(RequestError) as caught:
        SamplingParams(so_args={"schema_type": "json", "schema": "{}"}, ignore_eos=True)
    assert caught.value.field == "ignore_eos"


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, -1),
        ({"logprobs": False}, -1),
        ({"logprobs": True}, 0),
        ({"logprobs": 0}, 0),
        ({"logprobs": 1}, 1),
        ({"logprobs": 4}, 4),
        ({"top_logprobs": 4}, 4),
        ({"logprobs": False, "top_logprobs": 4}, 4),
        ({"logprobs": True, "top_logprobs": 4}, 4),
        ({"logprobs": 4, "top_logprobs": 4}, 4),
    ],
)
def test_num_logprobs(given: Mapping[str, int], count: int) -> None:
    """True is taken for 1, or 0 for nothing."""
    assert SamplingParams(**given).num_logprobs == count  # type: ignore[arg-type]
    if "top_logprobs" not in given:
        asked = SamplingParams(prompt_logprobs=given.get("logprobs"))
        assert asked.num_prompt_logprobs == count


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("min_tokens", {"min_tokens": 5, "max_tokens": 4}),
        ("top_logprobs", {"logprobs": 3, "top_logprobs": 4}),
    ],
)
def test_contradictions(field: str, given: Mapping[str, int]) -> None:
    """G13: of two fields that contradict each other one wins in silence."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(**given)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_first_token_is_no_end() -> None:
    """G13: first_n_token_no_eos has no effect, or lowers min_tokens."""
    assert SamplingParams(first_n_token_no_eos=1).min_tokens == 1
    assert SamplingParams(first_n_token_no_eos=1, min_tokens=3).min_tokens == 3
    assert SamplingParams().min_tokens == 0


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("logit_bias", {"logit_bias": {3: 1, 100: 1}}),
        ("stop_token_ids", {"stop_token_ids": [100]}),
        ("golden_token_ids", {"golden_token_ids": [-1, 2**31 - 1]}),
        ("min_tokens", {"min_tokens": 50, "max_tokens": 60}),
        ("logprobs", {"logprobs": 101}),
        ("prompt_logprobs", {"prompt_logprobs": 101}),
    ],
)
def test_against_the_model(field: str, given: Mapping[str, object]) -> None:
    """G06: an id beyond the vocabulary, or a length beyond the model's, reaches the engine."""
    params = SamplingParams(**given)  # type: ignore[arg-type]
    with pytest.raises(RequestError) as caught:
        check_against(params, vocab_size=100, max_model_len=50)
    assert caught.value.field == field
    check_against(params, vocab_size=2**31, max_model_len=51)


def test_the_model_takes_what_fits() -> None:
    """G06: the last id of the vocabulary is refused, or -1 of golden_token_ids."""
    params = SamplingParams(
        logit_bias={99: 1},
        stop_token_ids=[99],
        golden_token_ids=[-1, 99],
        logprobs=100,
        max_tokens=10**6,
        min_tokens=49,
    )
    check_against(params, vocab_size=100, max_model_len=50)
    check_against(SamplingParams(), vocab_size=1, max_model_len=2)
