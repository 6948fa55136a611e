"""The `anthropic` client, as its users write it, against a server of the demo model."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import anthropic
import jsonschema
import pytest

from deepinfer.tools.eval_structured import make_call, object_schema
from tests.server.servers import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.sample]
SUM: list[Any] = [{"role": "user", "content": "What is 47 + 38?"}]
OFF: dict[str, Any] = {"type": "disabled"}
CALL = make_call(Random(3), "held_out", 2)
TOOLS: list[Any] = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"]["description"],
        "input_schema": tool["function"]["parameters"],
    }
    for tool in CALL.options["tools"]
]


@pytest.fixture(scope="module")
def client(demo_server: ServerProcess) -> Iterator[anthropic.Client]:
    with anthropic.Client(base_url=demo_server.url, api_key="x", max_retries=0) as made:
        yield made


def ask(client: anthropic.Client, **fields: Any) -> Any:
    # The client of this version has no argument for temperature 0 beside thinking; the body has.
    extra = {"temperature": 0, **fields.pop("extra_body", {})}
    given = {"model": "demo", "messages": SUM, "max_tokens": 300, "thinking": OFF, **fields}
    return client.messages.create(**given, extra_body=extra)


def test_a_sum(client: anthropic.Client) -> None:
    """A plain question gets no answer, a wrong one, or one without usage."""
    answer = ask(client, system="Be brief.")
    assert [block.type for block in answer.content] == ["text"]
    assert ask(client).content[0].text == "85"
    assert (answer.stop_reason, answer.role, answer.model) == ("end_turn", "assistant", "demo")
    assert answer.usage.input_tokens > 5
    assert answer.usage.output_tokens > 0


def test_thinking_streamed_and_whole(client: anthropic.Client) -> None:
    """Thoughts get lost, are not ended by the budget, or differ in a stream."""
    fields: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    whole = ask(client, **fields)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    given: dict[str, Any] = {"model": "demo", "messages": SUM, "max_tokens": 300, **fields}
    with client.messages.stream(**given, extra_body={"temperature": 0}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert {"message_start", "content_block_delta", "message_stop"} <= kinds
    assert final.content[0].thinking == whole.content[0].thinking
    assert final.content[1].text == whole.content[1].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    short = ask(client, thinking={"type": "enabled", "budget_tokens": 2})
    assert len(short.content[0].thinking) < len(whole.content[0].thinking)


def test_cached_tokens(client: anthropic.Client) -> None:
    """The second time a prompt is found in the cache, and nobody is told."""
    long = [{"role": "user", "content": "Say again:\n" + "a cup and a key " * 60}]
    first = ask(client, messages=long, max_tokens=2).usage
    second = ask(client, messages=long, max_tokens=2).usage
    assert second.cache_read_input_tokens > 0
    assert second.cache_read_input_tokens + second.input_tokens == (
        first.cache_read_input_tokens + first.input_tokens
    )


def test_tool_round_trip(client: anthropic.Client) -> None:
    """A call is missing or wrong, or its result cannot be sent back."""
    (wanted,) = CALL.answer.calls
    asked = list(CALL.messages)
    first = ask(client, messages=asked, tools=TOOLS)
    assert first.stop_reason == "tool_use"
    (use,) = [block for block in first.content if block.type == "tool_use"]
    assert (use.name, use.input) == (wanted.name, json.loads(wanted.arguments))
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "done"}
    history = [
        *asked,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    after = ask(client, messages=history, tools=TOOLS)
    assert after.stop_reason == "end_turn"
    assert after.content[0].text


@pytest.mark.parametrize("thinking", [OFF, {"type": "enabled", "budget_tokens": 20}])
@pytest.mark.parametrize("choice", ["any", "tool", "none"])
def test_choice_of_tools(client: anthropic.Client, choice: str, thinking: dict[str, Any]) -> None:
    """J14: a forced call after thoughts is an error, or no call comes; none still calls."""
    (wanted,) = CALL.answer.calls
    tool_choice = {"type": choice} | ({"name": wanted.name} if choice == "tool" else {})
    answer = ask(
        client,
        messages=list(CALL.messages),
        tools=TOOLS,
        tool_choice=tool_choice,
        thinking=thinking,
    )
    uses = [block for block in answer.content if block.type == "tool_use"]
    if choice == "none":
        assert not uses
        return
    assert uses
    assert answer.stop_reason == "tool_use"
    schemas = {tool["name"]: tool["input_schema"] for tool in TOOLS}
    for use in uses:
        jsonschema.validate(use.input, schemas[use.name])


def test_json_of_a_schema(client: anthropic.Client) -> None:
    """output_config.format is taken, and the answer does not obey it."""
    schema = object_schema(["city", "days"])
    config = {"format": {"type": "json_schema", "schema": schema}}
    asked = [{"role": "user", "content": 'Write as JSON: city "Oslo", days 3.'}]
    answer = ask(client, messages=asked, extra_body={"output_config": config})
    assert json.loads(answer.content[-1].text) == {"city": "Oslo", "days": 3}


def test_stop_sequences(client: anthropic.Client) -> None:
    """A stop sequence is not told apart from the end of the answer."""
    asked = [{"role": "user", "content": "Copy:\none two three four"}]
    answer = ask(client, messages=asked, stop_sequences=["three"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "three")
    assert "three" not in answer.content[0].text


def test_count_and_list(client: anthropic.Client) -> None:
    """Tokens are counted otherwise than they are used, or the list of models cannot be read."""
    counted = client.messages.count_tokens(model="demo", messages=SUM, thinking=OFF)
    usage = ask(client).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    (model,) = client.models.list()
    assert model.id == "demo"
    assert client.models.retrieve("demo").display_name == "demo"


@pytest.mark.parametrize(
    ("fields", "kind", "word"),
    [
        ({"model": "other"}, anthropic.NotFoundError, "other"),
        ({"messages": []}, anthropic.BadRequestError, "message"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
        ({"extra_body": {"mcp_servers": [{}]}}, anthropic.BadRequestError, "mcp_servers"),
        ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError, "tool"),
        ({"tools": [{"type": "bash_20250124", "name": "b"}]}, anthropic.BadRequestError, "tools"),
    ],
    ids=lambda one: str(one)[:30],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(client: anthropic.Client, fields: Any, kind: Any, word: str, stream: bool) -> None:
    """A mistake is answered in a way that the client cannot read, or without its place."""
    with pytest.raises(kind, match=word) as caught:
        ask(client, **fields, stream=stream)
    assert type(caught.value) is kind
    assert caught.value.body["type"] == "error"
    assert caught.value.body["request_id"] == caught.value.request_id
