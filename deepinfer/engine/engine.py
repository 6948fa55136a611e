"""The engine: requests in, tokens out. Here host and device meet, once a step.

Knows requests and arrays; neither text nor tensors.
"""

from collections.abc import Iterator, Sequence

from deepinfer.engine.sample_plan import Continuation, begin, build_sample_plan, prepare
from deepinfer.errors import RequestError
from deepinfer.messages import Delta
from deepinfer.outputs import TokenLogprob
from deepinfer.sampling_params import NUM_SEEDS, SamplingParams
from deepinfer.scheduler.plan import Scheduled, make_plan
from deepinfer.scheduler.request import Limits, Reason, Request
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.step import Scores, StepResult
from deepinfer.worker.worker import Worker

# The scheduler's name of a continuation: (request, choice).
Key = tuple[str, int]


class Engine:
    """All requests of one device. A request of n continuations runs as n sequences."""

    def __init__(self, scheduler: Scheduler, worker: Worker, eos_id: int) -> None:
        self.scheduler, self.worker = scheduler, worker
        self._eos_id = eos_id
        self._continuations: dict[Key, Continuation] = {}

    @property
    def has_work(self) -> bool:
        """There are requests that have not ended."""
        return self.scheduler.has_work

    def submit(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        seed: int | None = None,
    ) -> None:
        """Add a request behind all others. Raises RequestError, and then nothing was added.

        seed: stands for the params' own; None draws one where they have none.
        """
        if any(known == request_id for known, _ in self._continuations):
            raise RequestError(
                f"{request_id!r} is being worked on",
                field="request_id",
                hint="give every request an id of its own",
            )
        seed = params.seed_or_random() if seed is None else seed % NUM_SEEDS
        limits = Limits(
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            stop_token_ids=frozenset(params.stop_token_ids or ()),
            ignore_eos=params.ignore_eos,
            eos_id=self._eos_id,
        )
        try:
            for choice in range(params.n):
                # The prompt's own log-probabilities are the same for all continuations.
                num_top = params.num_prompt_logprobs if choice == 0 else -1
                request = Request(
                    (request_id, choice), prompt_ids, limits, num_top if num_top >= 0 else None
                )
                prepared = prepare(params, seed=seed, choice=choice, eos_ids=[self._eos_id])
                self._continuations[request_id, choice] = begin(prepared, prompt_ids)
                self.scheduler.add(request)
        except BaseException:
            for choice in range(params.n):
                self.finish(request_id, choice, "abort")
            raise

    def finish(self, request_id: str, choice: int, reason: Reason) -> None:
        """End a continuation that was found complete, or was given up. No Delta follows."""
        self._continuations.pop((request_id, choice), None)
        self.scheduler.finish((request_id, choice), reason)

    def abort(self, request_id: str) -> None:
        """End all continuations of a request that nobody wants any more. No Delta follows."""
        for key in [key for key in self._continuations if key[0] == request_id]:
            self.finish(*key, "abort")

    def step(self) -> list[Delta]:
        """Run one step: plan, forward, draw, book-keeping. Returns its news; none without work."""
        scheduled = self.scheduler.schedule()
        if scheduled is None:
            return []
        rows = [self._continuations[scheduled.requests[i].request_id] for i in scheduled.sampled]
        scored = scheduled.scored()
        try:
            self.worker.launch(make_plan(scheduled))
            result = self.worker.sample(build_sample_plan(rows))
        except BaseException:
            # An interrupt may come anywhere, and whoever sent it may go on with the same engine.
            self.worker.lose_step()
            self.scheduler.lose_step()
            raise
        return [
            *_prompt_news(scored, result.prompt_scores),
            *self._token_news(scheduled, result),
        ]

    def _token_news(self, scheduled: Scheduled, result: StepResult) -> Iterator[Delta]:
        drawn = [scheduled.requests[place].request_id for place in scheduled.sampled]
        row_of = {key: row for row, key in enumerate(drawn)}
        for progress in self.scheduler.update(scheduled, result.token_ids, result.bad_rows):
            key: Key = progress.request.request_id
            continuation = self._continuations[key]
            logprob = None
            if progress.token_id is not None:
                continuation.add(progress.token_id)
                if continuation.prepared.num_logprobs >= 0 and result.logprobs is not None:
                    logprob = token_logprob(
                        result.logprobs,
                        row_of[key],
                        progress.token_id,
                        continuation.prepared.num_logprobs,
                    )
            if progress.finish_reason is not None:
                del self._continuations[key]
            yield Delta(
                key[0],
                key[1],
                token_id=progress.token_id,
                logprob=logprob,
                finish_reason=progress.finish_reason,
            )


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
