"""What becomes of an answer's events before a client sees them, at any place where they are cut."""

import json

import pytest

from deepinfer.recipe.conversation import ToolDefinition
from deepinfer.recipe.events import (
    CallArguments,
    CallOpened,
    ContentText,
    Event,
    Finished,
    Unread,
)
from deepinfer.recipe.message import parsed_message
from deepinfer.server.settle import Settling

CITY = ToolDefinition("find", parameters={"type": "object", "properties": {"city": {}, "day": {}}})
INPUT = ToolDefinition("put", parameters={"type": "object", "properties": {"input": {}}})
FREE = ToolDefinition("free", parameters={"type": "object"})
TOOLS = (CITY, INPUT, FREE)


def events(name: str, arguments: str, cut: int) -> list[Event]:
    """A call whose arguments come in pieces of `cut` characters."""
    pieces = [arguments[at : at + cut] for at in range(0, len(arguments), cut)]
    parts: list[Event] = [CallArguments(0, piece) for piece in pieces]
    return [CallOpened(0, "c", name), *parts, Finished("tool_calls")]


def said(given: list[Event]) -> list[Event]:
    """What a client gets of events that come one by one."""
    settling = Settling(TOOLS)
    return [one for event in given for one in settling.take([event])]


@pytest.mark.parametrize("cut", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("name", "arguments", "wanted"),
    [
        ("find", '{"arguments": {"city": "Oslo", "day": 1.50}}', {"city": "Oslo", "day": 1.5}),
        ("find", '{"input": "{\\"city\\": \\"Oslo\\"}"}', {"city": "Oslo"}),
        ("find", '{"arguments": {"town": "Oslo"}}', {"arguments": {"town": "Oslo"}}),
        ("find", '{"city": "arguments"}', {"city": "arguments"}),
        ("find", "{}", {}),
        ("put", '{"input": {"input": 1}}', {"input": {"input": 1}}),
        ("free", '{"arguments": {"a": 1}}', {"arguments": {"a": 1}}),
        ("gone", '{"arguments": {"a": 1}}', {"arguments": {"a": 1}}),
    ],
)
def test_wrapped_arguments(name: str, arguments: str, wanted: object, cut: int) -> None:
    """J04, J01: arguments stay wrapped, or good ones are unwrapped, or a stream differs."""
    given = events(name, arguments, cut)
    streamed = said(given)
    text = "".join(one.text for one in streamed if isinstance(one, CallArguments))
    assert json.loads(text) == wanted
    assert text == parsed_message(given, TOOLS).tool_calls[0].arguments
    assert streamed[-1] == Finished("tool_calls")


def test_arguments_come_as_they_grow() -> None:
    """J02: nothing of a long argument is seen before it is complete."""
    settling = Settling(TOOLS)
    settling.take([CallOpened(0, "c", "find")])
    assert settling.take([CallArguments(0, '{"city": "')])
    assert settling.take([CallArguments(0, "Os")]) == [CallArguments(0, "Os")]


def test_what_cannot_be_read_is_said() -> None:
    """J15: a malformed call vanishes from a stream."""
    given = [ContentText("So: "), Unread("<｜DSML｜ calls>find"), Finished("stop")]
    text = "".join(one.text for one in said(given) if isinstance(one, ContentText))
    assert text == parsed_message(given, TOOLS).content


def test_one_call_at_most() -> None:
    """A second call reaches a client that asked for one, or the answer never ends."""
    settling = Settling(TOOLS, is_single=True)
    settling.take([CallOpened(0, "a", "find"), CallArguments(0, '{"city": 1}')])
    assert settling.take([CallOpened(1, "b", "find"), CallArguments(1, "{")]) == [
        Finished("tool_calls")
    ]
    assert settling.finished
    assert settling.take([ContentText("more")]) == []
