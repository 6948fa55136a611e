"""The engine: requests in, tokens out. Here host and device meet, once a step.

Knows requests and arrays; neither text nor tensors.
"""

from collections.abc import Iterable, Iterator, Sequence

from deepinfer.engine.begin import SpecialTokens, begin_request
from deepinfer.engine.continuation import Continuation
from deepinfer.engine.drafting import Counts, Drafting
from deepinfer.engine.flight import Flight, Key
from deepinfer.engine.grammars import Grammars
from deepinfer.engine.news import prompt_news, token_news
from deepinfer.engine.sample_plan import build_sample_plan
from deepinfer.engine.stats import engine_stats
from deepinfer.engine.tiering import Tiering
from deepinfer.errors import RequestError
from deepinfer.messages import Delta, EngineStats
from deepinfer.sampling_params import SamplingParams
from deepinfer.scheduler.plan import make_plan
from deepinfer.scheduler.request import Reason
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.scheduler.update import Progress
from deepinfer.step import Scores
from deepinfer.worker.lane import Lane
from deepinfer.worker.worker import Worker


class Engine:
    """All requests of one device. A request of n continuations runs as n sequences.

    eos_ids: the model's end tokens. thinking_ids: the tokens around its thoughts, None without.
    grammars: needed by requests with a grammar only. keep_tokens: of bounded replay, for the
    requests that come from now on; None is off (deepinfer.config.replay). drafting: None drafts
    nothing; else the worker has a drafter. is_ahead: the option async_scheduling, see `step`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        worker: Worker,
        eos_ids: Iterable[int],
        thinking_ids: tuple[int, int] | None = None,
        grammars: Grammars | None = None,
        keep_tokens: int | None = None,
        drafting: Drafting | None = None,
        *,
        is_ahead: bool = False,
    ) -> None:
        self.scheduler, self.keep_tokens, self.is_ahead = scheduler, keep_tokens, is_ahead
        # A CPU runs calls while the host goes on only in a thread; other devices do anyway.
        self.lane = Lane(worker, is_threaded=is_ahead and worker.device == "cpu")
        self.drafting = drafting or Drafting()
        self._special = SpecialTokens(frozenset(eos_ids), thinking_ids)
        self._grammars = grammars
        self._continuations: dict[Key, Continuation] = {}
        self._flight: Flight | None = None
        self._tiering = Tiering(scheduler.memory, self.lane)
        # What has not left the engine: an interrupt loses none of it.
        self._news: list[Delta] = []

    @property
    def worker(self) -> Worker:
        """The worker that the lane leads to."""
        return self.lane.worker

    @property
    def has_work(self) -> bool:
        """There are requests that have not ended, or news of them. A step that runs for nobody any
        more is taken in whenever the next one comes."""
        return bool(self._news) or self.scheduler.has_work or bool(self._grammars)

    def stats(self) -> EngineStats:
        """How it stands, and what it did."""
        return engine_stats(self)

    def close(self) -> None:
        """End the processes that compile grammars, and the lane's thread; write to the disk what is
        still to be written."""
        if self._grammars is not None:
            self._grammars.close()
        self._tiering.store()
        self.lane.close()
        self._tiering.close()

    def submit(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        seed: int | None = None,
        grammar: str | None = None,
    ) -> None:
        """Add a request behind all others. Raises RequestError, and then nothing was added.

        seed: stands for the params' own; None draws one where they have none. grammar: EBNF text
        that the output must match, made of params.so_args; the request waits until it is compiled,
        and if that fails a Delta says so.
        """
        if any(known == request_id for known, _ in self._continuations):
            raise RequestError(
                f"{request_id!r} is being worked on",
                field="request_id",
                hint="give every request an id of its own",
            )
        begun = begin_request(
            request_id,
            prompt_ids,
            params,
            seed=seed,
            has_grammar=grammar is not None,
            special=self._special,
            keep_tokens=self.keep_tokens,
            is_rejection=self.drafting.is_rejection(seed is not None or params.seed is not None),
        )
        requests = []
        try:
            for request, continuation in begun:
                self._continuations[request.request_id] = continuation
                self.scheduler.check(request)
                requests.append(request)
            if grammar is None:
                for request in requests:
                    self.scheduler.add(request)
            else:
                assert self._grammars is not None  # the engine was made without
                self._grammars.add(request_id, requests, grammar)
        except BaseException:
            for choice in range(params.n):
                self.finish(request_id, choice, "abort")
            raise

    def finish(self, request_id: str, choice: int, reason: Reason) -> None:
        """End a continuation that was found complete, or was given up. No Delta follows."""
        key = (request_id, choice)
        self._continuations.pop(key, None)
        self._news = [one for one in self._news if (one.request_id, one.choice) != key]
        if self._grammars is not None:
            self._grammars.drop(request_id, choice)
        self.scheduler.finish(key, reason)

    def abort(self, request_id: str) -> None:
        """End all continuations of a request that nobody wants any more. No Delta follows."""
        for key in [key for key in self._continuations if key[0] == request_id]:
            self.finish(*key, "abort")

    def step(self) -> list[Delta]:
        """Take in one step: its drafts, rows, tokens, book-keeping. Returns its news; none without
        work.

        With `is_ahead` the next step is planned and launched before this one's tokens are known,
        and all book-keeping is done while it runs; only its own tokens are chosen after that. Where
        confidences decide how many drafts it verifies, it is launched as soon as they are there.
        """
        self._news += self._take_grammars()
        flight = self._flight
        try:
            if flight is None:
                flight = self._launch()
                self._sample(flight)
            if flight is not None:
                ahead = self._launch() if self._plans_blindly else None
                result, drafts = flight.collect()
                self._tiering.store()
                scheduled = flight.scheduled
                # Before `update`: who ends there is told of the prompt, who is gone is not.
                news = list(prompt_news(scheduled.prompt_scores(), result.prompt_scores))
                progress = self.scheduler.update(scheduled, result.token_ids, result.bad_rows)
                self._tiering.save()
                counts = self.drafting.after(flight, progress)
                self.drafting.take(flight, drafts)
                try:
                    if self.is_ahead and ahead is None:
                        ahead = self._launch()
                finally:
                    # The requests have these tokens, even if the next step cannot be launched.
                    self._news += news
                    self._news += self._token_news(progress, counts, result.logprobs)
                self._sample(ahead)
                self._flight = ahead
                if ahead is None:
                    self._tiering.store()
        except BaseException:
            # An interrupt may come anywhere, and whoever sent it may go on with the same engine.
            self._flight = None
            self._tiering.lose()
            self.lane.lose_step()
            self.scheduler.lose_step()
            raise
        news, self._news = self._news, []
        return news

    @property
    def _plans_blindly(self) -> bool:
        """The next step is planned before this one's tokens are known."""
        return self.is_ahead and not self.scheduler.verify_lengths.needs_confidences

    def _launch(self) -> Flight | None:
        """Plan a step and start its rows; None if there are none."""
        scheduled = self.scheduler.schedule()
        if scheduled is None:
            return None
        self._tiering.load()
        return Flight(scheduled, self.lane.launch(make_plan(scheduled)))

    def _sample(self, flight: Flight | None) -> None:
        """Have the tokens of a launched step chosen, when all tokens before them are known."""
        if flight is None:
            return
        flight.scheduled.know_drafts()
        flight.sampled = self.lane.sample(build_sample_plan(flight.rows(self._continuations)))
        self.drafting.ask(flight, self.lane, self.scheduler.config)

    def _token_news(
        self, all_progress: list[Progress], counts: Counts, logprobs: Scores | None
    ) -> Iterator[Delta]:
        for progress in all_progress:
            key: Key = progress.request.request_id
            continuation = self._continuations.get(key)
            if continuation is None:
                continue  # it ended with an error a token before
            reason = progress.finish_reason
            token_id = progress.token_id
            if token_id is not None and not continuation.add(token_id) and reason is None:
                # Only a forced token can break a grammar, and then nothing can follow it.
                reason = "error"
                self.scheduler.finish(key, reason)
            if reason is not None:
                del self._continuations[key]
            yield token_news(continuation, progress, reason, counts.pop(key, (0, 0)), logprobs)

    def _take_grammars(self) -> Iterator[Delta]:
        """Let requests in whose grammar is there; news of those whose grammar will never be."""
        if self._grammars is None:
            return
        for requests, compiled, error in self._grammars.take(may_wait=not self.scheduler.has_work):
            for request in requests:
                key: Key = request.request_id
                if error is not None:
                    del self._continuations[key]
                    yield Delta(*key, finish_reason="error", error=error)
                else:
                    continuation = self._continuations[key]
                    continuation.steering.grammar = self._grammars.start(
                        compiled, continuation.prepared
                    )
                    self.scheduler.add(request)
