"""The renderer writes an assistant's turn as a model does: reading it gives the turn back."""

import json
from random import Random
from typing import Any

import pytest

from deepinfer.recipe.conversation import (
    AssistantMessage,
    Conversation,
    SpecialTokens,
    ToolCall,
    ToolDefinition,
    UserMessage,
    Version,
)
from deepinfer.recipe.encode import encode
from deepinfer.recipe.json_text import spaced
from deepinfer.recipe.message import parsed_message
from deepinfer.recipe.pieces import RenderedPrompt
from deepinfer.recipe.render import render
from deepinfer.recipe.request import ParsingOptions
from tests.unit.recipe.replay import ByteTokenizer, read

NUM_MESSAGES = 150
TOKENS = SpecialTokens()
PARSING = ParsingOptions(parse_tool_calls=True, thinking_stage="ReasoningStart")
WORDS = [
    "a",
    "é😀",
    " ",
    "\n",
    "<",
    "</",
    "｜DSML",
    "<think>",
    '"',
    "\\",
    "```",
    "{",
    "invoke name=",
]
WORDS += [TOKENS.user, "</think", 'true">', "\t", "&lt;", "]"]


def random_text(random: Random) -> str:
    """Text that is not cut at its ends and has none of the marks themselves in it."""
    text = "".join(random.choice(WORDS) for _ in range(random.randrange(8))).strip()
    for mark in ("</think>", TOKENS.dsml):
        text = text.replace(mark, "")
    # After the beginning of a mark, the first of the newlines before a real mark would stay.
    return text + "." if text else ""


def random_value(random: Random, depth: int = 2) -> Any:
    kinds: list[Any] = [random_text(random), random.randrange(-9, 10**12), 0.25, True, None]
    if depth:
        kinds += [
            [random_value(random, depth - 1) for _ in range(random.randrange(3))],
            {random_text(random): random_value(random, depth - 1)},
        ]
    return random.choice(kinds)


def random_call(random: Random, index: int, version: Version) -> ToolCall:
    keys = ["k", "key_2", "größe", "arguments", "-"]
    arguments = {random.choice(keys): random_value(random) for _ in range(random.randrange(4))}
    name = random.choice(["f", "ns::g", "a-b_c"])
    return ToolCall(f"call_{index:02}_X", name, spaced(arguments, version))


def random_message(random: Random, version: Version) -> AssistantMessage:
    calls = tuple(random_call(random, i, version) for i in range(random.randrange(1, 4)))
    has_calls = random.random() < 0.7
    return AssistantMessage(random_text(random), random_text(random), calls if has_calls else None)


def turn(message: AssistantMessage, version: Version) -> RenderedPrompt:
    """What follows the opened thinking, up to the end token."""
    conversation = Conversation((UserMessage("u"), message), tools=(ToolDefinition("f"),))
    rendered = render(conversation, version)
    opening = TOKENS.assistant + TOKENS.thinking_start
    control = [rendered.prompt[i:j] for i, j in rendered.special_ranges]
    first = control.index(TOKENS.assistant)
    start = rendered.special_ranges[first][0] + len(opening)
    (end,) = [i for i, j in rendered.special_ranges if rendered.prompt[i:j] == TOKENS.eos]
    ranges = [(i - start, j - start) for i, j in rendered.special_ranges if start <= i < end]
    return RenderedPrompt(rendered.prompt[start:end], tuple(ranges))


@pytest.mark.parametrize("version", ["v4", "v4.1"])
def test_reading_gives_back_what_was_written(version: Version) -> None:
    """A model that writes as it was taught is misread, or its turn changes when it comes back in a
    history.
    """
    random = Random(0)
    tokenizer = ByteTokenizer()
    for _ in range(NUM_MESSAGES):
        message = random_message(random, version)
        written = turn(message, version)
        ids = encode(written, tokenizer)
        cut = random.randrange(len(ids) + 1)
        outputs: list[list[str | list[int]]] = [
            *([written.prompt], list(written.prompt)),
            *([ids], [ids[:cut], ids[cut:]], [[i] for i in ids]),
        ]
        for output in outputs:
            made = parsed_message(read(output, PARSING, tokenizer=tokenizer))
            assert made.content == message.content, written.prompt
            assert (made.reasoning_content or "") == message.reasoning_content, written.prompt
            assert made.tool_calls == (message.tool_calls or ()), written.prompt
            assert all(json.loads(call.arguments) is not None for call in made.tool_calls)
            assert made.finish_reason == ("tool_calls" if message.tool_calls else "stop")
