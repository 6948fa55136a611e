"""Drafts on a device: the draft module's caches, its blocks, and what its drafts were drawn from.

Knows the rows of the step before. Writes to no pool but the module's own windows, so drafts that
nobody wants leave nothing behind.
"""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.cache.layout import SLACK_ROWS
from deepinfer.model.draft import Draft, DraftStore, draft_batch
from deepinfer.model.network import Network
from deepinfer.sampling.arrays import on_device, together
from deepinfer.sampling.drafts import Proposed, draft_tokens, rejection_rows
from deepinfer.step import DraftPlan, Int64, SamplePlan, StepPlan
from deepinfer.worker.follow import Sampled
from deepinfer.worker.graphs import Inputs, Recorder, Recordings, padded
from deepinfer.worker.pools import Pools

_MOST_LOGIT = 60.0  # of a confidence: the sigmoid stays between 0 and 1


@dataclass
class Drafter:
    """The draft module of one worker.

    temperatures: one for all drafts or one for each; confidences are divided by it. record: of the
    blocks (`record_graph`); None runs them op by op.
    """

    network: Network
    pools: Pools
    temperatures: Sequence[float] = (1.0,)
    record: InitVar[Recorder[Any] | None] = None
    # Of the sequences whose last drafts are accepted by rejection, by slot: place in `_logprobs`,
    # float32 [m, n, V]. Drafts are verified in the next step or never, so there is one generation.
    _places: dict[int, int] = field(default_factory=dict)
    _logprobs: Tensor | None = None
    _recordings: Recordings[Tensor] | None = field(init=False)

    def __post_init__(self, record: Recorder[Any] | None) -> None:
        self._recordings = None if record is None else Recordings(record)

    @property
    def module(self) -> Draft:
        """The network's draft module, which there must be."""
        assert self.network.draft is not None
        return self.network.draft

    def keep_windows(self, features: Tensor, positions: Tensor, write: Tensor) -> None:
        """Store what main tokens leave for later drafts, in every draft block's ring.

        features [n, taps * D], positions int64 [n], write int64 [n]: row of the flat ring.
        """
        for block, kv in self.module.main_kv(features, positions).items():
            ring = self.pools.draft_window[block].flatten(0, 1)
            ring.index_copy_(0, write, kv.to(ring.dtype))

    def proposed(self, plan: StepPlan, sample_plan: SamplePlan) -> Proposed | None:
        """What the drafts of the plan's `rejection_rows` were drawn from; None without any."""
        rows = rejection_rows(sample_plan)
        if not rows.size:
            return None
        assert self._logprobs is not None
        ends = np.cumsum(plan.num_rows, dtype=np.int64)
        at = plan.sample_rows[rows]
        sequences = np.searchsorted(ends, at, side="right")
        numbers = at - (ends - plan.num_rows)[sequences]
        places = np.array([self._places[slot] for slot in plan.slot_ids[sequences].tolist()])
        at_place, at_number = together((places, numbers), self._device)
        return Proposed(rows, self._logprobs[at_place, at_number])

    def propose(self, sampled: Sampled, plan: DraftPlan) -> tuple[Tensor, Tensor]:
        """n drafts after the last token of each of A sequences: int64 [A, n], and their confidences
        float32 [A, n]."""
        network, size = self.network, plan.num_drafts
        rows, slots = sampled.first_rows[plan.sequences], sampled.slots(plan.sequences)
        sequences, positions, of_slots = together(
            (plan.sequences, sampled.sample_plan.positions[rows], slots), self._device
        )
        # Where the last token of each stands: only the device knows how many drafts were accepted.
        anchors = positions + sampled.num_accepted[sequences]
        golden_ids = sampled.last_ids[sequences]
        hidden = self._hidden(golden_ids, anchors, self._main_rows(of_slots, anchors), size)
        kept: list[Proposed] = []

        def pick(logits: Tensor, i: int) -> Tensor:
            common = sampled.sample_plan, rows, anchors
            drafted = draft_tokens(logits, *common, i, pick=network.kernels.pick)
            kept.append(drafted.proposed)
            return drafted.token_ids

        proposal = self.module.propose(hidden, golden_ids, network.head, pick)
        self._keep(slots[kept[0].rows], kept)
        return proposal.token_ids, self._confidence(proposal.confidence)

    def _main_rows(self, slots: Tensor, anchors: Tensor) -> Tensor:
        """Rows of the flat rings with the last main tokens before each anchor: int64 [A, W]."""
        window = self.network.setup.config.sliding_window
        behind = torch.arange(-window, 0, device=anchors.device)
        before = (anchors[:, None] + behind).clamp_min(0)  # others are not seen
        ring = window + SLACK_ROWS
        return slots[:, None] * ring + before % ring

    def _hidden(self, golden_ids: Tensor, anchors: Tensor, main: Tensor, size: int) -> Tensor:
        """Draft blocks of `size` rows through the module: [A, size, D], good until the next call.

        golden_ids, anchors: int64 [A], the anchors' tokens and positions; main: `_main_rows`.
        """
        if self._recordings is None:
            return self._run(size, (golden_ids, anchors, main))
        count = len(golden_ids)

        def inputs() -> Inputs:
            shapes = (padded(count),), (padded(count),), (padded(count), main.shape[1])
            blanks = [main.new_zeros(shape) for shape in shapes]
            return Inputs([one.clone() for one in blanks], blanks)

        key, values = (padded(count), size), (golden_ids, anchors, main)
        return self._recordings.run(key, inputs, values, partial(self._run, size))[:count]

    def _run(self, size: int, tensors: Sequence[Tensor]) -> Tensor:
        golden_ids, anchors, main = tensors
        count, window = main.shape
        store = DraftStore(
            {
                block: pool.flatten(0, 1).index_select(0, main.flatten())
                for block, pool in self.pools.draft_window.items()
            }
        )
        first_rows = torch.arange(count, device=anchors.device) * window - anchors + window
        config = self.network.setup.config
        batch = draft_batch(config, golden_ids, anchors, first_rows, main.numel(), size)
        hidden = self.module.run(self.network.embed(batch.token_ids), batch, store)
        return hidden.unflatten(0, (count, size))

    def _keep(self, slots: Int64, kept: list[Proposed]) -> None:
        self._places = {slot: place for place, slot in enumerate(slots.tolist())}
        self._logprobs = torch.stack([one.logprobs for one in kept], 1) if self._places else None

    def _confidence(self, raw: Tensor) -> Tensor:
        scaled = raw / self._temperatures[: raw.shape[1]]
        return scaled.clamp(-_MOST_LOGIT, _MOST_LOGIT).sigmoid()

    @cached_property
    def _temperatures(self) -> Tensor:
        return on_device(np.array(self.temperatures), self._device, torch.float32)

    @property
    def _device(self) -> torch.device:
        return self.pools.token_ids.device
