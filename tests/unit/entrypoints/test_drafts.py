"""Several tokens of one step, as callers see them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer import LLM, SamplingParams
from tests.laws.drafters import perfect, play

SIZES: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_num_seqs": 8}
PROMPTS = ["The lamp", "One winter the sea", "x"]


@pytest.fixture(scope="module")
def plain(tiny_dir: Path) -> Iterator[LLM]:
    with LLM(tiny_dir, max_model_len=300, draft_schedule="off", **SIZES) as made:
        yield made


@pytest.fixture
def drafting(tiny_dir: Path) -> Iterator[LLM]:
    with LLM(tiny_dir, max_model_len=300, **SIZES) as made:
        yield made


def outputs(llm: LLM, params: SamplingParams) -> list[Any]:
    return llm.generate(PROMPTS, params, use_tqdm=False)


def knowing(llm: LLM, found: list[Any]) -> LLM:
    answers = {
        (str(n), one.index): one.token_ids for n, out in enumerate(found) for one in out.outputs
    }
    play(llm._requests.model.engine, perfect(answers))
    return llm


def test_h04_nothing_behind_a_stop_string(plain: LLM, drafting: LLM) -> None:
    """H04: text, tokens or counts go on behind a stop string, as far as drafts were accepted."""
    asked: dict[str, Any] = {
        "temperature": 1.5,
        "seed": 3,
        "max_tokens": 40,
        "ignore_eos": True,
        "n": 2,
    }
    longer = outputs(plain, SamplingParams(**asked))
    params = SamplingParams(**asked, stop=["e", "a"], logprobs=1)
    expected = outputs(plain, params)
    assert {one.stop_reason for out in expected for one in out.outputs} <= {"e", "a"}
    assert outputs(knowing(drafting, longer), params) == expected
    # The step went on behind it, or this has shown nothing.
    stats = drafting.draft_stats()
    assert stats.num_tokens > sum(len(one.token_ids) for out in expected for one in out.outputs)


def test_a_conversation_that_ends_inside_a_step(plain: LLM, drafting: LLM) -> None:
    """H04: what was accepted behind a stop string of an answer becomes part of it."""
    messages = [{"role": "user", "content": "Hello"}]
    asked: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 60}
    longer = plain.chat(messages, SamplingParams(**asked), use_tqdm=False, thinking=False)
    knowing(drafting, [one.output for one in longer])
    params = SamplingParams(**asked, stop=["e", "o"])
    (expected,) = plain.chat(messages, params, use_tqdm=False, thinking=False)
    (found,) = drafting.chat(messages, params, use_tqdm=False, thinking=False)
    assert found.message == expected.message
    assert found.output == expected.output
    assert found.message.stop_sequence in ("e", "o")


def test_a_stream_is_the_text(plain: LLM, drafting: LLM) -> None:
    """A stream loses the pieces of a step but for the first, or says them twice."""
    params = SamplingParams(temperature=0, max_tokens=30)
    whole = outputs(plain, params)
    knowing(drafting, whole)
    assert "".join(drafting.stream(PROMPTS[0], params)) == whole[0].text


def test_an_interrupt_while_drafts_are_made(drafting: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """K04: an interrupt among drafts loses a token, or drafts of before are verified after it."""
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = outputs(drafting, params)
    engine = drafting._requests.model.engine
    start_draft, calls = engine.worker.start_draft, []

    def interrupted(plan: Any) -> Any:
        calls.append(plan)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return start_draft(plan)

    engine.submit("a", expected[0].prompt_token_ids, params)
    monkeypatch.setattr(engine.worker, "start_draft", interrupted)
    found = []
    while engine.has_work:
        try:
            found += [delta.token_id for delta in engine.step()]
        except KeyboardInterrupt:
            assert len(calls) == 2
    assert len(calls) > 2
    assert found == expected[0].token_ids
