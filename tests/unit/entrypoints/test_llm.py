"""`LLM`: results in order, one object a prompt, the same text by every way to it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from deepinfer import LLM, RequestOutput, SamplingParams
from deepinfer.errors import ConfigError, RequestError

PROMPTS = ["The lamp", "One winter the sea", "大海", "x"]
SEEDED = SamplingParams(temperature=1.0, seed=3, max_tokens=4)
GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def llm(tiny_dir: Path) -> Iterator[LLM]:
    with LLM(str(tiny_dir), device="cpu", dtype="float32") as made:
        yield made


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


@contextmanager
def ending_with(llm: LLM, prompt: str, place: int) -> Iterator[list[int]]:
    """The end token takes the place of a greedy token: ids that must come out, it included."""
    ids = llm.generate(prompt, GREEDY)[0].token_ids[: place + 1]
    eos_id, weight = (
        llm.get_tokenizer().eos_id,
        llm._requests.model.engine.worker.network.head.weight,
    )
    rows = [ids[place], eos_id]
    with torch.no_grad():
        weight[rows] = weight[rows[::-1]]
    try:
        yield [*ids[:place], eos_id]
    finally:
        with torch.no_grad():
            weight[rows] = weight[rows[::-1]]


def test_results_are_in_order(llm: LLM) -> None:
    """A result stands in another prompt's place."""
    outputs = llm.generate(PROMPTS, SEEDED)
    assert [output.prompt for output in outputs] == PROMPTS
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.prompt_token_ids == llm.get_tokenizer().encode(prompt)
        assert output.error is None
        assert len(output.outputs) == 1
        assert output.outputs[0].index == 0
    assert len({tuple(ids) for ids in tokens(outputs)}) == len(PROMPTS)


def test_alone_or_in_any_order(llm: LLM) -> None:
    """F02: neighbours or the order of the list change a seeded result."""
    expected = tokens(llm.generate(PROMPTS, SEEDED))
    assert tokens(llm.generate(PROMPTS[::-1], SEEDED)) == expected[::-1]
    assert [llm.generate(prompt, SEEDED)[0].token_ids for prompt in PROMPTS] == expected
    assert tokens(llm.generate([PROMPTS[0]] * 3, SEEDED)) == [expected[0]] * 3


def test_text_is_the_tokens(llm: LLM) -> None:
    """Text and ids of a result do not belong together."""
    for output in llm.generate(PROMPTS, SEEDED):
        assert len(output.token_ids) == 4
        assert output.text == llm.get_tokenizer().decode(output.token_ids)
        assert output.finish_reason == "length"


def test_one_prompt_is_a_list_of_one(llm: LLM) -> None:
    """A string is taken for a list of its characters."""
    assert tokens(llm.generate("The lamp", SEEDED)) == tokens(llm.generate(["The lamp"], SEEDED))


def test_token_ids_as_prompts(llm: LLM) -> None:
    """Ids get a BOS of their own, or mean something else than the text they stand for."""
    ids = [llm.get_tokenizer().encode(prompt) for prompt in PROMPTS]
    by_ids = llm.generate(prompt_token_ids=ids, sampling_params=SEEDED)
    assert tokens(by_ids) == tokens(llm.generate(PROMPTS, SEEDED))
    assert [output.prompt for output in by_ids] == [None] * len(PROMPTS)
    assert [output.prompt_token_ids for output in by_ids] == ids
    (bare,) = llm.generate(prompt_token_ids=[(5, 6)], sampling_params=SEEDED)
    assert bare.prompt_token_ids == [5, 6]


def test_token_ids_count_where_both_are_given(llm: LLM) -> None:
    """The text is computed, and the ids that were meant to replace it are not."""
    (output,) = llm.generate(["another text"], SEEDED, prompt_token_ids=[[5, 6]])
    (expected,) = llm.generate(prompt_token_ids=[[5, 6]], sampling_params=SEEDED)
    assert (output.prompt, output.token_ids) == ("another text", expected.token_ids)


def test_params_for_each_prompt(llm: LLM) -> None:
    """Every prompt gets the first one's parameters."""
    params = [
        SamplingParams(temperature=0, max_tokens=1),
        SamplingParams(seed=1, max_tokens=2),
        SamplingParams(seed=2, max_tokens=3),
        SamplingParams(temperature=9.0, seed=3, max_tokens=4),
    ]
    outputs = llm.generate(PROMPTS, params)
    assert [len(output.token_ids) for output in outputs] == [1, 2, 3, 4]
    for prompt, each, output in zip(PROMPTS, params, outputs, strict=True):
        assert llm.generate(prompt, each)[0].token_ids == output.token_ids


def test_default_params(llm: LLM) -> None:
    """Without parameters the answer has no end, or none at all."""
    (output,) = llm.generate("The lamp")
    assert len(output.token_ids) == SamplingParams().max_tokens


@pytest.mark.parametrize(("prompt", "seed"), [("The lamp", 1), ("大海", 2)])
def test_stream_joined_is_the_text(prompt: str, seed: int, llm: LLM) -> None:
    """H09: a stream loses, doubles or splits characters."""
    params = SamplingParams(temperature=1.5, seed=seed, max_tokens=12)
    (output,) = llm.generate(prompt, params)
    pieces = list(llm.stream(prompt, params))
    assert "".join(pieces) == output.text
    assert len(pieces) == 12
    ids = llm.get_tokenizer().encode(prompt)
    assert list(llm.stream(ids, params)) == pieces


def test_stream_gives_pieces_at_once(llm: LLM) -> None:
    """A reader waits for the whole answer, or leaves a request behind that runs for nobody."""
    engine = llm._requests.model.engine
    stream = llm.stream("The lamp", GREEDY)
    next(stream)
    assert engine.has_work
    stream.close()
    assert not engine.has_work


def test_streams_beside_each_other(llm: LLM) -> None:
    """Two open streams, or a call in between, take each other's tokens."""
    expected = ["".join(llm.stream(prompt, GREEDY)) for prompt in PROMPTS[:2]]
    streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2]]
    pieces = [[next(stream)] for stream in streams]
    try:
        for stream, found in zip(streams, pieces, strict=True):
            found.extend(stream)
    finally:
        for stream in streams:
            stream.close()
    assert ["".join(found) for found in pieces] == expected


@pytest.mark.parametrize("place", [0, 3])
def test_end_token_stops(place: int, llm: LLM) -> None:
    """The end token does not end, or the result says "length"."""
    with ending_with(llm, "The lamp", place) as expected:
        (output,) = llm.generate("The lamp", GREEDY)
        assert output.token_ids == expected
        assert output.finish_reason == "stop"
        assert "".join(llm.stream("The lamp", GREEDY)) == output.text


def test_ignore_eos(llm: LLM) -> None:
    """With ignore_eos the end token ends all the same, or makes the reason "stop"."""
    with ending_with(llm, "The lamp", 3) as expected:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        (longer,) = llm.generate("The lamp", params)
        assert longer.token_ids[:4] == expected
        assert (len(longer.token_ids), longer.finish_reason) == (6, "length")
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        (cut,) = llm.generate("The lamp", params)
        assert (cut.token_ids, cut.finish_reason) == (expected, "length")


def test_end_token_as_the_last_allowed(llm: LLM) -> None:
    """K08: an answer that ends by itself just at the limit is called cut off."""
    with ending_with(llm, "The lamp", 3) as expected:
        (output,) = llm.generate("The lamp", SamplingParams(temperature=0, max_tokens=4))
        assert (output.token_ids, output.finish_reason) == (expected, "stop")


def test_max_model_len(tiny_dir: Path) -> None:
    """I04: the model's limit is passed, or ends in an error instead of "length"."""
    with LLM(str(tiny_dir), device="cpu", dtype="float32", max_model_len=9) as llm:
        limited = llm.generate(
            prompt_token_ids=[[5] * 4, [5] * 8, [5] * 9],
            sampling_params=SamplingParams(temperature=0, max_tokens=100),
        )
    assert [len(output.token_ids) for output in limited[:2]] == [5, 1]
    assert [output.finish_reason for output in limited[:2]] == ["length"] * 2
    assert limited[2].error is not None
    assert "max_model_len" in limited[2].error.hint


def test_prompt_logprobs(llm: LLM) -> None:
    """C11: log-probabilities are zeros, or those of the token that was likeliest."""
    ids = llm.get_tokenizer().encode("The keeper took the lamp apart and laid every part down.")
    with torch.inference_mode():
        logits = llm._requests.model.engine.worker.network(torch.tensor([ids]))[0]
    expected = logits.log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    params = SamplingParams(max_tokens=1, prompt_logprobs=True)
    (output,) = llm.generate(prompt_token_ids=[ids], sampling_params=params)
    first, *rest = output.prompt_logprobs
    assert first is None
    assert [one.token_id for one in rest] == ids[1:]
    found = torch.tensor([one.logprob for one in rest])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert llm.generate("x", GREEDY)[0].prompt_logprobs is None


def test_no_prompts(llm: LLM) -> None:
    """An empty list is an error, or waits for something."""
    assert llm.generate([]) == []
    assert llm.generate(prompt_token_ids=[]) == []


def test_context_manager(tiny_dir: Path) -> None:
    """The model's memory is kept after the block, or an error in the block disappears."""
    with LLM(str(tiny_dir), device="cpu") as llm:
        assert llm.generate("x", GREEDY)[0].error is None
    assert llm._requests._model is None
    llm.close()
    with pytest.raises(ZeroDivisionError), LLM(str(tiny_dir), device="cpu") as llm:
        raise ZeroDivisionError
    assert llm._requests._model is None


def test_unknown_option(tiny_dir: Path) -> None:
    """A misspelt option is ignored and the default computes something else."""
    with pytest.raises(ConfigError, match="max_model_length") as caught:
        LLM(str(tiny_dir), max_model_length=5)
    assert caught.value.hint == "did you mean max_model_len?"


def test_options_reach_the_engine(tiny_dir: Path) -> None:
    """An option is accepted and dropped."""
    options = {"device": "cpu", "dtype": "float32", "weight_dtype": "bfloat16", "num_threads": 1}
    with LLM(str(tiny_dir), **options, max_model_len=77, act_quant="fp8") as llm:
        found = llm.options
    assert {name: getattr(found, name) for name in options} == options
    assert (found.max_model_len, found.act_quant) == (77, "fp8")


def test_a_path_is_a_folder(tiny_dir: Path) -> None:
    """pathlib's own kind of path is refused, or ends in a TypeError when the folder is missing."""
    with LLM(tiny_dir, device="cpu") as llm:
        assert llm.get_tokenizer().vocab_len == 512
    with pytest.raises(ConfigError) as caught:
        LLM(tiny_dir / "missing", device="cpu")
    assert caught.value.where == "model"


def test_report(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """What a user should see goes nowhere, or to a stream that nobody asked for."""
    monkeypatch.setenv("DEEPINFER_GC_INTERVAL_STEP", "5")
    lines: list[str] = []
    LLM(str(tiny_dir), device="cpu", report=lines.append)
    assert any("DEEPINFER_GC_INTERVAL_STEP" in line for line in lines)
    with caplog.at_level(logging.WARNING, logger="deepinfer"):
        LLM(str(tiny_dir), device="cpu")
    assert caplog.messages == lines


def test_arguments_that_do_not_fit(llm: LLM) -> None:
    """Lists of different lengths are cut to the shorter one."""
    for field, arguments in (
        ("prompts", {}),
        ("prompt_token_ids", {"prompts": ["a", "b"], "prompt_token_ids": [[1]]}),
        ("prompt_token_ids", {"prompts": "a", "prompt_token_ids": []}),
        ("sampling_params", {"prompts": ["a", "b"], "sampling_params": [SEEDED]}),
        ("sampling_params", {"prompts": [], "sampling_params": [SEEDED]}),
    ):
        with pytest.raises(RequestError) as caught:
            llm.generate(**arguments)
        assert caught.value.field == field
        assert caught.value.hint
