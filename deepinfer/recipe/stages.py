"""The stages of reading an answer, as data (spec recipe 7.1).

Knows the markup that a model writes: where each part begins and what may follow. Does not know how
patterns are matched, or what becomes of the text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from deepinfer.recipe.prompt_text import MARKUP_WORDS
from deepinfer.recipe.request import ParsingOptions

StageName = Literal[
    "content_start",
    "content",
    "json",
    "after_json",
    "reasoning_start",
    "reasoning",
    "calls",
    "name",
    "first_parameter",
    "next_parameter",
    "key",
    "type",
    "string_value",
    "json_value",
    "end",
]


class Action(Enum):
    """What a part of the text is."""

    SKIP = "nothing: newlines and marks between the parts of an answer"
    CONTENT = "content"
    BLANK = "words around a JSON answer; a space stands for them"
    REASONING = "reasoning"
    STOP = "a stop sequence: the answer ends before it"
    MARKUP = "markup of tool calls, and whatever is written between and after them"
    NAME = "the name of a tool"
    CALL = "the end of the name: a call begins"
    ARGUMENTS = "JSON of a call's arguments"
    STRING = "the inside of a string in a call's arguments, not escaped yet"


@dataclass(frozen=True)
class Pattern:
    """A text that ends a stage.

    says: what is passed on in place of the text itself. takes_newlines: newlines directly before
    the text belong to it.
    """

    text: str
    next: StageName
    action: Action = Action.SKIP
    says: str | None = None
    takes_newlines: bool = False


@dataclass(frozen=True)
class Stage:
    """action: of text that no pattern takes. patterns: the first to be complete wins; of several
    complete at one character, the first of the tuple. skips_newlines: in front, one by one.
    """

    action: Action
    patterns: tuple[Pattern, ...] = ()
    skips_newlines: bool = False


Stages = Mapping[StageName, Stage]


def first_stage(parsing: ParsingOptions) -> StageName:
    """Where the rendered prompt has left the model: the two must agree, so both read `parsing`."""
    if parsing.starts_in_tool_calls:
        return "calls"
    if parsing.thinking_stage is None:
        return "content_start"
    starts: dict[str, StageName] = {
        "ReasoningStart": "reasoning_start",
        "ReasoningContinuation": "reasoning",
        "ContentContinuation": "content",
    }
    return starts[parsing.thinking_stage]


def build_stages(parsing: ParsingOptions, thinking_end: str, dsml: str) -> Stages:
    """All stages. thinking_end, dsml: what the two control tokens look like in the text to match.

    Both versions' words are understood, whichever the model is.
    """
    open_calls = Pattern("<" + dsml, "calls", Action.MARKUP, takes_newlines=True)
    tools = (open_calls,) if parsing.parse_tool_calls else ()
    stops = tuple(Pattern(stop, "end", Action.STOP) for stop in parsing.stop_sequences if stop)
    end_thinking = Pattern(thinking_end, "content_start", takes_newlines=True)
    # A second end of thinking does not make newlines after it vanish.
    stray_end = Pattern(thinking_end, "content")
    before = (*(_OPEN_JSON if parsing.parse_json_output else stops), *tools, stray_end)
    content = Action.BLANK if parsing.parse_json_output else Action.CONTENT
    return {
        "content_start": Stage(content, before, skips_newlines=True),
        "content": Stage(content, before),
        "json": Stage(Action.CONTENT, (*stops, Pattern("\n```", "after_json"))),
        "after_json": Stage(Action.BLANK, tools),
        "reasoning_start": Stage(Action.REASONING, (*tools, end_thinking), skips_newlines=True),
        "reasoning": Stage(Action.REASONING, (*tools, end_thinking)),
        **_call_stages(dsml),
    }


_OPEN_JSON = (
    Pattern("```json\n", "json"),
    Pattern("```\n", "json"),
    Pattern("{", "json", Action.CONTENT),
    Pattern("[", "json", Action.CONTENT),
)


def _call_stages(dsml: str) -> Stages:
    """The stages from the opening of a block of calls to the end of the answer."""
    close = "</" + dsml
    markup, arguments = Action.MARKUP, Action.ARGUMENTS
    close_block = [
        Pattern(f"{close}{words['calls']}>", "end", markup) for words in MARKUP_WORDS.values()
    ]
    return {
        "calls": Stage(markup, (Pattern('invoke name="', "name", markup), *close_block)),
        "name": Stage(Action.NAME, (Pattern('"', "first_parameter", Action.CALL),)),
        "first_parameter": _parameters(close, before="{", if_none="{}"),
        "next_parameter": _parameters(close, before=", ", if_none="}"),
        "key": Stage(arguments, (Pattern(" ", "type", arguments, says=": "),)),
        "type": Stage(
            markup,
            (
                Pattern('true">', "string_value", arguments, says='"'),
                Pattern('false">', "json_value", markup),
            ),
        ),
        "string_value": Stage(
            Action.STRING, (Pattern(close, "next_parameter", arguments, says='"'),)
        ),
        "json_value": Stage(arguments, (Pattern(close, "next_parameter", markup),)),
        "end": Stage(markup),
    }


def _parameters(close: str, *, before: str, if_none: str) -> Stage:
    """Between the parameters of a call."""
    key = Pattern("parameter name=", "key", Action.ARGUMENTS, says=before)
    end = Pattern(close, "calls", Action.ARGUMENTS, says=if_none)
    return Stage(Action.MARKUP, (key, end))
