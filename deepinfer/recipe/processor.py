"""Chunks of an engine's answer to the events of a protocol (spec recipe 7.5, 7.7).

Knows the order of things: ready, output, end. Leaves reading to the parser and words to the writer.
"""

from deepinfer.recipe.call_ids import CallIds, random_call_id
from deepinfer.recipe.chunks import Chunk, EndReason, Finish, Ready, Text, Usage
from deepinfer.recipe.events import Event, Finished
from deepinfer.recipe.output_parser import OutputParser
from deepinfer.recipe.protocol_event import EventWriter, ProtocolEvent
from deepinfer.recipe.request import ParsingOptions
from deepinfer.recipe.token_runs import Tokenizer


class StreamProcessor:
    """One answer. Each call returns the events that are certain now.

    The first call starts the stream. A Ready that comes later, without which prompt counts are
    zero, is ignored. A stop sequence ends the stream in the middle of a push.

    Attributes: `finished`; nothing may be pushed then.
    """

    def __init__(
        self,
        writer: EventWriter,
        parsing: ParsingOptions,
        tokenizer: Tokenizer | None = None,
        *,
        call_id: CallIds = random_call_id,
    ) -> None:
        self._writer = writer
        self._parser = OutputParser(parsing, tokenizer, call_id=call_id)
        self._ready: Ready | None = None

    @property
    def finished(self) -> bool:
        """The last event is out."""
        return self._parser.finished

    def push(self, chunk: Chunk) -> list[ProtocolEvent]:
        """Raises RuntimeError when the stream is finished, and what OutputParser raises."""
        if self.finished:
            raise RuntimeError("stream processor has finished")
        if isinstance(chunk, Ready):
            return self._start(chunk)
        if isinstance(chunk, Finish):
            return self.finish(chunk.reason)
        started = self._start(Ready())
        if isinstance(chunk, Text):
            events = self._parser.push(chunk.text, chunk.num_tokens)
        else:
            events = self._parser.push_tokens(chunk.ids, chunk.logprobs)
        return started + self._write(events)

    def finish(self, reason: EndReason = "Stop") -> list[ProtocolEvent]:
        """The rest of the stream; nothing if it is finished."""
        if self.finished:
            return []
        return self._start(Ready()) + self._write(self._parser.finish(reason))

    def _start(self, ready: Ready) -> list[ProtocolEvent]:
        if self._ready is not None:
            return []
        self._ready = ready
        return self._writer.start(ready)

    def _write(self, events: list[Event]) -> list[ProtocolEvent]:
        written: list[ProtocolEvent] = []
        for event in events:
            if isinstance(event, Finished):
                written += self._writer.finish(event, self._usage())
            else:
                written += self._writer.write(event)
        return written

    def _usage(self) -> Usage:
        ready = self._ready or Ready()
        return Usage(
            ready.prompt_tokens,
            ready.cached_tokens,
            self._parser.num_tokens,
            self._parser.count_reasoning(),
        )
