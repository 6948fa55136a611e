"""Random conversations, as odd as the records allow, for tests that compare two renderers."""

from __future__ import annotations

import json
import random
from typing import Any

from deepinfer.recipe.conversation import (
    AssistantMessage,
    Conversation,
    ImageSource,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)

IMAGE = "<｜image｜>"
# Spellings of control tokens and of markup, and characters that formats and escapes care about.
TEXTS = (
    *("", "", "", "a", "Hi there", "\n", "\n\nx\n", " ", "é😀\u2028\x7f", '"\\/\b\x1f', "\r\t\x00"),
    *(
        "<think>",
        "</think>x",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜System｜>",
        "{dsml}",
        "$TOOL_NAME",
    ),
    *(
        "<｜begin▁of▁sentence｜>",
        "a<｜end▁of▁sentence｜>b",
        "<｜latest_reminder｜>",
        "｜DSML｜",
        "{}",
    ),
    *(
        "</tool_result>",
        "</｜DSML｜parameter>",
        "<｜DSML｜ calls>",
        IMAGE,
        f"{IMAGE}x{IMAGE}{IMAGE}",
    ),
)
IDS = ("c1", "c2", "c3", "c10", "", "é", "C1")
NUMBERS = (
    *("0", "-0", "-1", "1.0", "-1.50", "1e-5", "15e-6", "-1e-5", "1e-6", "2.5e-7", "1e-9", "1e-10"),
    *("1e15", "1e16", "1.5e300", "1e400", "18446744073709551615", "18446744073709551616"),
    *("-9223372036854775808", "-9223372036854775809", "0.1", "123456789.123456789", "5e-324"),
)
NO_OBJECTS = (
    "",
    "null",
    "[]",
    "{",
    "{]",
    '{"a":}',
    '{"a":01}',
    '{"a":NaN}',
    "x",
    '"s"',
    "\ufeff{}",
)


class Source:
    """Draws from a seeded generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def maybe(self, chance: float = 0.3) -> bool:
        return self.random.random() < chance

    def text(self) -> str:
        return "".join(self.random.choices(TEXTS, k=self.random.choice((1, 1, 2, 3))))

    def number(self) -> str:
        return self.random.choice(NUMBERS)

    def json_text(self, depth: int = 2) -> str:
        """The text of a JSON value, most of the time."""
        kind = self.random.randrange(7 if depth else 4)
        if kind < 2:
            return json.dumps(self.text(), ensure_ascii=self.maybe())
        if kind == 2:
            return self.number()
        if kind == 3:
            return self.random.choice(("true", "false", "null", '"\\ud800"', '"\\ud83d\\ude00"'))
        if kind == 4:
            return (
                f"[{','.join(self.json_text(depth - 1) for _ in range(self.random.randrange(3)))}]"
            )
        return self.object_text(depth - 1)

    def object_text(self, depth: int = 2) -> str:
        keys = [json.dumps(self.random.choice(TEXTS)) for _ in range(self.random.randrange(4))]
        space = self.random.choice(("", " ", "\n"))
        return "{" + ",".join(f"{k}{space}:{self.json_text(depth)}" for k in keys) + "}"

    def value(self) -> Any:
        """A JSON value, for schemas. The number's text decides between int and float."""
        return self.random.choice(
            (
                None,
                {"type": "object", "properties": {}},
                {self.text(): [self.text(), 1, -2.5, 1e-5, 1.5e-6, 1e16, 1e-10, True, None]},
                [],
                {"a": {"b": [{}, [[]], -0.0, 2**63]}},
            )
        )

    def images(self) -> tuple[ImageSource, ...]:
        if not self.maybe():
            return ()
        count = self.random.randrange(1, 4)
        return tuple(
            ImageSource(url=f"https://a.example/{self.random.random()}") for _ in range(count)
        )

    def tool(self) -> ToolDefinition:
        return ToolDefinition(
            name=self.random.choice(("f", "g", IMAGE, "<｜User｜>")),
            description=self.text() if self.maybe(0.7) else None,
            parameters=self.value(),
            strict=self.random.choice((None, True, False)),
            defer_loading=self.maybe(),
        )

    def tools(self, chance: float) -> tuple[ToolDefinition, ...]:
        if not self.maybe(chance):
            return ()
        return tuple(self.tool() for _ in range(self.random.randrange(4)))

    def call(self) -> ToolCall:
        is_object = self.maybe(0.8)
        arguments = self.object_text() if is_object else self.random.choice(NO_OBJECTS)
        return ToolCall(self.random.choice(IDS), self.text(), arguments)

    def assistant(self) -> AssistantMessage:
        calls = tuple(self.call() for _ in range(self.random.randrange(5)))
        return AssistantMessage(
            content=self.text(),
            reasoning_content=self.text() if self.maybe(0.6) else None,
            tool_calls=calls if self.maybe(0.6) else None,
            prefix=self.maybe(0.25),
        )

    def message(self) -> Message:
        kind = self.random.randrange(12)
        if kind < 1:
            return LatestReminderMessage(self.text())
        if kind < 3:
            return SystemMessage(self.text(), self.images(), self.tools(0.4))
        if kind < 6:
            return UserMessage(self.text(), self.images())
        if kind < 9:
            call_id = self.random.choice(IDS) if self.maybe(0.85) else None
            return ToolMessage(self.text(), call_id, self.images())
        return self.assistant()

    def conversation(self) -> Conversation:
        response_format = self.random.choice(
            ("text", "text", "json_object", "json_schema", "regex")
        )
        return Conversation(
            messages=tuple(self.message() for _ in range(self.random.randrange(10))),
            thinking=self.maybe(0.6),
            tools=self.tools(0.5),
            tool_choice=self.random.choice(("auto", "none", "required")),
            effort=self.random.choice((None, "low", "high", "xhigh", "max")),
            response_format=response_format,
            response_schema=(self.value() or {}) if response_format == "json_schema" else None,
            response_regex="a+" if response_format == "regex" else None,
        )
