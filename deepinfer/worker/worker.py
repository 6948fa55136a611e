"""One device's worker: runs the rows of a `StepPlan`, then draws the tokens of a `SamplePlan`.

With a draft module it may then propose what could follow them (`DraftPlan`).

Knows slots, blocks and rows; never hears of a request. Nothing here waits for the device but the
functions that are returned to fetch results.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.cache.layout import SLACK_ROWS
from deepinfer.model.network import Hidden, Network
from deepinfer.sampling.arrays import fetch, on_device
from deepinfer.sampling.logprobs import Scored, join_scores, score
from deepinfer.sampling.sample import sample
from deepinfer.step import DraftPlan, Drafts, Int32, Int64, SamplePlan, Scores, StepPlan, StepResult
from deepinfer.worker.drafter import Drafter
from deepinfer.worker.follow import Proposed, Sampled, Starts, follow, take_sample
from deepinfer.worker.graphs import Recorder
from deepinfer.worker.keep import Kept, keep_rows
from deepinfer.worker.pools import Pools
from deepinfer.worker.ready import Ready, ready_rest, ready_rows
from deepinfer.worker.recorded import RecordedSteps
from deepinfer.worker.step_numbers import StepNumbers, on_device_numbers, step_numbers

# Prompt rows whose logits are looked at together: [rows, vocabulary] float32 is the largest tensor
# of a step.
_SCORE_ROWS = 128
_NUM_SCORES = len(Scored._fields)


@dataclass(frozen=True)
class _Launched:
    """What `sample` needs of the rows that ran through all layers. plan: of these."""

    plan: StepPlan
    hidden: Hidden


class Worker:
    """Holds the network and the pools of one device."""

    def __init__(
        self,
        network: Network,
        pools: Pools,
        device: str = "cpu",
        drafter: Drafter | None = None,
        *,
        is_compact: bool = False,
        record: Recorder[Any] | None = None,
    ) -> None:
        """drafter: of the same network and pools; None drafts nothing, and saves its caches.

        is_compact: rows before their sequence's decoder start do not run in the decoder half.
        record: of decode steps (`record_graph`); None runs them op by op.
        """
        self.is_compact = is_compact
        self.record = record
        self._recorded = None
        if record is not None:
            self._recorded = RecordedSteps(network, pools, drafter, record)
        self.network, self.pools, self.device = network, pools, device
        self.drafter = drafter
        self._launched: _Launched | None = None
        # Of the step that was sampled last.
        self._sampled: Sampled | None = None
        self._proposed: Proposed | None = None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Run the plan's rows through all layers; their keys and values are stored."""
        assert self._launched is None  # its tokens were never drawn
        starts, token_ids = self._follow(plan)
        kept = keep_rows(plan, starts) if self.is_compact else None
        numbers, hidden = self._numbers(plan, starts), None
        if kept is None and self._recorded is not None:
            hidden = self._recorded.run(numbers, starts.exact, token_ids)
        if hidden is None:
            ready = self._ready(numbers, starts.exact, token_ids, kept)
            hidden = self.network.run(ready.batch, ready.store, ready.rest)
            index = ready.index
            if self.drafter is not None and len(hidden.features):
                at = index.window_rows
                self.drafter.keep_windows(
                    hidden.features[at], index.positions[at], index.window_write
                )
        self._launched = _Launched(plan if kept is None else kept.plan, hidden)

    @torch.inference_mode()
    def ready(self, plan: StepPlan) -> tuple[StepPlan, Ready]:
        """Where a plan's rows find and leave what is theirs; and the plan of those that run through
        all layers. It follows the step before."""
        starts, token_ids = self._follow(plan)
        kept = keep_rows(plan, starts) if self.is_compact else None
        ready = self._ready(self._numbers(plan, starts), starts.exact, token_ids, kept)
        return plan if kept is None else kept.plan, ready

    def _follow(self, plan: StepPlan) -> tuple[Starts, Tensor]:
        self._tell_slots(plan)
        return follow(plan, self._sampled, self._proposed, self.device)

    def _ready(
        self, numbers: StepNumbers[Int64], exact: Tensor, token_ids: Tensor, kept: Kept | None
    ) -> Ready:
        there = on_device_numbers(numbers, self.device)
        ready = ready_rows(self.network, self.pools, there, exact, token_ids)
        if kept is None:
            return ready
        there = on_device_numbers(self._numbers(kept.plan, kept.starts), self.device)
        rows = self._tensor(kept.rows)
        return ready_rest(self.network, self.pools, ready, rows, there, kept.starts.exact)

    def _numbers(self, plan: StepPlan, starts: Starts) -> StepNumbers[Int64]:
        return step_numbers(self.network.setup.config, plan, starts)

    def lose_step(self) -> None:
        """Forget launched and sampled steps: no later plan follows one of them."""
        self._launched = self._sampled = self._proposed = None

    def sample(self, plan: SamplePlan) -> StepResult:
        """`start_sample`, and wait for it."""
        return self.start_sample(plan)()

    def draft(self, plan: DraftPlan) -> Drafts:
        """`start_draft`, and wait for it."""
        return self.start_draft(plan)()

    @torch.inference_mode()
    def start_sample(self, plan: SamplePlan) -> Callable[[], StepResult]:
        """Draw the tokens of the launched step's sample rows, and look at its score rows."""
        assert self._launched is not None
        launched, self._launched = self._launched, None
        final = launched.hidden.final
        logits = self.network.head(final[self._tensor(launched.plan.sample_rows)])
        logprobs_of = None if self.drafter is None else self.drafter.proposed(launched.plan, plan)
        drawn = sample(logits, plan, logprobs_of, pick=self.network.kernels.pick)
        self._sampled = take_sample(launched.plan, plan, drawn.token_ids)
        self._proposed = None
        prompt_scores = self._prompt_scores(launched.plan, final)
        results = [drawn.token_ids.to(torch.int32), drawn.bad_rows]
        for scores in (drawn.logprobs, prompt_scores):
            results += scores or ()
        wait = fetch(results)

        def result() -> StepResult:
            token_ids, bad_rows, *scores = wait()
            logprobs = Scores(*scores[:_NUM_SCORES]) if drawn.logprobs else None
            of_prompt = Scores(*scores[-_NUM_SCORES:]) if prompt_scores else None
            return StepResult(token_ids, bad_rows, logprobs, of_prompt)

        return result

    @torch.inference_mode()
    def start_draft(self, plan: DraftPlan) -> Callable[[], Drafts]:
        """Propose what may follow tokens of the step that was sampled last."""
        assert self.drafter is not None
        assert self._sampled is not None
        token_ids, confidence = self.drafter.propose(self._sampled, plan)
        rows = np.full(len(self._sampled.first_rows), -1, np.int64)
        rows[plan.sequences] = np.arange(len(plan.sequences))
        self._proposed = Proposed(rows, token_ids)
        wait = fetch([token_ids.to(torch.int32), confidence])
        return lambda: Drafts(*wait())

    def _prompt_scores(self, plan: StepPlan, final: Tensor) -> Scored | None:
        if not len(plan.score_rows):
            return None
        rows, ids = self._tensor(plan.score_rows), self._tensor(plan.score_ids)
        parts = [
            score(self.network.head(final[part_rows]), part_ids, plan.score_top)
            for part_rows, part_ids in zip(
                rows.split(_SCORE_ROWS), ids.split(_SCORE_ROWS), strict=True
            )
        ]
        return join_scores(parts)

    def _tell_slots(self, plan: StepPlan) -> None:
        """Put tokens that no row of theirs ran into slots."""
        if not plan.known_ids.size:
            return
        at = plan.known_slots.astype(np.int64) * SLACK_ROWS + plan.known_positions % SLACK_ROWS
        kept_ids = self.pools.token_ids.flatten()
        kept_ids.index_copy_(
            0,
            on_device(at, self.device, torch.int64),
            on_device(plan.known_ids, self.device, kept_ids.dtype),
        )

    def _tensor(self, array: Int32 | Int64) -> Tensor:
        return on_device(array, self.device, torch.int64)
