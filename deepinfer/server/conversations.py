"""Answers a conversation: gives it to the engine and writes what comes back, in pieces or whole.

Knows the order of things. Leaves reading to reader.py and words to writers.py.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from uuid import uuid4

from deepinfer.messages import Delta
from deepinfer.recipe.chunks import Ready, Usage
from deepinfer.recipe.protocol_event import ProtocolEvent
from deepinfer.server.admission import Place
from deepinfer.server.engine_calls import ENGINE_SILENT, submit_of
from deepinfer.server.exchange import Exchange
from deepinfer.server.link import Channel
from deepinfer.server.prepare import Job
from deepinfer.server.progress import Progress
from deepinfer.server.reader import ChoiceReader
from deepinfer.server.state import ServedModel, ServerState
from deepinfer.server.streaming import Stream
from deepinfer.server.writers import AnswerWriter, WholeAnswer, sent


async def answer(
    state: ServerState, exchange: Exchange, place: Place, job: Job, model: ServedModel
) -> None:
    """Run a conversation and send the answer.

    Raises RequestError and ApiError for what goes wrong before anything was sent; in a stream that
    has begun it becomes the stream's end.
    """
    exchange.prompt_tokens = len(job.prompt_ids)
    progress = Progress(exchange, state.stats, place, len(job.prompt_ids))
    readers = [ChoiceReader(job, model.tokenizer) for _ in range(job.params.n)]
    writer = AnswerWriter(job.request, uuid4().hex, job.params.n)
    submit = submit_of(job.prompt_ids, job.params, job.grammar, model)
    async with exchange.cancelled_if_client_leaves(), state.link.submit(submit) as channel:
        batches = _events(channel, readers, writer, progress, len(job.prompt_ids))
        if not job.request.stream:
            whole = WholeAnswer(job.protocol, job.params.n)
            async for events in batches:
                whole.take(events)
            await exchange.respond_json(200, whole.data(writer.usage))
            return
        async with Stream(exchange, writer.failed) as stream:
            async for events in batches:
                await stream.write(b"".join(map(sent, events)))
            await stream.end(writer.end())


async def _events(
    channel: Channel,
    readers: Sequence[ChoiceReader],
    writer: AnswerWriter,
    progress: Progress,
    num_prompt_tokens: int,
) -> AsyncIterator[list[ProtocolEvent]]:
    """The answer in its protocol, as it comes; each list is of one batch of news."""
    has_started = False
    async for deltas in channel.batches():
        progress.saw(deltas)
        events: list[ProtocolEvent] = []
        read = [(choice, readers[choice].read(own)) for choice, own in _by_choice(deltas)]
        if not has_started:
            has_started = True
            events += writer.start(Ready(num_prompt_tokens, progress.cached_tokens))
        for choice, found in read:
            reader = readers[choice]
            if reader.must_stop:
                reader.must_stop = False
                channel.finish(choice)
            usage: Callable[[], Usage] = partial(_usage, reader, progress, num_prompt_tokens)
            events += writer.write(choice, found, usage)
        if events:
            yield events
    if not all(reader.finished for reader in readers):
        raise ENGINE_SILENT


def _by_choice(deltas: Sequence[Delta]) -> list[tuple[int, list[Delta]]]:
    """Those of each choice, in order."""
    found: dict[int, list[Delta]] = {}
    for delta in deltas:
        found.setdefault(delta.choice, []).append(delta)
    return list(found.items())


def _usage(reader: ChoiceReader, progress: Progress, num_prompt_tokens: int) -> Usage:
    return Usage(
        num_prompt_tokens, progress.cached_tokens, reader.num_tokens, reader.num_thought_tokens
    )
