"""Drafts and grammars: the same answers, whatever is proposed at whatever place of a block."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from deepinfer import LLM, SamplingParams
from deepinfer.engine.steering import GrammarState
from tests.laws.drafters import SCRIPTS, Place, Script, answers_of, perfect, play

FIELDS = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"},
        "kind": {"enum": ["red", "green"]},
    },
    "required": ["id", "ok", "kind"],
}
PROMPTS = ["Hello", "The lamp"]
Make = Callable[..., LLM]


@pytest.fixture(scope="module")
def make(tiny_dir: Path) -> Iterator[Make]:
    """An engine with so many drafts; it numbers its requests from 0 each time it is asked for."""
    made: dict[int, LLM] = {}

    def one(num_drafts: int = 5, script: Script | None = None) -> LLM:
        if num_drafts not in made:
            drafts: dict[str, Any] = (
                {"num_drafts": num_drafts} if num_drafts else {"draft_schedule": "off"}
            )
            made[num_drafts] = LLM(
                tiny_dir,
                device="cpu",
                dtype="float32",
                max_num_seqs=16,
                max_model_len=600,
                **drafts,
            )
        llm = made[num_drafts]
        llm._requests._num_requests = 0
        engine: Any = llm._requests.model.engine
        vars(engine.worker).pop("draft", None)
        if script is not None:
            play(engine, script)
        return llm

    yield one
    for llm in made.values():
        llm.close()


def params_of(schema: Any = FIELDS, kind: str = "json", **params: Any) -> SamplingParams:
    asked = {"temperature": 1.5, "max_tokens": 60, "seed": 7, "logprobs": 1} | params
    so_args = {"schema_type": kind, "schema": schema} | asked.pop("so_args", {})
    return SamplingParams(so_args=so_args, **asked)


def run(llm: LLM, params: SamplingParams, prompts: list[str] = PROMPTS) -> list[Any]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert all(output.error is None for output in outputs)
    return outputs


@pytest.mark.parametrize(
    "asked", [{}, {"temperature": 0}, {"n": 2, "frequency_penalty": 0.7}], ids=str
)
@pytest.mark.parametrize("drafter", ["own", *SCRIPTS])
def test_same_answers(make: Make, drafter: str, asked: dict[str, Any]) -> None:
    """A grammar and drafts together give another answer, or one that is not valid."""
    params = params_of(**asked)
    expected = run(make(0), params)
    script = None if drafter == "own" else SCRIPTS[drafter](answers_of(expected))
    for num_drafts in (2, 5):
        found = run(make(num_drafts, script), params)
        assert found == expected
        for output in found:
            for one in output.outputs:
                if one.finish_reason == "stop":
                    validate(json.loads(one.text), FIELDS)


@pytest.mark.parametrize("offset", range(5))
def test_e02_the_thoughts_end_inside_a_block(make: Make, offset: int) -> None:
    """E02: what is drafted behind the end of the thoughts escapes the grammar, at each of 5 places
    of a block."""
    end = make(0).get_tokenizer().thinking_ids[1]
    free = make(0).get_tokenizer().encode(" this is free text", add_bos=False)
    thoughts = free[:offset]
    params = params_of(
        so_args={"trigger_token_ids": [end]}, golden_token_ids=[free[0], *thoughts, end]
    )
    expected = run(make(0), params)
    block = [*thoughts, end, *free * 2][:5]
    right = perfect(answers_of(expected))

    def script(request: Place, num: int) -> Any:
        return (block if request.num_output == 1 else right(request, num)[0]), [0.9] * num

    llm = make(5, script)
    found = run(llm, params)
    assert found == expected
    for output in found:
        assert output.token_ids[offset + 1] == end
        if output.finish_reason == "stop":
            tail = llm.get_tokenizer().decode(output.token_ids[offset + 2 : -1])
            validate(json.loads(tail), FIELDS)


def test_e04_illegal_drafts(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """E04: drafts that break the grammar cause error lines, or answers that are not valid."""
    fence = make(0).get_tokenizer().encode("```\n\n", add_bos=False)
    params = params_of()
    expected = run(make(0), params)
    capfd.readouterr()
    llm = make(5, lambda request, num: ((fence * 5)[:num], [0.9] * num))
    assert run(llm, params) == expected
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize("offset", range(5))
def test_e05_the_end_inside_a_block(
    make: Make, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E05: an end token in the middle of a block aborts the request, or a matcher that has finished
    is asked for a mask: at each of 5 places, where the text may end and where it may not."""
    params = params_of("(ab){1,8}", "regex", max_tokens=40, temperature=1.0)
    expected = run(make(0), params)
    assert {output.finish_reason for output in expected} == {"stop"}
    eos = make(0).get_tokenizer().eos_id
    right = perfect(answers_of(expected))
    asked_after_the_end = []
    mask = GrammarState.mask

    def checked(state: Any) -> Any:
        # Nothing of an end token may have been given to it.
        asked_after_the_end.append(state._matcher.is_terminated())
        return mask(state)

    monkeypatch.setattr(GrammarState, "mask", checked)

    def script(request: Place, num: int) -> Any:
        ids = list(right(request, num)[0])
        ids[offset] = eos
        return ids, [0.9] * num

    assert run(make(5, script), params) == expected
    assert asked_after_the_end
    assert not any(asked_after_the_end)


def test_e17_rollback_does_not_grow(make: Make) -> None:
    """E17: rolling a grammar back takes longer and longer: in each step at most 5 tokens are rolled
    back, and at the end of 200 tokens as many as at their beginning."""
    params = params_of("[ab]{200,300}", "regex", max_tokens=200, logprobs=None)
    expected = run(make(0), params, ["x"])
    llm = make(5, SCRIPTS["coin"](answers_of(expected)))
    counts: list[int] = []
    new_state = llm._requests.model.engine._grammars.start

    class Counting:
        """A matcher that tells what is rolled back."""

        def __init__(self, matcher: Any) -> None:
            self._matcher = matcher

        def __getattr__(self, name: str) -> Any:
            return getattr(self._matcher, name)

        def rollback(self, num_tokens: int) -> None:
            counts.append(num_tokens)
            self._matcher.rollback(num_tokens)

    def start(*args: Any) -> GrammarState:
        state = new_state(*args)
        state._matcher = Counting(state._matcher)
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm._requests.model.engine._grammars, "start", start)
        assert run(llm, params, ["x"]) == expected
    assert 30 < len(counts) <= 200
    assert max(counts) <= 5
    third = len(counts) // 3
    assert sum(counts[-third:]) < 2 * sum(counts[:third]) + 10
