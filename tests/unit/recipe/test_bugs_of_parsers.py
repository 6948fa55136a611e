"""Faults that users of such engines have reported, as far as reading an answer can have them."""

import json
from collections.abc import Sequence
from random import Random

import pytest

from deepinfer.recipe.chunks import EndReason
from deepinfer.recipe.conversation import SpecialTokens, ToolDefinition, Version
from deepinfer.recipe.convert import convert
from deepinfer.recipe.events import CallArguments, ContentText, Event, ReasoningText
from deepinfer.recipe.message import ParsedMessage, parsed_message
from deepinfer.recipe.output_parser import OutputParser
from deepinfer.recipe.render import render
from deepinfer.recipe.request import ParsingOptions, Protocol
from deepinfer.recipe.stages import first_stage
from tests.unit.recipe.replay import ByteTokenizer, read

D = "｜DSML｜"
TOKENS = SpecialTokens()
TOKENIZER = ByteTokenizer()
TOOLS = ParsingOptions(parse_tool_calls=True)
THINKING = ParsingOptions(parse_tool_calls=True, thinking_stage="ReasoningStart")


def stops(*texts: str) -> ParsingOptions:
    return ParsingOptions(parse_tool_calls=True, stop_sequences=texts)


def parameter(key: str, value: str, *, string: bool) -> str:
    is_string = "true" if string else "false"
    return f'<{D} parameter name="{key}" string="{is_string}">{value}</{D} parameter>\n'


def block(*calls: str) -> str:
    return f"\n\n<{D} calls>\n{''.join(calls)}</{D} calls>"


def invoke(name: str, *parameters: str) -> str:
    return f'<{D} invoke name="{name}">\n{"".join(parameters)}</{D} invoke>\n'


def message(
    output: Sequence[str | list[int]] | str,
    parsing: ParsingOptions,
    reason: EndReason = "Stop",
    *,
    tools: Sequence[ToolDefinition] = (),
) -> ParsedMessage:
    pieces = [output] if isinstance(output, str) else output
    return parsed_message(read(pieces, parsing, tokenizer=TOKENIZER, reason=reason), tools)


def shown(events: Sequence[Event]) -> str:
    """The text of all events."""
    kinds = (ContentText, ReasoningText, CallArguments)
    return "".join(event.text for event in events if isinstance(event, kinds))


def every_cut(text: str) -> list[list[str]]:
    return [[text], list(text), *([text[:i], text[i:]] for i in range(1, len(text)))]


@pytest.mark.parametrize("stop_len", range(1, 13))
def test_h01_start_of_a_stop_string_is_not_shown(stop_len: int) -> None:
    """Part of the stop string reaches the client."""
    stop = "ENDENDENDEND"[:stop_len]
    parsing = stops(stop, stop + "!", "ENX")
    for before in ("", "some ", "some EN"):
        expected = (before + stop).partition(stop)[0]
        for cut in every_cut(f"{before}{stop} more"):
            made = message(cut, parsing)
            assert (made.content, made.stop_sequence) == (expected, stop), cut


@pytest.mark.parametrize("stop", ["é!", "😀", "ñ😀ñ", "日本"])
def test_h02_stop_string_cut_inside_a_character(stop: str) -> None:
    """A stop string whose bytes come in several tokens is missed, or ends in an exception."""
    output = f"a😀é{stop[:1]}b{stop}c".encode()
    expected = output.decode().partition(stop)[0]
    for i in range(len(output)):
        made = message([list(output[:i]), list(output[i:])], stops(stop))
        assert (made.content, made.stop_sequence) == (expected, stop)


@pytest.mark.parametrize("tail", [TOKENS.user, "</think>", f"<{D}", block(invoke("f")), "<", "\n"])
def test_h03_a_stop_list_changes_nothing_else(tail: str) -> None:
    """The rest of a control token is in the answer because a stop string was set."""
    parsing = stops("a very long stop string that never comes", "zzzz")
    for cut in every_cut(f"an answer{tail}"):
        assert message(cut, parsing) == message(cut, TOOLS)


def test_h03_no_more_is_held_than_may_match() -> None:
    """Text comes late by the length of the longest stop string."""
    words = ("a very long stop string that never comes", "zzzz")
    parser = OutputParser(ParsingOptions(stop_sequences=words))
    text, seen = "see, a very long zzz a very long stop string that never came", ""
    for end, character in enumerate(text, 1):
        seen += shown(parser.push(character))
        held = [text[i:end] for i in range(end) if any(w.startswith(text[i:end]) for w in words)]
        assert text[:end] == seen + (held[0] if held else "")


def test_h04_nothing_after_the_stop() -> None:
    """Words that were made after the match appear, or are counted in another way each time.

    The pushes until the end count, the last one to the end of its run of tokens.
    """
    parser = OutputParser(stops("END"), TOKENIZER)
    events = parser.push_tokens(list(b"aEN"))
    events += parser.push_tokens([*b"Db", TOKENIZER.control_ids[TOKENS.user], *b"c"])
    events += parser.push_tokens(list(b"d")) + parser.push("e", 1) + parser.finish("Length")
    made = parsed_message(events)
    assert (made.content, made.finish_reason, made.stop_sequence) == ("a", "stop", "END")
    assert parser.num_tokens == 5


def test_h06_stop_strings_act_on_tokens() -> None:
    """With tokens in and out, stop strings are silently off."""
    assert message([list(b"abENDc")], stops("END")).content == "ab"
    assert message([[i] for i in b"abENDc"], stops("END")).stop_sequence == "END"


def test_h07_no_result_depends_on_the_cut() -> None:
    """The end of the thinking comes in two pieces, and thoughts end in the content."""
    call = block(invoke("f", parameter("k", "a</b END", string=True)))
    for stop in ("E", "END", "</th", "a rather long one"):
        parsing = ParsingOptions(True, False, False, "ReasoningStart", (stop,))
        output = f"\nr END </thin \n\n</think>\n\nc <b{call} tail"
        expected = message(output, parsing)
        assert expected.reasoning_content == "r END </thin "
        for cut in every_cut(output):
            assert message(cut, parsing) == expected


@pytest.mark.parametrize("character", ["é", "語", "😀", "\ufffd"])
def test_h09_characters_stay_whole(character: str) -> None:
    """Replacement marks, or missing characters, where tokens or the answer end."""
    data = f"a{character}b{character}".encode()
    for i in range(len(data) + 1):
        assert message([list(data[:i]), list(data[i:])], TOOLS).content == data.decode()
        # Cut by length inside a character: what is whole is there, and no mark.
        assert message([list(data[:i])], TOOLS, "Length").content == data[:i].decode(
            errors="ignore"
        )
    assert message([[0xFF], list(b"a")], TOOLS).content == "\ufffda"


@pytest.mark.parametrize("parsing", [TOOLS, ParsingOptions(True, True)])
@pytest.mark.parametrize(
    "output", ["", "text", block(), block(invoke("f")), f"{invoke('f')[:-30]}"]
)
def test_i05_finish_reasons(parsing: ParsingOptions, output: str) -> None:
    """ "stop" and "tool_calls" mixed up, or "tool_calls" without a call."""
    for cut in every_cut(output):
        made = message(cut, parsing)
        assert made.finish_reason == ("tool_calls" if made.tool_calls else "stop")
        assert message(cut, parsing, "Length").finish_reason == "length"
        assert message(cut, parsing, "ContentFilter").finish_reason == "content_filter"


LOOK_ALIKES = ["<", "</", f"</{D[:-1]}", "</b>", "a < b && c > d", f"<{D}x", '">', f"{D}<", "\n"]


@pytest.mark.parametrize("value", LOOK_ALIKES)
def test_j01_no_markup_in_arguments(value: str) -> None:
    """The last argument ends with part of the closing tag, and its JSON is left open."""
    output = block(
        invoke("f", parameter("a", value, string=True), parameter("b", "[1]", string=False))
    )
    for cut in every_cut(output):
        (call,) = message(cut, TOOLS).tool_calls
        assert json.loads(call.arguments) == {"a": value, "b": [1]}


def test_j02_arguments_are_streamed() -> None:
    """Nothing comes until a long parameter is complete."""
    output = block(invoke("f", parameter("k", "word " * 500 + "</x> " * 20, string=True)))
    parser = OutputParser(TOOLS)
    start = output.index("word")
    parser.push(output[:start])
    waiting = 0
    for character in output[start : output.index(f"</{D} parameter")]:
        waiting = waiting + 1 - len(shown(parser.push(character)))
        assert 0 <= waiting <= 2


@pytest.mark.parametrize("value", ["true", "1", "1.50", "null", "[1]", '{"a": 1}', '"x"', "9" * 40])
def test_j03_the_attribute_says_what_is_a_string(value: str) -> None:
    """Numbers and booleans come as strings, strings as numbers, or digits are lost."""
    output = block(
        invoke("f", parameter("s", value, string=True), parameter("v", value, string=False))
    )
    (call,) = message(output, TOOLS).tool_calls
    assert call.arguments == f'{{"s": {json.dumps(value)}, "v": {value}}}'


def test_j04_wrapped_arguments() -> None:
    """Parameters come under a name that the tool does not have, or are torn out of one it has."""
    output = block(invoke("f", parameter("arguments", '{"city": "K"}', string=False)))
    has_city = ToolDefinition("f", parameters={"properties": {"city": {}}})
    has_both = ToolDefinition("f", parameters={"properties": {"city": {}, "arguments": {}}})
    for tool, expected in ((has_city, '{"city": "K"}'), (has_both, '{"arguments": {"city": "K"}}')):
        (call,) = message(output, TOOLS, tools=[tool]).tool_calls
        assert call.arguments == expected
    (call,) = message(output, TOOLS).tool_calls
    assert call.arguments == '{"arguments": {"city": "K"}}'


@pytest.mark.parametrize("marker", ["</think>", f"<{D}", "END", f"\n\n<{D}"])
@pytest.mark.parametrize("after", ["", "x", "<"])
def test_j05_beginning_of_a_marker_is_text(marker: str, after: str) -> None:
    """An answer that ends in a less-than sign loses it."""
    for num in range(1, len(marker)):
        text = f"a{marker[:num]}{after}"
        for cut in every_cut(text):
            assert message(cut, stops("END")).content == text
            made = message(cut, THINKING)
            assert (made.reasoning_content, made.content) == (text, "")


@pytest.mark.parametrize(
    ("output", "reasoning", "content"),
    [
        ("all of it", "all of it", ""),
        ("</think>answer", None, "answer"),
        ("thought</think>", "thought", ""),
        ("r</think>a</think>b", "r", "ab"),
    ],
)
def test_j07_what_is_thinking(output: str, reasoning: str | None, content: str) -> None:
    """The whole answer is filed as thinking, or the end token's text remains.

    What no marker ends is thinking; cut there, the reason is "length".
    """
    ids = TOKENIZER.encode(output + TOKENS.eos, add_bos=False, allow_control=True)
    made = message([ids], THINKING)
    assert (made.reasoning_content, made.content) == (reasoning, content)
    assert message(output, THINKING) == made
    assert message(output, THINKING, "Length").finish_reason == "length"


def test_j08_call_inside_the_thinking() -> None:
    """Markup of a call is shown as a thought, or a later thought as content."""
    call = block(invoke("f"))
    for cut in every_cut(f"thought{call}"):
        made = message(cut, THINKING)
        assert (made.reasoning_content, made.content) == ("thought", "")
        assert [one.name for one in made.tool_calls] == ["f"]
    for look_alike in (f"<{D[:-1]} calls>", "<calls>", "invoke name="):
        made = message(f"a{look_alike}b</think>c", THINKING)
        assert (made.reasoning_content, made.content) == (f"a{look_alike}b", "c")
    spelled = list(call.encode())
    assert message([spelled], THINKING).reasoning_content == call.lstrip()


SWITCHES: list[tuple[Protocol, dict[str, object]]] = [
    ("chat", {}),
    ("chat", {"thinking": {"type": "enabled"}}),
    ("chat", {"thinking": {"type": "disabled"}}),
    ("chat", {"reasoning_effort": "none"}),
    ("chat", {"reasoning_effort": "max"}),
    ("chat", {"thinking": {"type": "disabled"}, "reasoning_effort": "high"}),
    ("responses", {"reasoning": {"effort": "none"}}),
    ("responses", {"reasoning": {"effort": "low"}}),
    ("messages", {"thinking": {"type": "disabled"}}),
    ("messages", {"thinking": {"type": "adaptive"}}),
]


@pytest.mark.parametrize(("protocol", "switch"), SWITCHES)
@pytest.mark.parametrize(("model", "version"), [("V4-Pro", "v4"), ("V4.1-Flash", "v4.1")])
def test_j09_the_parser_starts_where_the_prompt_ends(
    protocol: Protocol, switch: dict[str, object], model: str, version: Version
) -> None:
    """The prompt has opened the thinking, and the parser waits for the opening."""
    body = {
        "model": f"DeepSeek-{model}",
        "input": "x",
        "messages": [{"role": "user", "content": "x"}],
    }
    asked = convert(protocol, body | switch)
    prompt = render(asked.conversation, version).prompt
    starts = first_stage(asked.parsing)
    assert prompt.endswith({"reasoning_start": "<think>", "content_start": "</think>"}[starts])


def _damaged() -> list[str]:
    whole = block(invoke("f", parameter("k", "v", string=True)))
    swaps = [
        *(("invoke", "call"), ("invoke name=", "invoke "), ('name="f"', "name='f'"), (D, "|DSML|")),
        *(("string=", "type="), ('string="true"', 'string="True"'), ("parameter", "param")),
        *(("<", "&lt;"), (f'<{D} invoke name="f">\n', ""), (f"</{D} invoke>\n", ""), (">", "")),
        *((f"</{D} calls>", ""), (f"</{D} parameter>", ""), (f"<{D} calls>\n", ""), ('"', "”")),
        *((" invoke", "invoke"), (" calls", "tool_calls"), ('name="k"', "name=k"), ("\n", "")),
    ]
    damaged = [whole.replace(old, new) for old, new in swaps]
    random = Random(0)
    for _ in range(40):
        start = random.randrange(len(whole))
        damaged.append(whole[:start] + whole[start + random.randrange(1, 12) :])
    return [*damaged, *(whole[:end] for end in range(3, len(whole), 5))]


@pytest.mark.parametrize("parsing", [TOOLS, THINKING, ParsingOptions(True, True)])
def test_j15_a_damaged_call_is_not_nothing(parsing: ParsingOptions) -> None:
    """A call that is slightly wrong vanishes, and the answer is empty."""
    for output in _damaged():
        made = message(output, parsing)
        assert made.tool_calls or made.content.strip() or made.reasoning_content, output
        for cut in ([output[:40], output[40:]], list(output)):
            assert message(cut, parsing) == made, cut
    assert message(f"a <{D}foo>bar</{D}foo>", TOOLS).content == f"a <{D}foo>bar</{D}foo>"
    ids = TOKENIZER.encode(block("x"), add_bos=False, allow_control=True)
    assert message([ids], TOOLS).content == block("x").lstrip()


def test_j15_no_json_where_json_was_asked_for() -> None:
    """Words in place of JSON become spaces."""
    parsing = ParsingOptions(parse_json_output=True)
    for cut in every_cut("I would rather not."):
        assert message(cut, parsing).content == "I would rather not."
    assert message("Sure: [1] done", parsing).content.strip() == "[1] done"
