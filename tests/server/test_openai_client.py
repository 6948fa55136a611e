"""The `openai` client, as its users write it, against a server of the demo model."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import jsonschema
import openai
import pytest

from deepinfer.tools.eval_structured import make_json
from tests.server.openai_asks import CALL, PLAIN, SUM, chat, joined
from tests.server.servers import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.sample]


@pytest.fixture(scope="module")
def client(demo_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def test_a_sum(client: openai.OpenAI) -> None:
    """A plain question gets no answer, a wrong one, or one without usage."""
    answer = chat(client)
    assert answer.choices[0].message.content == "85"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens > 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    again = chat(client, messages=[{"role": "developer", "content": "Be brief."}, *SUM])
    assert again.choices[0].message.role == "assistant"


def test_stream_is_the_whole(client: openai.OpenAI) -> None:
    """A stream says something else than the whole answer, thoughts included."""
    whole = chat(client, extra_body={}).choices[0].message
    content, reasoning, chunks = joined(chat(client, extra_body={}, stream=True))
    assert (content, reasoning) == (whole.content, whole.reasoning_content)
    assert reasoning
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("wants_usage", [True, False])
def test_usage_piece_of_a_stream(client: openai.OpenAI, wants_usage: bool) -> None:
    """I07: usage shares the last piece of content, or the reason to finish is missing or empty."""
    options = {"stream_options": {"include_usage": True}} if wants_usage else {}
    *pieces, end = list(chat(client, stream=True, **options))
    if wants_usage:
        assert end.choices == []
        assert end.usage.prompt_tokens_details.cached_tokens >= 0
        assert end.usage.completion_tokens_details.reasoning_tokens == 0
        end = pieces.pop()
    assert end.choices[0].finish_reason == "stop"
    assert not end.choices[0].delta.content
    assert all(piece.usage is None for piece in [*pieces, end])
    assert all(piece.choices[0].finish_reason is None for piece in pieces)


def test_usage_counts_cached_tokens(client: openai.OpenAI) -> None:
    """The second time a prompt is found in the cache, and nobody is told."""
    text = "Copy:\n" + "a boat and a map " * 60
    fields = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
    chat(client, **fields)
    usage = chat(client, **fields).usage
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_many_choices(client: openai.OpenAI) -> None:
    """I09: choices get lost, or their indices are wrong, streamed or not."""
    fields = {"n": 8, "temperature": 1, "max_tokens": 12, "seed": 7, "messages": SUM}
    whole = chat(client, **fields)
    assert [one.index for one in whole.choices] == list(range(8))
    streamed = dict.fromkeys(range(8), "")
    ends = set()
    for chunk in chat(client, **fields, stream=True):
        for one in chunk.choices:
            streamed[one.index] += one.delta.content or ""
            ends |= {one.index} if one.finish_reason else set()
    assert ends == set(range(8))
    assert streamed == {one.index: one.message.content for one in whole.choices}


def test_logprobs(client: openai.OpenAI) -> None:
    """Log-probabilities are missing, or are not of the tokens that were said."""
    answer = chat(client, logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert "".join(one.token for one in entries).startswith("85")
    assert all(len(one.top_logprobs) == 2 for one in entries)
    assert all(one.top_logprobs[0].logprob == one.logprob for one in entries)  # temperature 0


def test_sampling_values_count(client: openai.OpenAI) -> None:
    """I08: what was sent is not what is sampled with: the recipe alone would take temperature 1."""
    text = [{"role": "user", "content": "Tell me a story."}]
    answers = {
        joined(chat(client, messages=text, extra_body={}, max_tokens=30, stream=True))[:2]
        for _ in range(3)
    }
    assert len(answers) == 1
    seeded = {"temperature": 1, "seed": 5, "max_tokens": 12, "messages": text}
    first, second = chat(client, **seeded), chat(client, **seeded)
    assert first.choices[0].message == second.choices[0].message
    banned = chat(client, logit_bias={"99": -100}, extra_body=PLAIN | {"top_k": 1, "min_p": 0.1})
    assert banned.choices[0].message.content
    shown = client.models.retrieve("demo").model_dump()
    assert shown["default_sampling"]["temperature"] == 1.0


def test_stop_strings(client: openai.OpenAI) -> None:
    """H01, H02, H04: the stop string, part of it, or what follows it reaches the client."""
    fields = {"messages": [{"role": "user", "content": "Copy:\none two three four"}]}
    whole = chat(client, **fields).choices[0].message.content
    assert "three" in whole
    cut = chat(client, **fields, stop=["three", "xyz"]).choices[0]
    assert (cut.message.content, cut.finish_reason) == (whole.split("three")[0], "stop")
    content, _, _ = joined(chat(client, **fields, stop=["three"], stream=True))
    assert content == cut.message.content


def test_limits_of_tokens(client: openai.OpenAI) -> None:
    """J07: an answer that is cut says stop; or the limit on thoughts does not hold."""
    cut = chat(client, max_completion_tokens=1)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage.completion_tokens == 1
    limited = chat(client, extra_body={"thinking_budget": 3})
    assert limited.usage.completion_tokens_details.reasoning_tokens <= 3
    same = chat(client, extra_body={"thinking": {"type": "enabled", "budget_tokens": 3}})
    assert same.choices[0].message == limited.choices[0].message


def test_json_of_a_schema(client: openai.OpenAI) -> None:
    """The answer does not obey its schema, with thoughts before it or without."""
    task = make_json(Random(1), "held_out", 3)
    form = task.options["response_format"]
    for thinking in ("disabled", "enabled"):
        answer = chat(
            client,
            messages=task.messages,
            response_format=form,
            extra_body={"thinking": {"type": thinking, "budget_tokens": 40}},
        )
        value = json.loads(answer.choices[0].message.content)
        jsonschema.validate(value, form["json_schema"]["schema"])
        if thinking == "disabled":
            assert value == json.loads(task.answer.content)


def test_responses(client: openai.OpenAI) -> None:
    """The Responses API answers in a way that its client cannot read, streamed or whole."""
    fields: dict[str, Any] = {
        "model": "demo",
        "input": "What is 47 + 38?",
        "temperature": 0,
        "reasoning": {"effort": "none"},
    }
    whole = client.responses.create(**fields)
    assert (whole.output_text, whole.status) == ("85", "completed")
    events = list(client.responses.create(**fields, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert "".join(deltas) == "85"
    assert [one.sequence_number for one in events] == list(range(len(events)))
    thought = client.responses.create(**fields | {"reasoning": {"effort": "low"}})
    assert [item.type for item in thought.output] == ["reasoning", "message"]
    assert thought.usage.output_tokens_details.reasoning_tokens > 0


def test_responses_tool_round_trip(client: openai.OpenAI) -> None:
    """A call in the Responses API is wrong, or its result cannot be sent back."""
    (wanted,) = CALL.answer.calls
    tools = [{"type": "function", **tool["function"]} for tool in CALL.options["tools"]]
    given: list[Any] = [{"role": "user", "content": CALL.messages[0]["content"]}]
    fields: dict[str, Any] = {
        "model": "demo",
        "tools": tools,
        "temperature": 0,
        "reasoning": {"effort": "none"},
    }
    first = client.responses.create(**fields, input=given)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == (wanted.name, json.loads(wanted.arguments))
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    second = client.responses.create(**fields, input=[*given, *first.output, output])
    assert second.output_text


def test_completions(client: openai.OpenAI) -> None:
    """Completions of several prompts are mixed up, or differ when they are streamed."""
    fields: dict[str, Any] = {
        "model": "demo",
        "prompt": ["It is a truth", "Alice was beginning to"],
        "max_tokens": 12,
        "temperature": 0,
        "n": 2,
    }
    whole = client.completions.create(**fields)
    assert [one.index for one in whole.choices] == [0, 1, 2, 3]
    assert whole.usage.completion_tokens == sum(12 for _ in range(4))
    streamed = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(**fields, stream=True):
        for one in chunk.choices:
            streamed[one.index] += one.text
    assert streamed == {one.index: one.text for one in whole.choices}
    alone = client.completions.create(**fields | {"prompt": "Alice was beginning to", "n": 1})
    assert alone.choices[0].text == whole.choices[2].text


def test_echo_scores_a_prompt(client: openai.OpenAI) -> None:
    """I02: max_tokens 0 with echo is an error, or says more than the prompt."""
    scored = client.completions.create(
        model="demo", prompt="It is a truth", max_tokens=0, echo=True, logprobs=1
    )
    choice = scored.choices[0]
    assert (choice.text, scored.usage.completion_tokens) == ("It is a truth", 0)
    assert choice.logprobs.token_logprobs[0] is None
    offsets = choice.logprobs.text_offset
    for token, offset in list(zip(choice.logprobs.tokens, offsets, strict=True))[1:]:
        assert choice.text[offset:].startswith(token)
    more = client.completions.create(
        model="demo", prompt="It is a truth", max_tokens=4, echo=True, logprobs=1, temperature=0
    )
    same, scores = len(choice.logprobs.tokens), choice.logprobs.token_logprobs[1:]
    assert more.choices[0].logprobs.token_logprobs[1:same] == pytest.approx(scores, abs=1e-4)
