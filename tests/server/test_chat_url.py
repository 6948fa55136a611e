"""`deepinfer chat URL`: lines in, answers out, by way of a server."""

import io
import threading
import time
from collections.abc import Iterator

import pytest

from deepinfer.__main__ import main
from deepinfer.errors import ConfigError, RequestError
from deepinfer.tools import chat_url
from deepinfer.tools.chat_url import Server
from tests.server.scripted import Part, scripted_server


@pytest.fixture
def part() -> Iterator[Part]:
    with scripted_server() as found:
        yield found


def talk(part: Part, lines: str, system: str | None = None, key: str | None = None) -> int:
    options = {"max_tokens": 9}
    stdin = io.StringIO(lines)
    return chat_url.main(Server(part.url, key), options, system=system, stdin=stdin)


def test_a_conversation_goes_on(part: Part, capsys: pytest.CaptureFixture[str]) -> None:
    """The second question is asked without the first, or options are not sent."""
    part.deltas = [{"reasoning_content": "Hm."}, {"content": "Hi"}, {"content": "!"}]
    assert talk(part, "Hello\n\nAgain\n", system="Be kind.") == 0
    assert [m["role"] for m in part.asked[1]["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert part.asked[1]["messages"][2]["content"] == "Hi!"
    assert (part.asked[0]["model"], part.asked[0]["max_tokens"]) == ("demo", 9)
    assert capsys.readouterr().out == "Hm.\n\nHi!\nHm.\n\nHi!\n"


def test_new_and_quit(part: Part) -> None:
    """/new keeps what was said, /quit is sent to the model."""
    assert talk(part, "One\n/new\nTwo\n/quit\nThree\n") == 0
    assert [m["content"] for m in part.asked[1]["messages"]] == ["Two"]
    assert len(part.asked) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"refusal": (429, "too many are waiting", 3)}, "try again in 3 s"),
        ({"refusal": (400, "max_tokens: too large", None)}, "max_tokens: too large"),
        ({"breaks_off": True}, "broke off"),
        ({"error_behind": "the engine ended"}, "the engine ended"),
    ],
)
def test_a_fault_is_told(
    part: Part, change: dict[str, object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault ends the conversation, or half an answer is taken for a whole one."""
    for name, value in change.items():
        setattr(part, name, value)
    assert talk(part, "One\nTwo\n") == 1
    assert capsys.readouterr().err.count(said) == 2
    assert [m["content"] for m in part.asked[1]["messages"]] == ["Two"]


def test_ctrl_c_stops_the_answer(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the program, or the server goes on with an answer that nobody reads."""
    part.deltas, part.pause_s = [{"content": "x"}] * 1000, 0.01
    shown = chat_url.shown

    def interrupted(chunks: Iterator[object], console: object) -> str:
        next(iter(chunks))
        monkeypatch.setattr(chat_url, "shown", shown)
        part.deltas = [{"content": "Yes."}]
        raise KeyboardInterrupt

    monkeypatch.setattr(chat_url, "shown", interrupted)
    assert talk(part, "Count\nGo on\n") == 0
    end = time.monotonic() + 5
    while not part.left and time.monotonic() < end:
        threading.Event().wait(0.02)
    assert part.left == 1
    assert [m["content"] for m in part.asked[1]["messages"]] == ["Go on"]


def test_keys(part: Part) -> None:
    """A key is not sent, or its absence is not explained."""
    part.key = "k"
    with pytest.raises(RequestError, match="--api-key"):
        talk(part, "Hello\n")
    assert talk(part, "Hello\n", key="k") == 0


def test_no_server() -> None:
    """Nobody listens, and a trace is shown."""
    with scripted_server() as part:
        pass
    with pytest.raises(RequestError, match="is the server running"):
        talk(part, "Hello\n")


@pytest.mark.parametrize("url", ["localhost", "ftp://x", "http://"])
def test_bad_address(url: str) -> None:
    """A mistyped address ends in a trace."""
    with pytest.raises(ConfigError, match="URL"):
        Server(url)


@pytest.mark.parametrize("command", [["chat"], ["bench", "--url"]], ids=lambda one: one[0])
def test_options_of_an_engine(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody measures a server "with" an option that it never heard of."""
    asked = ["deepinfer", *command, "http://localhost:9", "--num-drafts", "3"]
    monkeypatch.setattr("sys.argv", asked)
    assert main() != 0
    said = capsys.readouterr().err
    assert "--num-drafts: found 3" in said
    assert "deepinfer serve" in said


def test_nothing_steers_the_terminal(part: Part, capsys: pytest.CaptureFixture[str]) -> None:
    """A model's answer is read as markup of the terminal's library."""
    part.deltas = [{"content": "[bold]x[/bold] [link=http://a]y"}]
    talk(part, "Hello\n")
    assert capsys.readouterr().out == "[bold]x[/bold] [link=http://a]y\n"
