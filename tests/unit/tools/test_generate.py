"""`deepinfer generate` behind its command line: where prompts come from, what is printed where."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer.errors import RequestError
from deepinfer.outputs import CompletionOutput, RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.tools.generate import generate, read_prompts

PARAMS = SamplingParams()
REFUSED = RequestError("the prompt is empty", field="prompt", hint="give some text")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class EchoLLM:
    """Answers with its prompt, letter by letter; refuses "bad"."""

    def stream(self, prompt: str, params: SamplingParams) -> Iterator[str]:
        assert params is PARAMS
        if prompt == "bad":
            raise REFUSED
        yield from prompt
        yield ""

    def generate(self, prompt: str, params: SamplingParams) -> list[RequestOutput]:
        assert params is PARAMS
        if prompt == "bad":
            return [RequestOutput(prompt, [], [], REFUSED)]
        return [RequestOutput(prompt, [0, 5], [CompletionOutput(0, prompt, [7, 8], "length")])]


def run(*prompts: str, as_json: bool = False) -> int:
    return generate(EchoLLM(), list(prompts), PARAMS, as_json=as_json)  # type: ignore[arg-type]


def refused(*arguments: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_prompts(*arguments)
    assert caught.value.hint
    return caught.value


def test_prompts_from_arguments(tmp_path: Path) -> None:
    """Arguments are passed over for what waits on standard input."""
    assert read_prompts(["a", "", "b\nc"], None, io.StringIO("other")) == ["a", "", "b\nc"]


def test_prompts_from_a_file(tmp_path: Path) -> None:
    """Blank lines become empty prompts, the end of a line becomes part of one."""
    file = tmp_path / "prompts.txt"
    file.write_bytes("one\r\n\n  two \n\t\n大海".encode())
    assert read_prompts([], file, io.StringIO("other")) == ["one", "  two ", "大海"]


def test_only_ends_of_lines_part_prompts(tmp_path: Path) -> None:
    """A prompt falls in two at a form feed or at a line separator of Unicode inside of it."""
    file = tmp_path / "prompts.txt"
    prompts = ["a\fb", "c\u2028d\u2029e", "f\x85g\x1ch\vi"]
    file.write_text("\n".join(prompts) + "\n", encoding="utf-8")
    assert read_prompts([], file, io.StringIO()) == prompts


def test_prompt_from_standard_input() -> None:
    """A text of several lines on standard input becomes several prompts."""
    assert read_prompts([], None, io.StringIO("one\ntwo\n")) == ["one\ntwo\n"]


def test_nobody_waits_at_a_terminal() -> None:
    """Without a prompt the program waits for one in silence."""
    assert refused([], None, Terminal()).field == "PROMPT"


def test_standard_input_that_is_closed() -> None:
    """A program without a standard input, as under some daemons, ends in a trace of ours."""
    assert refused([], None, None).field == "PROMPT"


def test_standard_input_that_is_not_text() -> None:
    """A file in another encoding on standard input ends in a trace from the codec."""
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8")
    assert "UTF-8" in str(refused([], None, stdin))


def test_two_sources() -> None:
    """One of two sources is ignored without a word."""
    assert refused(["a"], Path("prompts.txt"), io.StringIO()).field == "--file"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "No such file"),
        (b"", "has no prompt"),
        (b" \n\t\n", "has no prompt"),
        (b"\xff", "UTF"),
    ],
)
def test_files_without_prompts(content: bytes | None, word: str, tmp_path: Path) -> None:
    """A file that cannot be used ends in a trace, or in no output at all."""
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    error = refused([], file, io.StringIO("other"))
    assert error.field == "--file"
    assert word in error.what
    assert str(file) in error.what


def test_folder_as_file(tmp_path: Path) -> None:
    """A folder where a file was expected ends in a trace."""
    assert refused([], tmp_path, io.StringIO()).field == "--file"


def test_one_prompt_is_answered_bare(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that reads the answer finds headings or statistics in it."""
    assert run("the sea") == 0
    assert capsys.readouterr() == ("the sea\n", "")


def test_several_prompts_have_headings(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody knows which answer belongs to which prompt."""
    assert run("a", "b") == 0
    assert capsys.readouterr().out == "[1/2] a\na\n[2/2] b\nb\n"


def test_refused_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    """O05: a refused prompt ends the others, leaves status 0, or is mixed into the answers."""
    assert run("a", "bad", "c", "bad") == 1
    out, err = capsys.readouterr()
    assert out == "[1/4] a\na\n[2/4] bad\n[3/4] c\nc\n[4/4] bad\n"
    for number in (2, 4):
        assert f"error: prompt {number}: prompt: the prompt is empty\n  hint: give some text" in err
    assert "Traceback" not in err


def test_pieces_are_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text waits in a buffer until all of it is there."""
    shown: list[str] = []

    class Watched(io.StringIO):
        def flush(self) -> None:
            shown.append(self.getvalue())

    monkeypatch.setattr("sys.stdout", Watched())
    run("abc")
    assert shown[:3] == ["a", "ab", "abc"]


STEERING = "a\x1b[2Jb\x07\r\x9b\x7fc\td\ne"


def test_a_terminal_is_not_steered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated control characters clear the screen, or rename the window."""
    screen, notes = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", notes)
    assert run(STEERING) == 0
    mark = "\ufffd"
    assert screen.getvalue() == f"a{mark}[2Jb{mark}{mark}{mark}{mark}c\td\ne\n"
    assert notes.getvalue().startswith(f"({len(STEERING)} tokens in ")


def test_a_pipe_gets_every_character(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that reads the answer gets another text than the model wrote."""
    run(STEERING)
    assert capsys.readouterr().out == STEERING + "\n"


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """G07: a record is not JSON, is spread over lines, or lacks the error of a refused prompt."""
    odd = 'two\nlines "\ud800" 大海 \x1b'
    assert run("a", "bad", odd, as_json=True) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert out.isascii()
    assert "\x1b" not in out
    first, bad, last = [json.loads(line) for line in out.splitlines()]
    assert first == {
        "prompt": "a",
        "prompt_token_ids": [0, 5],
        "text": "a",
        "token_ids": [7, 8],
        "finish_reason": "length",
    }
    assert bad == {
        "prompt": "bad",
        "prompt_token_ids": [],
        "error": {
            "field": "prompt",
            "message": "the prompt is empty",
            "hint": "give some text",
        },
    }
    assert last["text"] == odd
    assert run("a", as_json=True) == 0
