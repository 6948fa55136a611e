"""`Request`: one sequence on its way, and the few things that may happen to it.

A request has tokens, the prompt's first, and a number of computed tokens that catches up with them.
Long prompts, generation and starting again after a preemption are that one case. Knows nothing of
text, of probabilities, or of the other requests.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from deepinfer.cache.prefix import Chain
from deepinfer.scheduler.limits import Limits

# Whatever the owner of the requests tells them apart by; it must be hashable.
RequestId = Any
Reason = Literal["stop", "length", "abort", "error"]
# float64 [n]
Rates = npt.NDArray[np.float64] | None


class State(Enum):
    """Where a request stands. It may go from waiting to running and back, and ends once."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """One sequence.

    tokens: prompt, then output, as far as they are known. num_prompt: how many are the prompt's.
    num_computed: tokens whose keys and values are stored when all steps that were planned have run,
        not counting drafts that may be accepted; at least the last token is not.
    num_drawing: tokens that planned steps draw and that are not known yet; each such step may
        bring more, by drafts that it verifies: num_verifying.
    draw_place: which of the sequences that draw a token in the last such step it is.
    score_top: log-probabilities of the prompt's tokens are wanted, with so many likelier ones
        each; None if not. num_scored: prompt rows whose scores were handed out, or will be by steps
        that were planned.
    decoder_start: as `StepPlan.decoder_starts`; it stays, whatever is computed how often.
    cache_salt: shares blocks only with requests of the same salt. is_exact: what it gives must not
        depend on what is cached. chain: keys of its blocks, None while it never ran.
    window_start, entry_start: as of `StepPlan`, where it started from blocks of others. num_cached:
        the tokens that it found so when it ran first.
    slot_id, block_ids: what it owns while it runs; -1 and none otherwise.
    arrival: its place in the order of arrival, given by the scheduler.
    num_drafts: how many drafts may follow the last token; good for the next step only. draft_ids:
        they, once they are known. rates, rates_before: `survival_rates` of these drafts and of
        those before them, None where there were none.
    """

    __slots__ = (
        "arrival",
        "block_ids",
        "cache_salt",
        "chain",
        "decoder_start",
        "draft_ids",
        "draw_place",
        "entry_start",
        "finish_reason",
        "is_exact",
        "limits",
        "num_cached",
        "num_computed",
        "num_drafts",
        "num_drawing",
        "num_preemptions",
        "num_prompt",
        "num_scored",
        "num_verifying",
        "rates",
        "rates_before",
        "request_id",
        "score_top",
        "slot_id",
        "state",
        "tokens",
        "window_start",
    )

    def __init__(
        self,
        request_id: RequestId,
        prompt_token_ids: Sequence[int],
        limits: Limits,
        score_top: int | None = None,
        decoder_start: int = 0,
        *,
        cache_salt: str | None = None,
        is_exact: bool = False,
    ) -> None:
        self.request_id = request_id
        self.tokens = list(prompt_token_ids)
        self.num_prompt = len(self.tokens)
        self.limits = limits
        self.score_top = score_top
        self.decoder_start = decoder_start
        self.cache_salt, self.is_exact = cache_salt, is_exact
        self.chain: Chain | None = None
        self.window_start = self.entry_start = self.num_cached = 0
        self.arrival = -1
        self.state = State.WAITING
        self.finish_reason: Reason | None = None
        self.num_computed = 0
        self.num_drawing = self.num_verifying = 0
        self.draw_place = -1
        self.num_scored = 0
        self.num_preemptions = 0
        self.slot_id = -1
        self.block_ids: list[int] = []
        self.num_drafts = 0
        self.draft_ids: list[int] = []
        self.rates: Rates = None
        self.rates_before: Rates = None

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_due(self) -> int:
        """Rows that its tokens still need, those that are being drawn included."""
        return len(self.tokens) + self.num_drawing - self.num_computed

    @property
    def most_tokens(self) -> int:
        """How many tokens it has if all drafts that are being verified are accepted."""
        return len(self.tokens) + self.num_drawing + self.num_verifying

    def tokens_left(self, max_model_len: int) -> int:
        """Output tokens that may still come behind those that are being drawn, if nothing ends it
        before and no draft is accepted. Below 1 it is certain to end."""
        num_left = min(self.limits.max_tokens - self.num_output, max_model_len - len(self.tokens))
        return num_left - self.num_drawing

    def score_range(self, num_rows: int) -> range:
        """Positions of the next rows whose scores are wanted: each prompt token but the last, once.

        The last prompt token's row is followed by no prompt token. What is computed again after a
        preemption is not scored again.
        """
        if self.score_top is None:
            return range(0)
        end = min(self.num_computed + num_rows, self.num_prompt - 1)
        return range(max(self.num_computed, self.num_scored), end)

    def start(self, slot_id: int, block_ids: list[int]) -> None:
        """Waiting -> running, with what it owns from now on."""
        self._check(State.WAITING)
        self.state = State.RUNNING
        self.slot_id, self.block_ids = slot_id, block_ids
        self.window_start = self.entry_start = 0

    def start_from(self, entry_start: int, window_start: int) -> None:
        """It found the entries of so many tokens, and runs from `window_start` on."""
        self._check(State.RUNNING)
        self.entry_start, self.window_start = entry_start, window_start
        self.num_computed = window_start
        if not self.num_preemptions:
            self.num_cached = entry_start

    def plan(self, num_rows: int, num_drafts: int, draw_place: int = -1) -> None:
        """A step will run `num_rows` of its rows, the last `num_drafts` of them drafts.

        draw_place: as of the attribute, if the step draws a token for it; else -1.
        """
        self._check(State.RUNNING)
        scored = self.score_range(num_rows)
        if scored:
            self.num_scored = scored.stop
        self.num_computed += num_rows - num_drafts
        self.num_drafts = 0
        if draw_place >= 0:
            assert self.num_due == 0, f"{self.request_id!r}: a token comes too early"
            self.draw_place = draw_place
            self.num_drawing += 1
            self.num_verifying += num_drafts
        assert self.num_due >= 0, f"{self.request_id!r}: rows beyond its tokens"

    def land(self, num_drafts: int) -> None:
        """The oldest planned step that draws a token for it has run; `append` follows."""
        self._check(State.RUNNING)
        self.num_drawing -= 1
        self.num_verifying -= num_drafts
        self.draft_ids = []
        assert min(self.num_drawing, self.num_verifying) >= 0, f"{self.request_id!r}: never planned"

    def append(self, token_id: int) -> None:
        """A token was drawn after the last one, which is computed."""
        self._check(State.RUNNING)
        self.tokens.append(token_id)

    def accept_draft(self) -> None:
        """The token appended last was a draft that ran: it is computed."""
        self.num_computed += 1

    def expect_drafts(self, num_drafts: int) -> None:
        """So many drafts will follow what the last planned step draws."""
        self._check(State.RUNNING)
        self.num_drafts = num_drafts

    def propose(self, draft_ids: list[int], rates: Rates) -> None:
        """The drafts that were expected, and how likely each is to be emitted."""
        self._check(State.RUNNING)
        self.draft_ids = draft_ids
        self.rates_before, self.rates = self.rates, rates

    def preempt(self) -> None:
        """Running -> waiting: all its tokens, those it generated too, are computed once more."""
        self._check(State.RUNNING)
        self.state = State.WAITING
        self.num_computed = 0
        self.num_drawing = self.num_verifying = 0
        self.num_preemptions += 1
        self._own_nothing()

    def finish(self, reason: Reason) -> None:
        """Waiting or running -> finished, for good."""
        assert self.state is not State.FINISHED, f"{self.request_id!r} finished before"
        self.state = State.FINISHED
        self.finish_reason = reason
        self._own_nothing()

    def _own_nothing(self) -> None:
        self.slot_id, self.block_ids = -1, []
        # Rates go with their drafts: no later decision may rest on drafts that were never decided.
        self.num_drafts, self.draft_ids, self.rates, self.rates_before = 0, [], None, None

    def _check(self, state: State) -> None:
        assert self.state is state, f"{self.request_id!r} is {self.state.value}, not {state.value}"
