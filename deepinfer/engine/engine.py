"""The engine: requests in, tokens out. Here host and device meet, once a step.

Knows requests and arrays; neither text nor tensors.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

from deepinfer.config.replay import decoder_start
from deepinfer.engine.continuation import Continuation, Row, begin, prepare
from deepinfer.engine.drafting import Counts, Drafting
from deepinfer.engine.grammars import Grammars
from deepinfer.engine.sample_plan import build_sample_plan
from deepinfer.engine.steering import Steering, thinking_limit
from deepinfer.errors import RequestError
from deepinfer.messages import Delta
from deepinfer.outputs import TokenLogprob
from deepinfer.sampling_params import NUM_SEEDS, SamplingParams
from deepinfer.scheduler.plan import Scheduled, make_plan
from deepinfer.scheduler.request import Limits, Reason, Request
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.scheduler.update import Progress
from deepinfer.step import Scores
from deepinfer.worker.worker import Worker

# The scheduler's name of a continuation: (request, choice).
Key = tuple[str, int]


class Engine:
    """All requests of one device. A request of n continuations runs as n sequences.

    eos_ids: the model's end tokens. thinking_ids: the tokens around its thoughts, None without.
    grammars: needed by requests with a grammar only. keep_tokens: of bounded replay, for the
    requests that come from now on; None is off (deepinfer.config.replay). drafting: None drafts
    nothing; else the worker has a drafter.
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
    ) -> None:
        self.scheduler, self.worker, self.keep_tokens = scheduler, worker, keep_tokens
        self.drafting = drafting or Drafting()
        self._eos_ids, self._thinking_ids = frozenset(eos_ids), thinking_ids
        self._grammars = grammars
        self._continuations: dict[Key, Continuation] = {}

    @property
    def has_work(self) -> bool:
        """There are requests that have not ended."""
        return self.scheduler.has_work or bool(self._grammars)

    def close(self) -> None:
        """End the processes that compile grammars."""
        if self._grammars is not None:
            self._grammars.close()

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
        is_rejection = self.drafting.is_rejection(seed is not None or params.seed is not None)
        seed = params.seed_or_random() if seed is None else seed % NUM_SEEDS
        limits = Limits(
            max_tokens=params.max_tokens,
            # With a grammar an end token comes only where the text may end: it always counts.
            min_tokens=params.min_tokens if grammar is None else 0,
            stop_token_ids=frozenset(params.stop_token_ids or ()),
            ignore_eos=params.ignore_eos,
            eos_ids=self._eos_ids,
        )
        limit = (prompt_ids, params.max_thinking_tokens, self._thinking_ids)
        # Each row of a prompt whose log-probabilities are wanted is one that somebody looks at.
        is_scored = params.num_prompt_logprobs >= 0
        seen_from = 0 if is_scored else decoder_start(len(prompt_ids), self.keep_tokens)
        requests = []
        try:
            for choice in range(params.n):
                # The prompt's own log-probabilities are the same for all continuations.
                num_top = params.num_prompt_logprobs if choice == 0 else -1
                score_top = num_top if num_top >= 0 else None
                request = Request((request_id, choice), prompt_ids, limits, score_top, seen_from)
                prepared = prepare(
                    params,
                    seed=seed,
                    choice=choice,
                    eos_ids=self._eos_ids,
                    is_rejection=is_rejection,
                )
                steering = Steering(thinking=thinking_limit(*limit))
                self._continuations[request_id, choice] = begin(prepared, prompt_ids, (), steering)
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
        self._continuations.pop((request_id, choice), None)
        if self._grammars is not None:
            self._grammars.drop(request_id, choice)
        self.scheduler.finish((request_id, choice), reason)

    def abort(self, request_id: str) -> None:
        """End all continuations of a request that nobody wants any more. No Delta follows."""
        for key in [key for key in self._continuations if key[0] == request_id]:
            self.finish(*key, "abort")

    def step(self) -> list[Delta]:
        """Run one step: drafts, plan, forward, draw, book-keeping. Returns its news; none without
        work."""
        self.drafting.propose(self.worker, self.scheduler.config.max_model_len)
        refused = list(self._take_grammars())
        scheduled = self.scheduler.schedule()
        if scheduled is None:
            return refused
        scored = scheduled.scored()
        start = time.perf_counter()
        try:
            self.worker.launch(make_plan(scheduled))
            result = self.worker.sample(build_sample_plan(self._rows(scheduled)))
        except BaseException:
            # An interrupt may come anywhere, and whoever sent it may go on with the same engine.
            self.worker.lose_step()
            self.scheduler.lose_step()
            raise
        forward_s = time.perf_counter() - start
        progress = self.scheduler.update(scheduled, result.token_ids, result.bad_rows)
        counts = self.drafting.after(scheduled, progress, forward_s)
        return [
            *refused,
            *_prompt_news(scored, result.prompt_scores),
            *self._token_news(progress, counts, result.logprobs),
        ]

    def _rows(self, scheduled: Scheduled) -> list[Row]:
        rows: list[Row] = []
        for place in scheduled.sampled:
            continuation = self._continuations[scheduled.requests[place].request_id]
            rows += continuation.rows(scheduled.drafts[place])
        return rows

    def _token_news(
        self, all_progress: list[Progress], counts: Counts, logprobs: Scores | None
    ) -> Iterator[Delta]:
        for progress in all_progress:
            key: Key = progress.request.request_id
            continuation = self._continuations.get(key)
            if continuation is None:
                continue  # it ended with an error a token before
            logprob, reason = None, progress.finish_reason
            if progress.token_id is not None:
                if not continuation.add(progress.token_id) and reason is None:
                    # Only a forced token can break a grammar, and then nothing can follow it.
                    reason = "error"
                    self.scheduler.finish(key, reason)
                if continuation.prepared.num_logprobs >= 0 and logprobs is not None:
                    logprob = token_logprob(
                        logprobs,
                        progress.row,
                        progress.token_id,
                        continuation.prepared.num_logprobs,
                    )
            if reason is not None:
                del self._continuations[key]
            num_drafted, num_verified = counts.pop(key, (0, 0))
            yield Delta(
                key[0],
                key[1],
                token_id=progress.token_id,
                logprob=logprob,
                finish_reason=reason,
                may_stop=continuation.steering.may_end,
                is_draft=progress.is_draft,
                num_drafted=num_drafted,
                num_verified=num_verified,
            )

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


def _prompt_news(scored: list[tuple[Request, range]], scores: Scores | None) -> Iterator[Delta]:
    row = 0
    for request, positions in scored:
        assert scores is not None  # somebody asked
        found = []
        for position in positions:
            token_id = request.tokens[position + 1]
            found.append(token_logprob(scores, row, token_id, request.score_top or 0))
            row += 1
        request_id, choice = request.request_id
        yield Delta(request_id, choice, prompt_logprobs=found)


def token_logprob(scores: Scores, row: int, token_id: int, num_top: int) -> TokenLogprob:
    """Row `row` of the scores as one record, with the num_top likeliest tokens."""
    ids, logprobs = scores.top_ids[row, :num_top], scores.top_logprobs[row, :num_top]
    return TokenLogprob(
        token_id=token_id,
        logprob=float(scores.chosen[row]),
        rank=int(scores.ranks[row]),
        top=tuple(zip(ids.tolist(), logprobs.tolist(), strict=True)),
    )
