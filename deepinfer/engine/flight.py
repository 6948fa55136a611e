"""`Flight`: a step on its way through the device, and what became of it.

Knows what was asked of the lane. Does not know when to ask.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepinfer.engine.continuation import Continuation, Row, prepare
from deepinfer.sampling_params import FREE, SamplingParams
from deepinfer.scheduler.plan import Scheduled
from deepinfer.step import Drafts, StepResult
from deepinfer.worker.lane import Pending

# The scheduler's name of a continuation: (request, choice).
Key = tuple[str, int]
# Of a row whose request ended after the row was planned: its token goes to nobody.
_NOBODY = prepare(SamplingParams(temperature=0), seed=0, choice=0, eos_ids=())


@dataclass
class Flight:
    """A step that was launched.

    sampled: once its tokens are asked for. drafts: of what follows them, for the requests at these
    places of the step (`drafted`).
    """

    scheduled: Scheduled
    launched: Pending[None]
    sampled: Pending[StepResult] | None = None
    drafts: Pending[Drafts] | None = None
    drafted: Sequence[int] = ()

    def collect(self) -> tuple[StepResult, Drafts | None]:
        """Wait for all that was asked."""
        assert self.sampled is not None, "its tokens were not asked for"
        self.launched.result()
        result = self.sampled.result()
        return result, None if self.drafts is None else self.drafts.result()

    def rows(self, continuations: Mapping[Key, Continuation]) -> list[Row]:
        """The rows in which its tokens are chosen, when all tokens before them are known."""
        rows: list[Row] = []
        for place in self.scheduled.sampled:
            draft_ids = self.scheduled.drafts[place]
            if self.scheduled.is_live(place):
                key: Key = self.scheduled.requests[place].request_id
                rows += continuations[key].rows(draft_ids)
            else:
                rows += rows_of_nobody(draft_ids)
        return rows

    @property
    def forward_s(self) -> float:
        """Time of its rows and of the choice of its tokens, when collected."""
        assert self.sampled is not None
        return self.launched.taken_s + self.sampled.taken_s

    @property
    def draft_s(self) -> float:
        """Time of its drafts, when collected."""
        return 0.0 if self.drafts is None else self.drafts.taken_s


def rows_of_nobody(draft_ids: Sequence[int]) -> list[Row]:
    """Rows for a request that is gone: a step has as many as were planned."""
    return [Row(_NOBODY, 0, draft_id) for draft_id in (*draft_ids, FREE)]
