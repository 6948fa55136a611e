"""One device's worker: runs the rows of a `StepPlan`, then draws the tokens of a `SamplePlan`.

With a draft module it may then propose what could follow them (`DraftPlan`).

Knows slots, blocks and rows; never hears of a request.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.model.batch import Batch, EntryRows
from deepinfer.model.network import Hidden, Network
from deepinfer.sampling.logprobs import join_scores, score
from deepinfer.sampling.sample import sample
from deepinfer.step import (
    DraftPlan,
    Drafts,
    Int32,
    Int64,
    SamplePlan,
    Scores,
    StepPlan,
    StepResult,
)
from deepinfer.worker.drafter import Drafter, Sampled
from deepinfer.worker.inputs import StepIndex, index_step
from deepinfer.worker.pools import PagedStore, Pools, StoreIndex

# Prompt rows whose logits are looked at together: [rows, vocabulary] float32 is the largest tensor
# of a step.
_SCORE_ROWS = 128


@dataclass(frozen=True)
class _Launched:
    """What `sample` needs of the rows that ran."""

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
    ) -> None:
        """drafter: of the same network and pools; None drafts nothing, and saves its caches."""
        self.network, self.pools, self.device = network, pools, device
        self.drafter = drafter
        self._launched: _Launched | None = None
        self._sampled: Sampled | None = None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Run the plan's rows through all layers; their keys and values are stored."""
        assert self._launched is None  # its tokens were never drawn
        self._sampled = None
        index = index_step(self.network.setup.config, plan)
        batch = self._batch(plan, index)
        store_index = self._store_index(index)
        hidden = self.network.run(batch, PagedStore(self.pools, store_index))
        if self.drafter is not None:
            rows = store_index.window_rows
            self.drafter.keep_windows(
                hidden.features[rows], batch.positions[rows], store_index.window_write
            )
        self._launched = _Launched(plan, hidden)

    def lose_step(self) -> None:
        """Forget a launched step whose tokens will not be drawn."""
        self._launched = None

    @torch.inference_mode()
    def sample(self, plan: SamplePlan) -> StepResult:
        """Draw the tokens of the launched step's sample rows, and look at its score rows."""
        assert self._launched is not None
        launched, self._launched = self._launched, None
        final = launched.hidden.final
        logits = self.network.head(final[self._tensor(launched.plan.sample_rows)])
        proposed = None if self.drafter is None else self.drafter.proposed(launched.plan, plan)
        token_ids, bad_rows, logprobs = sample(logits, plan, proposed)
        self._sampled = Sampled(launched.plan, plan, self._tensor(token_ids))
        return StepResult(token_ids, bad_rows, logprobs, self._prompt_scores(launched.plan, final))

    @torch.inference_mode()
    def draft(self, plan: DraftPlan) -> Drafts:
        """Propose what may follow tokens of the step that was sampled last."""
        assert self.drafter is not None
        assert self._sampled is not None
        return self.drafter.propose(self._sampled, plan)

    def _prompt_scores(self, plan: StepPlan, final: Tensor) -> Scores | None:
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

    def _batch(self, plan: StepPlan, index: StepIndex) -> Batch:
        token_ids = self._tensor(plan.token_ids)
        kept_ids = self.pools.token_ids.flatten()
        kept = torch.cat((token_ids, kept_ids.to(token_ids.dtype)))
        at = self._tensor(index.lookback)
        lookback = kept[at.clamp_min(0)].masked_fill(at < 0, -1)
        kept_ids.index_copy_(
            0,
            self._tensor(index.slack_write),
            token_ids[self._tensor(index.slack_rows)].to(kept_ids.dtype),
        )
        window_index = decoder_window_index = self._tensor(index.window_index)
        if index.decoder_window_index is not index.window_index:
            decoder_window_index = self._tensor(index.decoder_window_index)
        return Batch(
            token_ids=token_ids,
            positions=self._tensor(index.positions),
            lookback=lookback,
            sequence_ids=self._tensor(index.sequence_ids),
            groups=tuple(self._tensor(rows) for rows in index.groups),
            window_index=window_index,
            decoder_window_index=decoder_window_index,
            entries={
                ratio: EntryRows(
                    members=self._tensor(rows.members),
                    positions=self._tensor(rows.positions),
                    table=self._tensor(rows.table),
                    num_visible=self._tensor(rows.num_visible),
                )
                for ratio, rows in index.entries.items()
            },
        )

    def _store_index(self, index: StepIndex) -> StoreIndex:
        written = {ratio: self._tensor(rows.write) for ratio, rows in index.entries.items()}
        return StoreIndex(
            history=None if index.history is None else self._tensor(index.history),
            window_rows=self._tensor(index.window_rows),
            window_write=self._tensor(index.window_write),
            slack_rows=self._tensor(index.slack_rows),
            slack_write=self._tensor(index.slack_write),
            slack_read=self._tensor(index.slack_read),
            entry_write={
                plan.layer_id: written[plan.ratio] for plan in self.network.plans if plan.owns_kv
            },
        )

    def _tensor(self, array: Int32 | Int64) -> Tensor:
        return torch.from_numpy(array).to(self.device, torch.int64)
