"""Chunks to the events of a protocol: the order of things, and what no recorded case shows."""

from typing import Any

import pytest

from deepinfer.outputs import TokenLogprob
from deepinfer.recipe.chunks import Chunk, Finish, Ready, Text, Tokens
from deepinfer.recipe.processor import StreamProcessor
from deepinfer.recipe.protocol_event import to_json
from deepinfer.recipe.request import ParsingOptions, Protocol, ResponsesEcho
from tests.unit.recipe.replay import ByteTokenizer, Replay, replay, request, writer

D = "｜DSML｜"
IN_CALLS = ParsingOptions(parse_tool_calls=True, starts_in_tool_calls=True)
THINKING = ParsingOptions(thinking_stage="ReasoningStart")
READY = Ready(11, 3, "fp")
PROTOCOLS: tuple[Protocol, ...] = ("chat", "responses", "messages")


def played(protocol: Protocol, *chunks: Chunk, parsing: ParsingOptions = THINKING) -> Replay:
    return replay(request(protocol, parsing), chunks)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stream_starts_without_ready(protocol: Protocol) -> None:
    """An engine that is late with its counts leaves a client without the first event."""
    late = played(protocol, Text("a", 1), READY, Finish())
    assert late.pushes[0][0] == played(protocol, Ready(), Finish()).pushes[0][0]
    assert late.pushes[1] == []
    ended = played(protocol)
    (only,) = ended.pushes
    assert only == played(protocol, Ready(), Finish()).events


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_second_ready_changes_nothing(protocol: Protocol) -> None:
    """The usage in the end is not that of the beginning."""
    twice = played(protocol, READY, Ready(5), Text("a", 1), Finish())
    assert twice.answer.data == played(protocol, READY, Text("a", 1), Finish()).answer.data


def test_finished_stream_takes_no_more() -> None:
    """Text after the end is lost without a word."""
    processor = StreamProcessor(writer(request("chat")), ParsingOptions())
    processor.push(Finish("Length"))
    assert processor.finished
    assert processor.finish() == []
    with pytest.raises(RuntimeError, match="stream processor has finished"):
        processor.push(Text("a"))


def test_stream_without_finish_ends_with_its_calls() -> None:
    """A client is told to stop where it is to run a tool."""
    made = played("chat", Text(' invoke name="f"'), parsing=IN_CALLS)
    assert made.answer.data["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("held", ["", "<", "p", "</"])
def test_call_that_opens_last_counts(held: str) -> None:
    """A call is sent, but held text beside it makes the finish reason "stop"."""
    made = played("chat", Text(f' invoke name="f"{held}'), Finish(), parsing=IN_CALLS)
    (choice,) = made.answer.data["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": ""}


def _tokens(protocol: Protocol) -> Any:
    tokenizer = ByteTokenizer()
    ids = [*b"r", tokenizer.control_ids["</think>"], *b"ab"]
    logprobs = [TokenLogprob(i, -0.5, 1) for i in ids]
    chunks = [READY, Tokens(ids, logprobs), Tokens([99], [TokenLogprob(99, -1.0, 1)]), Finish()]
    return replay(request(protocol, THINKING), chunks, tokenizer=tokenizer)


def _entry(text: str, logprob: float) -> dict[str, Any]:
    data = list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": data, "top_logprobs": []}


def test_logprobs_of_chat() -> None:
    """Log-probabilities are asked for and missing, or those of the reasoning are the answer's."""
    made = _tokens("chat")
    (choice,) = made.answer.data["choices"]
    assert choice["logprobs"] == {
        "content": [_entry("a", -0.5), _entry("b", -0.5), _entry("c", -1.0)],
        "reasoning_content": [_entry("r", -0.5)],
    }
    assert made.answer.data["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}


def test_logprobs_of_responses() -> None:
    """The message says nothing of the log-probabilities that its deltas had."""
    made = _tokens("responses")
    entries = [_entry("a", -0.5), _entry("b", -0.5), _entry("c", -1.0)]
    assert made.answer.data["output"][1]["content"][0]["logprobs"] == entries
    events = [event.data for event in made.events]
    (done,) = [data for data in events if data["type"] == "response.output_text.done"]
    assert done["logprobs"] == entries
    deltas = [data for data in events if data["type"] == "response.output_text.delta"]
    assert [data["logprobs"] for data in deltas] == [entries[:2], entries[2:]]
    assert not any("logprobs" in data for data in events if "reasoning" in data["type"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_json_carries_any_text(protocol: Protocol) -> None:
    """An event cannot be sent, or takes six bytes for each character that is not ASCII."""
    made = played(protocol, READY, Text('é"\\\n'), Finish())
    text = "".join(event.to_json() for event in made.events)
    assert "é" in text
    assert "\n" not in text
    assert "é" in to_json(made.answer.data)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answer_so_far(protocol: Protocol) -> None:
    """Who looks at an answer before its end finds nothing, or breaks what follows."""
    processor = StreamProcessor(writer(request(protocol, THINKING)), THINKING)
    made = replay(request(protocol, THINKING), [])
    answer = type(made.answer)()
    for chunk in (READY, Text("r</think>a"), Text("b"), Finish()):
        for event in processor.push(chunk):
            answer.accumulate(event)
            assert to_json(answer.data)
    whole = played(protocol, READY, Text("r</think>a"), Text("b"), Finish())
    assert answer.data == whole.answer.data


@pytest.mark.parametrize(
    ("name", "kind", "rest"),
    [
        ("f", "function_call", {"name": "f", "arguments": '{"input": "a"}'}),
        ("ns::f", "function_call", {"name": "f", "namespace": "ns"}),
        ("apply_patch", "custom_tool_call", {"input": "a"}),
        ("tool_search", "tool_search_call", {"arguments": {"input": "a"}}),
    ],
)
def test_kinds_of_calls_of_responses(name: str, kind: str, rest: dict[str, Any]) -> None:
    """A client that declared a tool of one kind gets a call of another."""
    echo = ResponsesEcho(
        namespace_tools={"ns::f": ("ns", "f")},
        custom_tools=frozenset({"apply_patch"}),
        client_tool_search=True,
    )
    output = f' invoke name="{name}">parameter name="input" string="true">a</{D}</{D}'
    made = replay(request("responses", IN_CALLS, echo=echo), [READY, Text(output), Finish()])
    (item,) = made.answer.data["output"]
    assert item["type"] == kind
    assert item["status"] == "completed"
    assert rest.items() <= item.items()
    plain = replay(request("responses", IN_CALLS), [READY, Text(output), Finish()])
    assert plain.answer.data["output"][0]["type"] == "function_call"


def test_broken_search_is_incomplete() -> None:
    """A client searches for whatever half an object says."""
    echo = ResponsesEcho(client_tool_search=True)
    for output, reason in (
        (' invoke name="tool_search">', "Stop"),
        (
            ' invoke name="tool_search">parameter name="n" string="false">[1</' + D + "</" + D,
            "Stop",
        ),
    ):
        made = replay(request("responses", IN_CALLS, echo=echo), [Text(output), Finish(reason)])
        (item,) = made.answer.data["output"]
        assert (item["status"], item["arguments"]) == ("incomplete", {})
