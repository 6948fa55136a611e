"""Plays recorded or made up outputs through the parser and the events of a protocol."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

from deepinfer.recipe.call_ids import CallIds
from deepinfer.recipe.chunks import Chunk, EndReason, Finish, Ready, Text, Tokens
from deepinfer.recipe.conversation import Conversation, SpecialTokens
from deepinfer.recipe.convert import convert
from deepinfer.recipe.events import Event
from deepinfer.recipe.events_chat import ChatAnswer, ChatEvents
from deepinfer.recipe.events_messages import MessagesAnswer, MessagesEvents
from deepinfer.recipe.events_responses import ResponsesAnswer, ResponsesEvents
from deepinfer.recipe.output_parser import OutputParser
from deepinfer.recipe.processor import StreamProcessor
from deepinfer.recipe.protocol_event import Answer, EventWriter, ProtocolEvent
from deepinfer.recipe.request import (
    ConversationRequest,
    InferenceOptions,
    ParsingOptions,
    Protocol,
    ResponsesEcho,
)
from deepinfer.recipe.token_runs import Tokenizer

RESPONSE_ID = "rid1"


class ByteTokenizer:
    """A token for each byte, and one for each control token."""

    def __init__(self) -> None:
        self.control_ids: Mapping[str, int] = {
            spelling: 256 + i for i, spelling in enumerate(astuple(SpecialTokens()))
        }
        self._spellings = {i: spelling for spelling, i in self.control_ids.items()}

    def token_bytes(self, token_id: int) -> bytes:
        """The byte, or the spelling."""
        if token_id < 256:
            return bytes([token_id])
        return self._spellings[token_id].encode()

    def encode(self, text: str, *, add_bos: bool = True, allow_control: bool = False) -> list[int]:
        """The bytes; with allow_control, what is spelled like a control token is one."""
        assert not add_bos
        if not allow_control:
            return list(text.encode())
        ids: list[int] = []
        while text:
            spelling = next((s for s in self.control_ids if text.startswith(s)), "")
            ids += [self.control_ids[spelling]] if spelling else text[0].encode()
            text = text[len(spelling or text[0]) :]
        return ids


class Replay(NamedTuple):
    """pushes: the events of each push, and of `finish` if it was needed."""

    pushes: list[list[ProtocolEvent]]
    answer: Answer

    @property
    def events(self) -> list[ProtocolEvent]:
        """All events, in order."""
        return [event for push in self.pushes for event in push]


def fixed_call_id(index: int, without_reasoning: bool) -> str:
    """The recorded cases have no random ids, and no mark in them."""
    return f"call_{index:02}_X"


def marked_call_id(index: int, without_reasoning: bool) -> str:
    """No random ids, but the mark for a call without reasoning."""
    return f"call_{index:02}_ET_X" if without_reasoning else f"call_{index:02}_X"


def stopped_clock() -> float:
    """The recorded cases have no times."""
    return 0.0


def request(
    protocol: Protocol,
    parsing: ParsingOptions = ParsingOptions(),  # noqa: B008  (frozen)
    *,
    echo: ResponsesEcho | None = None,
    model: str = "m",
) -> ConversationRequest:
    """A request of which only the reading of its answer matters."""
    thinks = parsing.thinking_stage is not None
    conversation = Conversation(thinking=thinks)
    return ConversationRequest(
        protocol, model, "v4", conversation, InferenceOptions(), parsing, echo=echo
    )


def request_of(case: dict[str, Any]) -> ConversationRequest:
    """The request of a recorded case."""
    return convert(case["protocol"], case["request"])


def read(
    output: Iterable[str | list[int]],
    parsing: ParsingOptions = ParsingOptions(),  # noqa: B008  (frozen)
    *,
    tokenizer: Tokenizer | None = None,
    reason: EndReason = "Stop",
) -> list[Event]:
    """All events of an output of texts and lists of ids."""
    parser = OutputParser(parsing, tokenizer, call_id=fixed_call_id)
    events: list[Event] = []
    for chunk in output:
        events += parser.push(chunk) if isinstance(chunk, str) else parser.push_tokens(chunk)
    return events + parser.finish(reason)


def writer(request: ConversationRequest, signature: str | None = None) -> EventWriter:
    """The writer of the request's protocol."""
    if request.protocol == "chat":
        return ChatEvents(request, RESPONSE_ID, clock=stopped_clock)
    if request.protocol == "responses":
        return ResponsesEvents(request, RESPONSE_ID, clock=stopped_clock)
    return MessagesEvents(request, RESPONSE_ID, signature=signature)


def new_answer(request: ConversationRequest) -> Answer:
    """The answer of the request's protocol, before any event."""
    kinds = {"chat": ChatAnswer, "responses": ResponsesAnswer, "messages": MessagesAnswer}
    answer: Answer = kinds[request.protocol]()
    return answer


def replay(
    request: ConversationRequest,
    chunks: Iterable[Chunk],
    *,
    tokenizer: Tokenizer | None = None,
    signature: str | None = None,
    call_id: CallIds = fixed_call_id,
) -> Replay:
    """Push the chunks until the stream is finished."""
    processor = StreamProcessor(
        writer(request, signature), request.parsing, tokenizer, call_id=call_id
    )
    answer = new_answer(request)
    pushes = []
    for chunk in chunks:
        pushes.append(processor.push(chunk))
        if processor.finished:
            break
    if not processor.finished:
        pushes.append(processor.finish())
    made = Replay(pushes, answer)
    for event in made.events:
        answer.accumulate(event)
    return made


def texts(case: dict[str, Any], cut: Sequence[str] | None = None) -> list[Chunk]:
    """The chunks of a recorded case. cut: the output, cut otherwise, and counting no tokens."""
    usage = case["prompt_usage"]
    ready = Ready(
        usage["prompt_tokens"], usage["prompt_cache_hit_tokens"], case["system_fingerprint"]
    )
    output = [Text(text) for text in cut or ()]
    if cut is None:
        output = list(map(Text, case["model_output_chunks"], case["token_counts"]))
    return [ready, *output, *([Finish(case["finish"])] if case["finish"] else [])]


def token_chunks(case: dict[str, Any]) -> list[Chunk]:
    """The chunks of a recorded case of tokens, whose prompt has five."""
    return [Ready(5), *map(Tokens, case["token_id_chunks"]), Finish(case["finish"])]
