"""Answers a request of Completions: gives its prompts to the engine and writes what comes back.

Knows the order of things. Leaves text and stop strings to the collector, words to text_answer.py.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any
from uuid import uuid4

import msgspec

from deepinfer.front.collector import Collector
from deepinfer.messages import Delta
from deepinfer.recipe.chunks import Usage
from deepinfer.server.admission import Place
from deepinfer.server.engine_calls import ENGINE_SILENT, submit_of
from deepinfer.server.errors import ApiError, error_object
from deepinfer.server.exchange import Exchange
from deepinfer.server.link import Channel
from deepinfer.server.merged import merged
from deepinfer.server.progress import Progress
from deepinfer.server.reader import failure_of
from deepinfer.server.state import ServedModel, ServerState
from deepinfer.server.streaming import Stream
from deepinfer.server.text_answer import Logprobs, TextHead, choice
from deepinfer.server.text_request import TextRequest
from deepinfer.server.writers import STREAM_END
from deepinfer.tokenizer.tokenizer import Tokenizer

_encode = msgspec.json.Encoder().encode


class _Choice:
    """One choice as far as it has come. pieces: of text, not yet sent."""

    def __init__(self, tokenizer: Tokenizer, request: TextRequest) -> None:
        self.pieces: list[str] = []
        self.logprobs = None if request.num_logprobs is None else Logprobs(tokenizer)
        self.num_tokens = 0
        self.finished = self.is_told = False
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None


class PromptAnswer:
    """All choices of one prompt. first_index: of its first choice in the whole answer."""

    def __init__(
        self, request: TextRequest, place: int, tokenizer: Tokenizer, progress: Progress
    ) -> None:
        text, ids = request.prompts[place]
        self._request, self._tokenizer, self._ids = request, tokenizer, ids
        self._text = text
        self.progress = progress
        self._collector = Collector("", text, ids, request.params, tokenizer)
        self._first_index = place * request.params.n
        self.choices = [_Choice(tokenizer, request) for _ in range(request.params.n)]
        self._is_echoed = not request.echo
        self._prompt_logprobs: list[Any] = [None]

    @property
    def finished(self) -> bool:
        """No choice goes on."""
        return all(one.finished for one in self.choices)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        num_tokens = sum(one.num_tokens for one in self.choices)
        return Usage(len(self._ids), self.progress.cached_tokens, num_tokens)

    def read(self, deltas: Sequence[Delta], channel: Channel) -> None:
        """Take news. Raises RequestError and ApiError for a request that failed."""
        self.progress.saw(deltas)
        for delta in deltas:
            if delta.error is not None:
                raise delta.error
            if (failure := failure_of(delta)) is not None:
                raise failure
            self._prompt_logprobs += delta.prompt_logprobs
            one = self.choices[delta.choice]
            if not one.finished:
                self._read(one, delta, channel)
        # The prompt's own log-probabilities are all there with the first token.
        if not self._is_echoed and any(delta.token_id is not None for delta in deltas):
            self._is_echoed = True
            self._echo()

    def chunks(self, *, is_whole: bool = False) -> list[dict[str, Any]]:
        """Objects of the choices that have something new, or of all."""
        found = []
        for number, one in enumerate(self.choices):
            ends = one.finished and not one.is_told
            if not (one.pieces or ends or is_whole):
                continue
            one.is_told = ends
            text, one.pieces = "".join(one.pieces), []
            logprobs = None if one.logprobs is None else one.logprobs.take()
            end = one.finish_reason if ends else None
            found.append(choice(self._first_index + number, text, logprobs, end, one.stop_reason))
        return found

    def _read(self, one: _Choice, delta: Delta, channel: Channel) -> None:
        piece, stopped = self._collector.add(delta)
        if stopped:
            channel.finish(delta.choice)
        if stopped or delta.finish_reason is not None:
            output = self._collector.output().outputs[delta.choice]
            one.finished = True
            one.finish_reason, one.stop_reason = output.finish_reason, output.stop_reason
        if self._request.only_scores:
            one.finish_reason = "length"
            return
        if piece:
            one.pieces.append(piece)
        if delta.token_id is not None:
            one.num_tokens += 1
            if one.logprobs is not None:
                one.logprobs.add(delta.token_id, delta.logprob)

    def _echo(self) -> None:
        """The prompt in front of each choice."""
        text = self._tokenizer.decode(self._ids) if self._text is None else self._text
        for one in self.choices:
            one.pieces.insert(0, text)
            if one.logprobs is None:
                continue
            said, own = one.logprobs, Logprobs(self._tokenizer)
            for token_id, logprob in zip(self._ids, self._prompt_logprobs, strict=False):
                own.add(token_id, logprob)
                if self._text is not None and token_id == self._tokenizer.bos_id:
                    own.offset = 0  # it was put in front of the text
            own.tokens += said.tokens
            own.token_logprobs += said.token_logprobs
            own.top_logprobs += said.top_logprobs
            own.text_offset += [own.offset + offset for offset in said.text_offset]
            own.offset += said.offset
            one.logprobs = own


async def answer_texts(
    state: ServerState,
    exchange: Exchange,
    places: Sequence[Place],
    request: TextRequest,
    model: ServedModel,
) -> None:
    """Run all prompts and send the answer. places: one for each prompt. Raises as `answer` does."""
    head = TextHead(f"cmpl-{uuid4().hex}", request.model)
    answers = []
    for number, place in enumerate(places):
        num_tokens = len(request.prompts[number][1])
        exchange.prompt_tokens += num_tokens
        progress = Progress(exchange, state.stats, place, num_tokens)
        answers.append(PromptAnswer(request, number, model.tokenizer, progress))
    submits = [submit_of(ids, request.params, request.grammar, model) for _, ids in request.prompts]
    async with exchange.cancelled_if_client_leaves(), AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(state.link.submit(submit)) for submit in submits
        ]
        changes = _changes(channels, answers)
        if not request.stream:
            async for _ in changes:
                pass
            found = [one for answer in answers for one in answer.chunks(is_whole=True)]
            await exchange.respond_json(200, head.object(found, _sum(answers)))
            return
        async with Stream(exchange, _failed) as stream:
            async for answer in changes:
                events = [_sent(head.object([one])) for one in answer.chunks()]
                if events:
                    await stream.write(b"".join(events))
            usage = _sent(head.object([], _sum(answers))) if request.include_usage else b""
            await stream.end(usage + STREAM_END)


async def _changes(
    channels: Sequence[Channel], answers: Sequence[PromptAnswer]
) -> AsyncIterator[PromptAnswer]:
    """The prompts' answers as they grow, until all have ended."""
    news = merged([channel.batches() for channel in channels])
    async with aclosing(news):
        async for place, deltas in news:
            answers[place].read(deltas, channels[place])
            yield answers[place]
    if not all(answer.finished for answer in answers):
        raise ENGINE_SILENT


def _sum(answers: Sequence[PromptAnswer]) -> Usage:
    usages = [one.usage for one in answers]
    return Usage(
        sum(one.prompt_tokens for one in usages),
        sum(one.cached_tokens for one in usages),
        sum(one.completion_tokens for one in usages),
    )


def _sent(data: dict[str, Any]) -> bytes:
    return b"data: " + _encode(data) + b"\n\n"


def _failed(error: ApiError, request_id: str) -> bytes:
    return _sent(error_object(error, None, request_id)) + STREAM_END
