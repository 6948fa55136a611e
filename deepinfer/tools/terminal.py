"""The terminal: lines that somebody types, and text that must not steer it. Knows no model."""

from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.text import Text

from deepinfer.front.chat import Thinking

PROMPT = "> "
# What --thinking says -> the option of LLM.chat.
THINKING: dict[str, Thinking] = {
    "on": True,
    "off": False,
    "low": "low",
    "high": "high",
    "max": "max",
}

# C0 and C1 control characters except tab and newline: a model must not steer a terminal.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
del _CONTROLS[ord("\t")], _CONTROLS[ord("\n")]


def visible(text: str) -> str:
    """The text with a sign in the place of each character that would steer a terminal."""
    return text.translate(_CONTROLS)


def show(console: Console, text: str, style: str = "") -> None:
    """A piece of text as it is, without a line end of its own."""
    console.print(Text(visible(text) if console.is_terminal else text, style), end="")


def typed_lines(stdin: TextIO, console: Console, *, shows_prompt: bool) -> Iterator[str]:
    """Lines with something in them, until the end of the input or Ctrl-C."""
    while True:
        if shows_prompt:
            console.print(PROMPT, end="")
        try:
            line = stdin.readline()
        except KeyboardInterrupt:
            line = ""
        if not line:
            return
        if line.strip():
            yield line.strip()
