"""Hostile and careless prompts: each is refused by its field's name, and costs its neighbours
nothing.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer import LLM, RequestOutput, SamplingParams
from deepinfer.errors import RequestError

VOCAB_SIZE = 512
SEEDED = SamplingParams(temperature=1.0, seed=3, max_tokens=5)

BAD_TEXTS: dict[str, object] = {
    "empty": "",
    "lone surrogate": "a\ud800b",
    "surrogates in the wrong order": "\udc00\ud800",
    "undecodable byte of an argument": "caf\udce9",
    "too long": "the " * 5000,
    "a million characters": "a" * 1_000_000,
    "none": None,
    "bytes": b"text",
    "number": 5,
    "list": ["text"],
    "dict": {"prompt": "text"},
}
BAD_IDS: dict[str, object] = {
    "empty": [],
    "too long": [5] * 4096,
    "one above the vocabulary": [5, VOCAB_SIZE],
    "negative": [-1],
    "of more than 64 bits": [2**64 + 3],
    "true": [True],
    "whole float": [3.0],
    "NaN": [math.nan],
    "infinity": [math.inf],
    "none inside": [5, None],
    "string inside": ["5"],
    "list inside": [[5]],
    "text": "text",
    "bytes": b"text",
    "number": 5,
    "none": None,
}

# Good text that looks dangerous.
GOOD_TEXTS = {
    "NUL": "a\0b",
    "only NUL": "\0",
    "spaces": " \t\r\n ",
    "control characters": "\x1b[2J\x07\x7f",
    "byte order mark": "\ufeffa",
    "no character": "\uffff\ufffe",
    "far planes": "\U0010ffff🙂",
    "combining marks": "e" + "\u0301" * 200,
    "right to left": "\u202eabc",
    "600 digits": "7" * 600,
    "format": "{0} %s ${x}",
}


@pytest.fixture(scope="module")
def llm(tiny_dir: Path) -> Iterator[LLM]:
    with LLM(str(tiny_dir), device="cpu", dtype="float32") as made:
        yield made


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def assert_refused(output: RequestOutput, *fields: str) -> None:
    assert isinstance(output.error, RequestError)
    assert output.outputs == []
    assert output.error.field in fields
    assert output.error.what
    assert output.error.hint


def refused(call: Callable[[], Any], *fields: str) -> None:
    """`call` raises an error that names one of the fields and gives a way out."""
    with pytest.raises(RequestError) as caught:
        call()
    assert caught.value.field in fields
    assert caught.value.hint


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_text_is_refused_and_its_neighbours_live(name: str, llm: LLM) -> None:
    """I01, I03: one bad prompt ends the whole call, or changes what the others get."""
    alone = [llm.generate(text, SEEDED)[0] for text in ("The lamp", "The sea")]
    first, bad, last = llm.generate(["The lamp", BAD_TEXTS[name], "The sea"], SEEDED)
    assert_refused(bad, "prompt")
    assert tokens([first, last]) == tokens(alone)


@pytest.mark.parametrize("name", BAD_IDS)
def test_bad_ids_are_refused_and_their_neighbours_live(name: str, llm: LLM) -> None:
    """L06: an id outside the tables ends in an index error, or reads another row."""
    alone = llm.generate(prompt_token_ids=[[5, 6]], sampling_params=SEEDED)[0]
    first, bad, last = llm.generate(
        prompt_token_ids=[[5, 6], BAD_IDS[name], [5, 6]], sampling_params=SEEDED
    )
    assert_refused(bad, "prompt", "prompt_token_ids")
    assert first.token_ids == last.token_ids == alone.token_ids


@pytest.mark.parametrize(
    "ids",
    [
        np.array([5, 6]),
        np.array([5]),
        np.array([]),
        [np.int64(5), np.int32(6)],
        torch.tensor([5, 6]),
        torch.tensor([5.5, 6.5]),
    ],
    ids=repr,
)
def test_arrays_as_ids(ids: Any, llm: LLM) -> None:
    """The ids of an array end in a trace from inside its library: taken, or refused, by name."""
    (output,) = llm.generate(prompt_token_ids=[ids], sampling_params=SEEDED)
    if output.error is None:
        same = llm.generate(prompt_token_ids=[list(map(int, ids))], sampling_params=SEEDED)
        assert output.token_ids == same[0].token_ids
    else:
        assert_refused(output, "prompt", "prompt_token_ids")


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_text_in_a_stream(name: str, llm: LLM) -> None:
    """I06: a stream ends early without an error, or with one that names nothing."""
    # A stream takes ids too, so a list counts as a list of ids.
    refused(lambda: list(llm.stream(BAD_TEXTS[name], SEEDED)), "prompt", "prompt_token_ids")


@pytest.mark.parametrize("name", [name for name in BAD_IDS if name != "text"])
def test_bad_ids_in_a_stream(name: str, llm: LLM) -> None:
    """I06: a stream of bad ids ends early without an error, or with one that names nothing."""
    refused(lambda: list(llm.stream(BAD_IDS[name], SEEDED)), "prompt", "prompt_token_ids")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"prompts": 5},
        {"prompts": b"text"},
        {"prompts": {"prompt": "text"}},
        {"prompt_token_ids": 5},
        {"prompt_token_ids": "text"},
        {"prompt_token_ids": [5, 6]},  # the commonest: ids without the outer list
        {"prompts": "a", "sampling_params": 5},
        {"prompts": "a", "sampling_params": [5]},
        {"prompts": "a", "sampling_params": [None]},
        {"prompts": "a", "sampling_params": {"temperature": 0}},
        {"prompts": "a", "sampling_params": "x"},
    ],
    ids=str,
)
def test_arguments_of_a_wrong_type(arguments: dict[str, Any], llm: LLM) -> None:
    """An argument of a wrong type ends in a trace of ours, or is taken for something else."""
    *_, field = ("prompts", *arguments)
    fields = (field, "prompt") if field == "prompts" else (field,)
    try:
        outputs = llm.generate(**arguments)
    except RequestError as error:
        assert error.field in fields
        assert error.hint
    else:
        assert outputs
        for output in outputs:
            assert_refused(output, *fields)


def test_params_of_a_wrong_type_in_a_stream(llm: LLM) -> None:
    """Parameters of a wrong type end in a trace of ours."""
    refused(lambda: list(llm.stream("a", {"temperature": 0})), "sampling_params")


@pytest.mark.parametrize("name", GOOD_TEXTS)
def test_odd_text_is_text(name: str, llm: LLM) -> None:
    """Text that is good Unicode is refused, or its bytes are changed on the way to the model."""
    text = GOOD_TEXTS[name]
    (output,) = llm.generate(text, SEEDED)
    assert output.error is None
    assert len(output.token_ids) == 5
    bos_id, *ids = output.prompt_token_ids
    assert bos_id == llm.get_tokenizer().bos_id
    assert b"".join(map(llm.get_tokenizer().token_bytes, ids)) == text.encode()


def test_spelled_control_tokens_stay_text(llm: LLM) -> None:
    """J10: a user who spells a control token forges a turn, or ends the text before it starts."""
    tokenizer = llm.get_tokenizer()
    control_ids = set(tokenizer.control_ids.values())
    assert len(control_ids) >= 12
    spelled = [*tokenizer.control_ids, "".join(tokenizer.control_ids)]
    prompts = [prompt for name in spelled for prompt in (name, f"a{name}b", f" {name}\n")]
    one = SamplingParams(temperature=0, max_tokens=1)
    for prompt, output in zip(prompts, llm.generate(prompts, one), strict=True):
        assert output.error is None
        assert output.prompt_token_ids[0] == tokenizer.bos_id
        assert control_ids.isdisjoint(output.prompt_token_ids[1:]), prompt


def test_the_longest_prompt(llm: LLM) -> None:
    """I03: the limit is off by one, or says nothing of itself."""
    assert llm.options.max_model_len == 4096
    ids = llm.get_tokenizer().encode("a " * 10_000)
    (output,) = llm.generate(prompt_token_ids=[ids[:4096]], sampling_params=SEEDED)
    assert_refused(output, "prompt")
    assert "4096" in str(output.error)


def test_many_bad_prompts_and_then_a_good_one(llm: LLM) -> None:
    """What a refused prompt leaves behind shows in the next answer."""
    expected = tokens(llm.generate("The lamp", SEEDED))
    for text in ("", "a\ud800", "the " * 5000):
        assert_refused(llm.generate(text, SEEDED)[0], "prompt")
        assert tokens(llm.generate("The lamp", SEEDED)) == expected


def test_refused_results_raise_when_they_are_read(llm: LLM) -> None:
    """I06: the text of a refused prompt reads like an empty answer."""
    (output,) = llm.generate("", SEEDED)
    for name in ("text", "token_ids", "finish_reason"):
        with pytest.raises(RequestError, match="prompt"):
            getattr(output, name)
