"""`deepinfer chat`: lines in, answers out; nothing of an answer steers the terminal."""

import io
from collections.abc import Iterator
from typing import Any

import pytest

from deepinfer.errors import RequestError
from deepinfer.recipe.events import (
    CallArguments,
    CallOpened,
    ContentText,
    Event,
    Finished,
    ReasoningText,
)
from deepinfer.sampling_params import SamplingParams
from deepinfer.tools import chat

THOUGHT: list[Event] = [
    ReasoningText("Hm"),
    ReasoningText("."),
    ContentText("Hi"),
    Finished("stop"),
]


class Scripted:
    """Answers in order; keeps what it was asked."""

    def __init__(self, *answers: list[Event] | BaseException) -> None:
        self._answers = iter(answers)
        self.asked: list[list[dict[str, Any]]] = []

    def stream_chat(self, messages: Any, params: Any, **options: Any) -> Iterator[Event]:
        self.asked.append([dict(message) for message in messages])
        answer = next(self._answers)
        if isinstance(answer, BaseException):
            raise answer
        yield from answer


def talk(llm: Scripted, lines: str, system: str | None = None) -> int:
    return chat.main(
        llm,  # type: ignore[arg-type]
        SamplingParams(),
        system=system,
        thinking=True,
        stdin=io.StringIO(lines),
    )


def test_a_conversation_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """The second question is asked without the first, or thoughts are lost from the history."""
    llm = Scripted(THOUGHT, THOUGHT)
    assert talk(llm, "Hello\n\nAgain\n", system="Be kind.") == 0
    assert [m["role"] for m in llm.asked[1]] == ["system", "user", "assistant", "user"]
    assert llm.asked[1][2] == {"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}
    assert capsys.readouterr().out == "Hm.\n\nHi\nHm.\n\nHi\n"


def test_new_and_exit() -> None:
    """/new keeps the old turns, or /exit is sent to the model."""
    llm = Scripted(THOUGHT, THOUGHT)
    assert talk(llm, "One\n/new\nTwo\n/exit\nThree\n") == 0
    assert [[m["content"] for m in asked] for asked in llm.asked] == [["One"], ["Two"]]


def test_a_refused_message_is_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    """One message too long, and no other can be sent any more."""
    llm = Scripted(RequestError("too long", field="prompt", hint="shorten it"), THOUGHT)
    assert talk(llm, "Long\nShort\n") == 1
    assert [m["content"] for m in llm.asked[1]] == ["Short"]
    assert "too long" in capsys.readouterr().err


def test_an_interrupted_answer_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends the program instead of the answer."""
    llm = Scripted(KeyboardInterrupt(), THOUGHT)
    assert talk(llm, "One\nTwo\n") == 0
    assert [m["content"] for m in llm.asked[1]] == ["Two"]


def test_calls_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A call of a tool is an empty answer on the screen; a cut one looks complete."""
    events: list[Event] = [CallOpened(0, "id", "ping"), CallArguments(0, "{}"), Finished("length")]
    talk(Scripted(events), "x\n")
    out = capsys.readouterr().out
    assert "[call of ping] {}" in out
    assert "cut at the limit" in out
