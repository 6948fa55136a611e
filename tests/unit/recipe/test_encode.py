"""Prompts to ids: control tokens are ids of their own, and a text never becomes one."""

from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from deepinfer.config.model import ModelConfig
from deepinfer.errors import RequestError
from deepinfer.recipe.conversation import (
    AssistantMessage,
    Conversation,
    ImageSource,
    LatestReminderMessage,
    Message,
    SpecialTokens,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
    Version,
)
from deepinfer.recipe.encode import encode
from deepinfer.recipe.pieces import RenderedPrompt
from deepinfer.recipe.render import render
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from deepinfer.tokenizer.toy import IMAGE
from tests.golden.recipe_cases import cases
from tests.golden.v4_tokenizer import SHA256, v4_tokenizer

VERSIONS: tuple[Version, ...] = ("v4", "v4.1")
SPELLINGS = astuple(SpecialTokens())
U = UserMessage("u")


@pytest.fixture(scope="module")
def released_tokenizer(released_config: ModelConfig) -> Tokenizer:
    """V4's tokenizer, which the cases name by its hash."""
    assert {case["tokenizer_sha256"] for case in cases("encode")} == {SHA256}
    return v4_tokenizer(released_config)


@pytest.fixture(scope="module")
def toy(tiny_dir: Path, tiny_config: ModelConfig) -> Tokenizer:
    return load_tokenizer(tiny_dir, tiny_config)


def _tools_conversation(request: dict[str, Any]) -> Conversation:
    _, assistant, pong, forecast = request["messages"]
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in assistant["tool_calls"]
    )
    messages = (
        UserMessage("weather?"),
        AssistantMessage(assistant["content"], None, calls),
        ToolMessage(pong["content"], pong["tool_call_id"]),
        ToolMessage(forecast["content"], forecast["tool_call_id"]),
    )
    return Conversation(messages, thinking=False, tools=(ToolDefinition("ping", parameters={}),))


def _conversation_of(case: dict[str, Any]) -> Conversation:
    first, *others = case["request"]["messages"]
    if case["id"] == "encode-plain":
        messages = (SystemMessage(first["content"]), UserMessage(others[0]["content"]))
        return Conversation(messages, thinking=False)
    if case["id"] == "encode-think":
        answer = AssistantMessage(others[0]["content"], "")
        again = UserMessage(others[1]["content"])
        return Conversation((UserMessage(first["content"]), answer, again), effort="low")
    return _tools_conversation(case["request"])


@pytest.mark.parametrize("case", cases("encode"), ids=lambda case: case["id"])
def test_recorded_ids(case: dict[str, Any], released_tokenizer: Tokenizer) -> None:
    """The ids of a prompt differ from the released recipe's with the same tokenizer."""
    rendered = render(_conversation_of(case), case["version"])
    assert rendered.prompt == case["prompt"]
    assert encode(rendered, released_tokenizer) == case["token_ids"]


def _everywhere(text: str) -> dict[str, Conversation]:
    """A conversation for each place that a text of somebody else may come to."""

    def talk(*messages: Message) -> Conversation:
        return Conversation(messages, tools=(ToolDefinition("f"),))

    def with_tool(**changes: Any) -> Conversation:
        return Conversation((U,), tools=(ToolDefinition(**{"name": "f", **changes}),))

    def with_call(name: str, arguments: str) -> Conversation:
        return talk(U, AssistantMessage("", "", (ToolCall("c", name, arguments),)))

    return {
        "system": talk(SystemMessage(text), U),
        "added tool": talk(SystemMessage("", tools=(ToolDefinition(text),)), U),
        "user": talk(UserMessage(text)),
        "assistant": talk(U, AssistantMessage(text)),
        "continued": talk(U, AssistantMessage(text, prefix=True)),
        "thoughts": talk(U, AssistantMessage("", text)),
        "result": talk(ToolMessage(text, "c")),
        "reminder": talk(LatestReminderMessage(text)),
        "tool name": with_tool(name=text),
        "tool description": with_tool(description=text),
        "tool schema": with_tool(parameters={text: [text]}),
        "call name": with_call(text, "{}"),
        "argument": with_call("f", f'{{"k": "{text}", "o": {{"k": "{text}"}}}}'),
        "argument name": with_call("f", f'{{"{text}": 1}}'),
        "broken arguments": with_call("f", text),
        "format": Conversation((U,), response_format="json_schema", response_schema=text),
    }


PLACES = tuple(_everywhere(""))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", PLACES)
def test_spellings_stay_text(place: str, version: Version, toy: Tokenizer) -> None:
    """J10: text that spells a control token becomes one, and anybody can forge a turn."""
    harmless = render(_everywhere("harmless")[place], version)
    num_control = len(harmless.special_ranges)
    control_ids = set(toy.control_ids.values())
    for spelling in SPELLINGS:
        rendered = render(_everywhere(spelling)[place], version)
        ids = encode(rendered, toy)
        if "harmless" in harmless.prompt:
            assert spelling in rendered.prompt
        assert len(rendered.special_ranges) == num_control, spelling
        assert sum(token_id in control_ids for token_id in ids) == num_control, spelling
        assert toy.decode(ids) == rendered.prompt


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_ids_are_those_of_plain_text(spelling: str, toy: Tokenizer) -> None:
    """J10: the text around a spelling is cut where the spelling stands, unlike other text."""
    text = f"a{spelling} b"
    ids = encode(render(Conversation((UserMessage(text),), thinking=False), "v4"), toy)
    own = [
        toy.control_ids[name]
        for name in (SPELLINGS[0], "<｜User｜>", "<｜Assistant｜>", "</think>")
    ]
    assert ids == [*own[:2], *toy.encode(text, add_bos=False), *own[2:]]


@pytest.mark.parametrize("version", VERSIONS)
def test_only_images_have_placeholders(version: Version, toy: Tokenizer) -> None:
    """A user writes an image token, and the next image is put in its place."""
    image = IMAGE
    first = UserMessage(f"{image} {image}", (ImageSource(url="1"),))
    second = UserMessage(image)
    third = ToolMessage(f"{image}{image}{image}", "c", (ImageSource(url="2"), ImageSource(url="3")))
    tokens = SpecialTokens(image=image)
    rendered = render(Conversation((first, second, third)), version, tokens)
    prompt = rendered.prompt
    starts = [start for start, end in rendered.special_ranges if prompt[start:end] == image]
    places = [place for place in range(len(prompt)) if prompt.startswith(image, place)]
    assert starts == [places[0], places[3], places[4]]
    assert [source.url for source in rendered.image_sources] == ["1", "2", "3"]
    assert encode(rendered, toy).count(toy.control_ids[image]) == 3


def test_other_spellings(toy: Tokenizer) -> None:
    """Spellings of the caller's choice are ignored somewhere, or the usual ones still count."""
    tokens = SpecialTokens(dsml="D", user="<U>", thinking_end="</T>")
    rendered = render(_everywhere("x")["thoughts"], "v4.1", tokens)
    spelled = {rendered.prompt[start:end] for start, end in rendered.special_ranges}
    assert {"D", "<U>", "</T>"} <= spelled
    assert not {"｜DSML｜", "<｜User｜>", "</think>"} & spelled
    with pytest.raises(RequestError, match='special token "D" is not in the added vocabulary'):
        encode(rendered, toy)


def test_token_that_the_tokenizer_lacks() -> None:
    """V4.1 prompts with V4's tokenizer: the role would be spelled out in ordinary tokens."""

    class WithoutSystem:
        control_ids: Mapping[str, int] = MappingProxyType({SPELLINGS[0]: 0})

        def encode(self, text: str, *, add_bos: bool) -> list[int]:
            raise AssertionError("there is no text before the token")

    rendered = render(Conversation((SystemMessage("s"),), thinking=False), "v4.1")
    with pytest.raises(RequestError) as raised:
        encode(rendered, WithoutSystem())
    assert raised.value.what == (
        'failed to encode conversation: special token "<｜System｜>" is not in the added vocabulary'
    )


def test_empty_prompt(toy: Tokenizer) -> None:
    """BOS sneaks in where the prompt has none."""
    assert encode(RenderedPrompt("", ()), toy) == []
