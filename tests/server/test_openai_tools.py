"""Tools, as users of the `openai` client call them, against a server of the demo model."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.server.openai_asks import CALL, SUM, chat, joined
from tests.server.servers import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.sample]


@pytest.fixture(scope="module")
def client(demo_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def test_tool_round_trip(client: openai.OpenAI) -> None:
    """I05, J02: a call is missing or wrong, differs when streamed, or its result cannot be sent
    back."""
    (wanted,) = CALL.answer.calls
    fields = {"messages": list(CALL.messages), "tools": CALL.options["tools"]}
    whole = chat(client, **fields)
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        wanted.name,
        json.loads(wanted.arguments),
    )
    name, arguments, end = "", "", None
    for chunk in chat(client, **fields, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            name += part.function.name or ""
            arguments += part.function.arguments or ""
        end = chunk.choices[0].finish_reason or end
    assert (name, arguments, end) == (call.function.name, call.function.arguments, "tool_calls")
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"result": "done"}'}
    fields["messages"] += [choice.message, result]
    after = chat(client, **fields).choices[0]
    assert after.message.content
    assert after.finish_reason == "stop"


@pytest.mark.parametrize("thinking", ["enabled", "disabled"])
@pytest.mark.parametrize("choice", ["required", "named", "none"])
def test_choice_of_tools(client: openai.OpenAI, choice: str, thinking: str) -> None:
    """J14, I05: a forced call after thoughts is an error, or no call comes; none still calls."""
    name = CALL.answer.calls[0].name
    named = {"type": "function", "function": {"name": name}}
    fields: dict[str, Any] = {
        "messages": CALL.messages,
        "tools": CALL.options["tools"],
        "tool_choice": named if choice == "named" else choice,
        "extra_body": {"thinking": {"type": thinking, "budget_tokens": 20}},
        "max_tokens": 400,
    }
    whole = chat(client, **fields).choices[0]
    _, reasoning, chunks = joined(chat(client, **fields, stream=True))
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    assert reasoning == (getattr(whole.message, "reasoning_content", None) or "")
    if choice == "none":
        assert not whole.message.tool_calls
        return
    assert whole.finish_reason == "tool_calls"
    tools = {tool["function"]["name"]: tool["function"] for tool in fields["tools"]}
    for call in whole.message.tool_calls:
        assert choice == "required" or call.function.name == name
        jsonschema.validate(
            json.loads(call.function.arguments), tools[call.function.name]["parameters"]
        )


def test_strict_tools_may_be_called(client: openai.OpenAI) -> None:
    """J15: a strict tool is called with arguments that its schema does not allow, or must be called
    although a sum was asked for."""
    (wanted,) = CALL.answer.calls
    parameters = {
        "type": "object",
        "properties": {"kind": {"type": "string", "enum": ["only this"]}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    function = {"name": wanted.name, "parameters": parameters, "strict": True}
    fields: dict[str, Any] = {"tools": [{"type": "function", "function": function}]}
    called = chat(client, messages=CALL.messages, **fields).choices[0]
    for call in called.message.tool_calls or ():
        assert json.loads(call.function.arguments) == {"kind": "only this"}
    assert called.finish_reason == "tool_calls"
    assert chat(client, **fields).choices[0].message.content == "85"
    thought = chat(client, **fields, extra_body={"thinking_budget": 10}).choices[0]
    assert thought.finish_reason in ("stop", "tool_calls")


def test_one_call_at_most(client: openai.OpenAI) -> None:
    """parallel_tool_calls is taken and ignored: two calls come all the same."""
    fields = {"messages": SUM, "tools": CALL.options["tools"], "tool_choice": "required"}
    for seed in range(4):
        answer = chat(
            client, **fields, parallel_tool_calls=False, temperature=1.2, seed=seed, max_tokens=300
        )
        if answer.choices[0].finish_reason == "tool_calls":
            assert len(answer.choices[0].message.tool_calls) == 1
