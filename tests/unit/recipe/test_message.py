"""A whole answer without a protocol: nothing vanishes, and wrapped arguments are unwrapped."""

import pytest

from deepinfer.recipe.conversation import ToolCall, ToolDefinition
from deepinfer.recipe.events import (
    CallArguments,
    CallOpened,
    ContentText,
    Event,
    Finished,
    ReasoningText,
    Unread,
)
from deepinfer.recipe.message import ParsedMessage, parsed_message
from deepinfer.recipe.unwrap import unwrapped

EVENTS: list[Event] = [
    ReasoningText("r1"),
    ReasoningText("r2"),
    ContentText("c1"),
    ContentText("c2"),
    CallOpened(0, "i0", "f"),
    CallArguments(0, "{"),
    CallArguments(0, "}"),
    CallOpened(1, "i1", "g"),
    Finished("tool_calls"),
]
TOOL = ToolDefinition("f", parameters={"properties": {"city": {}, "days": {}}})


def test_events_are_joined() -> None:
    """A piece is lost, or lands in the wrong call."""
    assert parsed_message(EVENTS) == ParsedMessage(
        "c1c2", "r1r2", (ToolCall("i0", "f", "{}"), ToolCall("i1", "g", "")), "tool_calls"
    )


def test_no_event_is_nothing() -> None:
    """No reasoning looks like empty reasoning, an unfinished answer like a finished one."""
    assert parsed_message([]) == ParsedMessage("", None, (), None, None)
    assert parsed_message([ReasoningText("")]).reasoning_content == ""
    assert parsed_message([Finished("stop", "END")]).stop_sequence == "END"


def test_what_could_not_be_read_is_content() -> None:
    """The answer is empty, or only spaces, though the model wrote something."""
    assert parsed_message([Unread("<x")]).content == "<x"
    assert parsed_message([ContentText("a "), Unread("<x")]).content == "a <x"
    assert parsed_message([ContentText(" "), ContentText(" "), Unread("no json")]).content == (
        "no json"
    )
    assert parsed_message([ContentText(" ")]).content == " "


@pytest.mark.parametrize("wrapper", ["arguments", "input"])
@pytest.mark.parametrize(
    ("value", "inner"),
    [
        ('{"city": "K", "days": 1.50}', '{"city": "K", "days": 1.50}'),
        ('{"days": 123456789012345678901234567890}',) * 2,
        ('"{\\"city\\": \\"K\\"}"', '{"city": "K"}'),
        ("{}", "{}"),
    ],
)
def test_wrapped_arguments_are_unwrapped(wrapper: str, value: str, inner: str) -> None:
    """A client finds all parameters under a name that its tool never had, or with other digits."""
    call = ToolCall("i", "f", f'{{"{wrapper}": {value}}}')
    assert unwrapped(call, TOOL) == ToolCall("i", "f", inner)
    events = [CallOpened(0, "i", "f"), CallArguments(0, call.arguments)]
    assert parsed_message(events, [TOOL]).tool_calls == (ToolCall("i", "f", inner),)
    assert parsed_message(events).tool_calls == (call,)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"arguments": 5}',
        '{"arguments": "plain"}',
        '{"arguments": [1]}',
        '{"arguments": {"other": 1}}',
        '{"arguments": {"city": 1, "other": 1}}',
        '{"arguments": {"city": 1}, "days": 1}',
        '{"city": {"days": 1}}',
        '{"Arguments": {"city": 1}}',
        '{"arguments": {"city": 1}',
        "nonsense",
        "[]",
        "",
    ],
)
def test_other_arguments_stay(arguments: str) -> None:
    """A repair that nobody asked for changes what a model said."""
    call = ToolCall("i", "f", arguments)
    assert unwrapped(call, TOOL) is call


@pytest.mark.parametrize(
    "parameters", [None, {}, {"properties": {"arguments": {}, "city": {}}}, {"properties": []}]
)
def test_declared_name_stays(parameters: object) -> None:
    """A tool whose parameter really is called so gets its value torn out, or one of which nothing
    is known.
    """
    call = ToolCall("i", "f", '{"arguments": {"city": 1}}')
    assert unwrapped(call, ToolDefinition("f", parameters=parameters)) is call
    assert unwrapped(call, None) is call
