"""Requests that their callers wait for: given to the engine, stepped, and taken back."""

import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from deepinfer.engine.loading import LoadedModel
from deepinfer.errors import RequestError
from deepinfer.front.chat import Answer, Chat, ChatOutput, chat_output, new_answers
from deepinfer.front.collector import Collector
from deepinfer.front.intake import check_against
from deepinfer.front.intake import prompt_token_ids as checked_prompt
from deepinfer.messages import Delta
from deepinfer.sampling_params import SamplingParams
from deepinfer.so_args import read_so_args
from deepinfer.structured.output_grammar import output_grammar


@dataclass(frozen=True)
class OpenRequest:
    """A request whose caller has not left.

    chat, answers: of a conversation. pieces: text that the caller has not taken yet.
    """

    collector: Collector
    chat: Chat | None = None
    answers: Sequence[Answer] = ()
    pieces: deque[str] = field(default_factory=deque)

    @property
    def finished(self) -> bool:
        """No continuation goes on."""
        return self.collector.finished

    def add(self, delta: Delta) -> bool:
        """Take one piece of news; True if a stop string ended its continuation."""
        piece, stopped = self.collector.add(delta)
        self.pieces.append(piece)
        if not self.answers:
            return stopped
        answer = self.answers[delta.choice]
        if delta.token_id is not None:
            answer.read(delta.token_id, delta.logprob)
        if delta.finish_reason is not None:
            answer.end(delta.finish_reason)
        elif answer.parser.finished:
            self.collector.stop(delta.choice, answer.stop_sequence)
            return True
        return False

    def chat_output(self) -> ChatOutput:
        """The conversation's result."""
        assert self.chat is not None
        return chat_output(self.chat, self.answers, self.collector.output())


class OpenRequests:
    """The requests of one model. seeds: for those without a seed, if the model was given one."""

    def __init__(self, model: LoadedModel, seeds: random.Random) -> None:
        self._model: LoadedModel | None = model
        self._seeds = seeds
        self._num_requests = 0
        self._open: dict[str, OpenRequest] = {}
        # Callers in several threads take turns, a step at a time.
        self._turn = threading.RLock()

    @property
    def model(self) -> LoadedModel:
        """The model; raises RequestError once it was closed."""
        if self._model is None:
            raise RequestError("the LLM was closed", field="llm", hint="make a new one")
        return self._model

    def close(self) -> None:
        """Free the model's memory, and end what its engine runs beside itself."""
        if self._model is not None:
            self._model.engine.close()
        self._model = None

    def run(
        self, submits: Sequence[Callable[[], OpenRequest]], use_tqdm: bool
    ) -> list[OpenRequest | RequestError]:
        """Submit all and step until all have finished; an error in the place of its request."""
        results: list[OpenRequest | RequestError] = []
        try:
            for submit in submits:
                try:
                    results.append(submit())
                except RequestError as error:
                    results.append(error)
            opened = [r for r in results if isinstance(r, OpenRequest)]
            # A bar where somebody can see it.
            hidden = not use_tqdm or not sys.stderr.isatty()
            with tqdm(total=len(opened), desc="prompts", disable=hidden) as bar:
                while any(not request.finished for request in opened):
                    self._step()
                    bar.update(sum(request.finished for request in opened) - bar.n)
        finally:
            self._close([r for r in results if isinstance(r, OpenRequest)])
        return results

    def steps(self, request: OpenRequest) -> Iterator[None]:
        """Step until the request has finished, with a pause after each step."""
        try:
            while True:
                yield
                if request.finished:
                    break
                self._step()
        finally:
            self._close([request])
        request.collector.check()

    def submit(
        self, text: object, ids: object, params: SamplingParams, chat: Chat | None = None
    ) -> OpenRequest:
        """Check a request and give it to the engine. Raises RequestError."""
        model = self.model
        tokenizer, vocab_size = model.tokenizer, model.config.vocab_size
        prompt_ids = checked_prompt(text, ids, tokenizer, vocab_size)
        can_think = tokenizer.thinking_ids is not None
        check_against(params, vocab_size, model.options.max_model_len, can_think=can_think)
        so_args = read_so_args(params.so_args)
        grammar = None if so_args is None else output_grammar(so_args)
        seed = params.seed
        if seed is None and model.options.seed is not None:
            seed = self._seeds.getrandbits(64)
        with self._turn:
            request_id = str(self._num_requests)
            self._num_requests += 1
            prompt = text if isinstance(text, str) else None
            request = OpenRequest(
                Collector(request_id, prompt, prompt_ids, params, tokenizer),
                chat,
                () if chat is None else new_answers(chat, tokenizer),
            )
            self._open[request_id] = request
            try:
                model.engine.submit(request_id, prompt_ids, params, seed, grammar)
            except BaseException:
                self._close([request])
                raise
        return request

    def _step(self) -> None:
        """One step of the engine, for everybody who waits: callers may take turns."""
        engine = self.model.engine
        with self._turn:
            stopped = set[tuple[str, int]]()
            for delta in engine.step():
                key = (delta.request_id, delta.choice)
                # Drafts may have been accepted behind the token that ended it.
                if key not in stopped and self._open[delta.request_id].add(delta):
                    stopped.add(key)
                    engine.finish(*key, "stop")

    def _close(self, requests: Sequence[OpenRequest]) -> None:
        """Whoever leaves, early or not, takes all along: no request goes on unseen."""
        with self._turn:
            for request in requests:
                request_id = request.collector.request_id
                del self._open[request_id]
                if not request.finished and self._model is not None:
                    self._model.engine.abort(request_id)
