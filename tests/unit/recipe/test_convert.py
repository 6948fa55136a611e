"""Requests, where the recorded cases do not look."""

import json
import pickle

import pytest

from deepinfer.errors import RequestError
from deepinfer.recipe.conversation import SpecialTokens, ToolMessage
from deepinfer.recipe.convert import convert
from deepinfer.recipe.errors import BodyError, ConversionError
from deepinfer.recipe.request import ConversionOptions

HI = [{"role": "user", "content": "hi"}]
CHAT = {"model": "DeepSeek-V4.1-Flash", "messages": HI}
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aQ=="}}


def refused(protocol, body, options=None):
    with pytest.raises(RequestError) as caught:
        convert(protocol, body, options or ConversionOptions())
    return caught.value


def test_all_bodies_alike():
    """The same request is understood in another way when it comes as bytes, or as an object."""
    body = CHAT | {"user": "é\u2028", "temperature": 2, "seed": 7}
    text = json.dumps(body, ensure_ascii=False)
    assert convert("chat", body) == convert("chat", text) == convert("chat", text.encode())


@pytest.mark.parametrize("body", [b"\xff", '"\ud800"', {"model": float("nan")}, "NaN"])
def test_no_json(body):
    """A body that is no JSON ends the server's task instead of the request."""
    assert isinstance(refused("chat", body), BodyError)


@pytest.mark.parametrize(
    ("protocol", "body", "field"),
    [
        ("chat", CHAT | {"messages": [{"role": "user", "content": [{"type": 1}]}]}, None),
        ("chat", CHAT | {"temperature": "x"}, "temperature"),
        ("chat", CHAT | {"top_p": 7}, "top_p"),
        ("chat", {"messages": HI}, "model"),
        ("chat", [], "body"),
        ("messages", CHAT | {"tools": [{"name": 1}]}, "tools[0].name"),
    ],
)
def test_field(protocol, body, field):
    """An error does not say which field of a long request it is about."""
    assert refused(protocol, json.dumps(body)).field == (field or "messages[0].content[0].type")


def test_errors_cross_processes():
    """An error that is sent to another process arrives as another one, or not at all."""
    for error in (refused("chat", "{"), refused("chat", CHAT | {"n": 2})):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (again.what, again.field, again.hint) == (error.what, error.field, error.hint)


def test_own_model_names():
    """A model that is served under another name cannot be asked for."""
    options = ConversionOptions(model_versions={"b": "v4", "a": "v4.1"})
    assert convert("chat", CHAT | {"model": "a"}, options).version == "v4.1"
    text = "The supported API model names are a, b, but you passed DeepSeek-V4.1-Flash."
    assert refused("chat", CHAT, options).what == text


def test_bound_of_max_tokens():
    """The bound of thinking is used without it; Messages refuses what it should lower."""
    options = ConversionOptions(thinking_max_tokens_bound=10, non_thinking_max_tokens_bound=20)
    off = {"thinking": {"type": "disabled"}, "max_tokens": 15}
    assert convert("chat", CHAT | off, options).inference.max_tokens == 15
    assert isinstance(refused("chat", CHAT | {"max_tokens": 15}, options), ConversionError)
    assert convert("messages", CHAT | {"max_tokens": 15}, options).inference.max_tokens == 10


def test_images_know_their_places():
    """A user who spells the image token moves the image to where the spelling is."""
    token = SpecialTokens().image
    blocks = [{"type": "text", "text": f"{token} {token}"}, PIXEL, {"type": "text", "text": "x"}]
    request = convert("chat", CHAT | {"messages": [{"role": "user", "content": blocks}]})
    (message,) = request.conversation.messages
    (image,) = message.image_sources
    assert image.at == message.content.rindex(token)


def test_own_image_token():
    """A placeholder is written with a token that the tokenizer does not have."""
    options = ConversionOptions(special_tokens=SpecialTokens(image="[I]"))
    request = convert("chat", CHAT | {"messages": [{"role": "user", "content": [PIXEL]}]}, options)
    assert request.conversation.messages[0].content == "[I]"
    assert request.parsing.special_tokens.image == "[I]"


def test_reject_missing_reasoning_only_since_the_last_user():
    """History that no model needs any more is asked back from the client."""
    options = ConversionOptions(missing_reasoning="reject")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = [{"role": "assistant", "tool_calls": [call]}]
    turn.append({"role": "tool", "tool_call_id": "1", "content": "r"})
    assert isinstance(refused("chat", CHAT | {"messages": HI + turn}, options), ConversionError)
    convert("chat", CHAT | {"messages": HI + turn + HI}, options)
    with_reasoning = [turn[0] | {"reasoning_content": ""}, turn[1]]
    convert("chat", CHAT | {"messages": HI + with_reasoning}, options)


def test_responses_outputs_stand_in_the_order_of_ids():
    """Results of calls that ran at once are shown to the model in the order they came in."""
    items = [
        *({"type": "function_call", "call_id": i, "name": "f", "arguments": "{}"} for i in "ba"),
        *({"type": "function_call_output", "call_id": i, "output": i} for i in "ba"),
    ]
    request = convert("responses", {"model": "DeepSeek-V4-Pro", "input": items})
    answers = [m for m in request.conversation.messages if isinstance(m, ToolMessage)]
    assert [answer.content for answer in answers] == ["a", "b"]


def test_responses_names_map_back():
    """A call of a namespace's tool is answered under a name that the client does not know."""
    tools = [
        {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b__c"}]},
        {"type": "namespace", "name": "a__b", "tools": [{"type": "function", "name": "c"}]},
        {"type": "function", "name": "a__b__c_1"},
        {"type": "custom", "name": "apply_patch"},
        {"type": "tool_search", "execution": "client"},
    ]
    body = {"model": "DeepSeek-V4-Pro", "input": "x", "tools": tools}
    echo = convert("responses", body).echo
    assert echo.namespace_tools == {"a__b__c": ("a", "b__c"), "a__b__c_2": ("a__b", "c")}
    assert echo.custom_tools == {"apply_patch"}
    # V4 has no search for tools.
    assert not echo.client_tool_search
    assert convert("responses", body | {"model": "DeepSeek-V4.1-Flash"}).echo.client_tool_search
