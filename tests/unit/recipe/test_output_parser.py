"""Reading an answer without a protocol: what is passed on, and when."""

import re
from random import Random

import pytest

from deepinfer.outputs import TokenLogprob
from deepinfer.recipe.call_ids import random_call_id
from deepinfer.recipe.conversation import SpecialTokens
from deepinfer.recipe.events import (
    CallArguments,
    CallOpened,
    ContentText,
    Event,
    Finished,
    ReasoningText,
)
from deepinfer.recipe.message import parsed_message
from deepinfer.recipe.output_parser import OutputParser
from deepinfer.recipe.request import ParsingOptions
from tests.effort import effort
from tests.unit.recipe.replay import ByteTokenizer, fixed_call_id, read

D = "｜DSML｜"
TOOLS = ParsingOptions(parse_tool_calls=True)
THINKING = ParsingOptions(parse_tool_calls=True, thinking_stage="ReasoningStart")
STOP = ParsingOptions(stop_sequences=("END",))
CALL = (
    f'<{D} calls>\n<{D} invoke name="f">\n<{D} parameter name="k" string="true">v</{D} parameter>'
    f"\n</{D} invoke>\n</{D} calls>"
)


def content(*texts: str) -> list[Event]:
    return [ContentText(text) for text in texts]


def pushed(parsing: ParsingOptions, *texts: str) -> list[list[Event]]:
    parser = OutputParser(parsing, call_id=fixed_call_id)
    return [*map(parser.push, texts), parser.finish()]


def test_text_waits_only_for_what_may_follow() -> None:
    """Text comes late, or a mark that is cut in two is taken for text."""
    assert pushed(STOP, "ab", "cE", "x", "EN", "DE") == [
        content("ab"),
        [],
        content("cE", "x"),
        [],
        [Finished("stop", "END")],
        [],
    ]


def test_call_comes_piece_by_piece() -> None:
    """A client waits for a call until all of it is there."""
    pieces = ("{", '"k"', ": ", '"', "v", '"', "}")
    assert pushed(TOOLS, "a", CALL) == [
        content("a"),
        [CallOpened(0, "call_00_X", "f"), *(CallArguments(0, piece) for piece in pieces)],
        [Finished("tool_calls")],
    ]


def test_empty_chunk_is_of_what_came_before() -> None:
    """The released recipe passes an empty chunk on as an empty delta, and clients count deltas."""
    assert pushed(TOOLS, "", "a", "", "a<", "", "x") == [
        *([], content("", "a"), content("")),
        *([], [], content("a<", "", "x")),
        [Finished("stop")],
    ]
    # What is inside a match, or has nothing before or after it, is nothing.
    assert pushed(STOP, "\n", "", "a")[:3] == [[], [], content("a")]
    assert pushed(STOP, "EN", "", "D") == [[], [], [Finished("stop", "END")], []]
    assert pushed(STOP, "") == [[], [Finished("stop")]]


def test_after_the_end_nothing() -> None:
    """A late token reopens an answer, or is counted."""
    parser = OutputParser(STOP)
    assert parser.push("aENDb", 3) == [ContentText("a"), Finished("stop", "END")]
    assert parser.finished
    assert parser.push("c", 1) == parser.finish("Length") == []
    assert parser.num_tokens == 3


def test_text_and_tokens_do_not_match_together() -> None:
    """A mark that is half text and half token is taken for the mark, or newlines in front of an
    answer are skipped twice.
    """
    tokenizer = ByteTokenizer()
    end = tokenizer.control_ids["</think>"]
    parser = OutputParser(THINKING, tokenizer)
    events = parser.push("r</thi") + parser.push_tokens(list(b"nk>"))
    events += parser.push_tokens([end]) + parser.push("\n\na</think>\nb") + parser.push("\n")
    message = parsed_message(events + parser.finish())
    assert (message.reasoning_content, message.content) == ("r</think>", "a\nb\n")


def test_tokens_need_a_tokenizer() -> None:
    """A caller who forgot the tokenizer gets an answer without its text."""
    with pytest.raises(ValueError, match="tokenizer"):
        OutputParser(TOOLS).push_tokens([1])


def test_spelled_control_token_is_text() -> None:
    """A model that writes about its own markup, in ordinary tokens, ends its reasoning by it."""
    tokenizer = ByteTokenizer()
    for text in ("</think>", f"<{D} calls>", SpecialTokens().user):
        (event, end) = read([list(text.encode())], THINKING, tokenizer=tokenizer)
        assert (event, end) == (ReasoningText(text), Finished("stop"))


def test_control_tokens_are_read_by_id() -> None:
    """A call that comes as tokens is not one."""
    tokenizer = ByteTokenizer()
    output = f"r</think>{SpecialTokens().user}{CALL}"
    ids = tokenizer.encode(output, add_bos=False, allow_control=True)
    for cut in ([ids], [[i] for i in ids]):
        message = parsed_message(read(cut, THINKING, tokenizer=tokenizer))
        assert (message.reasoning_content, message.content) == ("r", SpecialTokens().user)
        assert [(call.name, call.arguments) for call in message.tool_calls] == [("f", '{"k": "v"}')]


def test_other_spellings() -> None:
    """Control tokens that are spelled otherwise are not found, or the usual ones still are."""
    tokens = SpecialTokens(thinking_end="[/T]", dsml="#")
    parsing = ParsingOptions(
        parse_tool_calls=True, thinking_stage="ReasoningStart", special_tokens=tokens
    )
    message = parsed_message(read(["a</think>[/T]b" + CALL.replace(D, "#")], parsing))
    assert (message.reasoning_content, message.content) == ("a</think>", "b")
    assert message.tool_calls[0].name == "f"


def test_reasoning_is_counted_by_the_tokenizer() -> None:
    """Usage says that nothing was thought, or counts what nobody asked for."""
    parser = OutputParser(THINKING, ByteTokenizer())
    parser.push("ab</think>c")
    assert parser.count_reasoning() == 2
    assert OutputParser(THINKING).count_reasoning() is None
    assert OutputParser(TOOLS, ByteTokenizer()).count_reasoning() is None


def test_call_ids() -> None:
    """Two calls of an answer have one id, or a call that had no reasoning does not say so."""
    made = {random_call_id(index, False) for index in (0, 0, 1, 11)}
    assert len(made) == 4
    assert all(re.fullmatch(r"call_\d\d_[A-Za-z0-9]{20}\d{4}", call_id) for call_id in made)
    assert re.fullmatch(r"call_03_ET_[A-Za-z0-9]{20}\d{4}", random_call_id(3, True))
    for output, parsing, marked in [
        (CALL, THINKING, True),
        ("</think>" + CALL, THINKING, True),
        ("\n\n" + CALL, THINKING, True),
        ("r" + CALL, THINKING, False),
        (CALL, TOOLS, False),
    ]:
        parser = OutputParser(parsing)
        (call,) = [event for event in parser.push(output) if isinstance(event, CallOpened)]
        assert ("ET_" in call.id) is marked, output


def test_logprobs_come_once() -> None:
    """Adding up the log-probabilities of an answer counts a token twice."""
    tokenizer = ByteTokenizer()
    parsing = ParsingOptions(parse_json_output=True)
    parser = OutputParser(parsing, tokenizer)
    ids = list(b'x{"a"')
    entries = [TokenLogprob(i, -1.0, 1, ((97, -2.0),)) for i in ids]
    events = parser.push_tokens(ids, entries)
    assert [event.text for event in events if isinstance(event, ContentText)] == [" ", "{", '"a"']
    found = [
        entry for event in events if isinstance(event, ContentText) for entry in event.logprobs
    ]
    top = [{"token": "a", "logprob": -2.0, "bytes": [97]}]
    assert found == [
        {"token": chr(i), "logprob": -1.0, "bytes": [i], "top_logprobs": top} for i in ids
    ]
    with pytest.raises(ValueError, match="shorter"):
        parser.push_tokens(ids, entries[1:])


def test_long_plain_text_is_fast() -> None:
    """Every token of every user goes through here: a cost per character would be felt.

    Measured at about 25 million characters a second; a slow machine may take ten times as long.
    """
    text = "The quick brown fox jumps over the lazy dog, and so on and on it goes. " * 10_000
    with effort(20):
        (event, _) = read([text], THINKING)
    assert event == ReasoningText(text)


def test_pieces_do_not_grow_the_cost() -> None:
    """A model that writes newlines for ever makes each push dearer than the one before."""
    with effort(150):
        (event, *_) = read(
            ["\n"] * 20_000 + ["x"],
            ParsingOptions(parse_tool_calls=True, thinking_stage="ContentContinuation"),
        )
    assert event == ContentText("\n")


def test_random_output_never_fails() -> None:
    """Some nonsense that a model writes ends a stream with an exception."""
    random = Random(0)
    pieces = ["<", "/", D, "</think>", "invoke name=", '"', "parameter name=", " ", "\n", "true"]
    pieces += ['">', "false", "{", "```json\n", "```", "a", "\ud800", "END"]
    for _ in range(300):
        output = [random.choice(pieces) for _ in range(random.randrange(40))]
        parsing = ParsingOptions(
            random.random() < 0.7, random.random() < 0.2, random.random() < 0.3, None, ("END",)
        )
        assert isinstance(read(output, parsing)[-1], Finished)
