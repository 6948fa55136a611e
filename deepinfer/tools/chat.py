"""`deepinfer chat`: a conversation at the terminal, streamed, the thoughts shown dim."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from rich.console import Console

from deepinfer.entrypoints.llm import LLM
from deepinfer.errors import RequestError
from deepinfer.front.chat import Thinking
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
from deepinfer.sampling_params import SamplingParams
from deepinfer.tools.terminal import show, typed_lines

_HELP = "Type a message and press Enter. /new starts over, /exit or Ctrl-D ends."


def main(
    llm: LLM,
    params: SamplingParams,
    *,
    system: str | None,
    thinking: Thinking,
    stdin: TextIO,
) -> int:
    """Answer each line of `stdin` until its end; the exit status is 1 if any was refused."""
    console = Console(highlight=False, soft_wrap=True)
    is_terminal = stdin.isatty()
    if is_terminal:
        console.print(_HELP, style="dim")
    start = [{"role": "system", "content": system}] if system else []
    messages: list[dict[str, Any]] = list(start)
    failed = 0
    for line in typed_lines(stdin, console, shows_prompt=is_terminal):
        if line == "/exit":
            break
        if line == "/new":
            messages = list(start)
            continue
        messages.append({"role": "user", "content": line})
        try:
            events = llm.stream_chat(messages, params, thinking=thinking)
            messages.append(_as_message(parsed_message(_shown(events, console))))
        except RequestError as error:
            print(f"error: {error}", file=sys.stderr)
            messages.pop()
            failed += 1
        except KeyboardInterrupt:
            # The answer is given up, the conversation goes on.
            console.print()
            messages.pop()
    return 1 if failed else 0


def _shown(events: Iterable[Event], console: Console) -> Iterator[Event]:
    """The same events, each shown as it comes."""
    thoughts = False
    for event in events:
        yield event
        if thoughts and not isinstance(event, ReasoningText):
            console.print("\n")
            thoughts = False
        match event:
            case ReasoningText():
                thoughts = True
                show(console, event.text, "dim")
            case ContentText() | Unread():
                show(console, event.text)
            case CallOpened():
                show(console, f"\n[call of {event.name}] ", "bold")
            case CallArguments():
                show(console, event.text)
            case Finished():
                show(console, "\n" if event.reason != "length" else " [cut at the limit]\n", "dim")


def _as_message(answer: ParsedMessage) -> dict[str, Any]:
    """The answer as a message of the conversation that goes on."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning_content:
        message["reasoning_content"] = answer.reasoning_content
    return message
