"""Whether to draft at all: with many sequences, proposals can cost more than they bring.

Knows numbers. A draft module runs for every sequence of a step, before anybody can tell what its
drafts are worth. Verifying fewer of them saves rows, not that time; only leaving it out does.

What decides are the drafts of the step that was just sampled, and earlier ones: never those that
would be proposed, so texts keep their distribution (see `draft_schedule`).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from deepinfer.scheduler.draft_schedule import Float64, choose_budget
from deepinfer.scheduler.step_time import StepTime

# Steps without drafts before they are tried again; steps of a trial, and at most so many that a
# decision looks back on: one step says little, its sequences may just be at a hard place.
_PAUSE_STEPS = 64
_TRIAL_STEPS = 8
_SEEN_STEPS = 32
# The worst case of a wrong guess is that drafts are left out: they must be clearly worse.
_CLEARLY = 0.97
# Fewer sequences than this share of those at the start of a pause end it: their steps are shorter.
_SHRUNK = 0.75


@dataclass
class DraftPause:
    """Says before each step's drafts whether they are wanted.

    Example: steps of b rows take 10 + b ms, drafts for both sequences 20 ms more. Both could verify
    two drafts of rates 0.5 and 0.1: 2.6 tokens in 33 ms at best, where 2 tokens take 12 without.

    >>> step_time = StepTime({1: 11.0, 9: 19.0}, graphs=False)
    >>> step_time.record(2, 4, 14.0, 20.0)
    >>> pause = DraftPause(step_time)
    >>> rates = np.array([0.5, 0.1])
    >>> [pause.wants([rates, rates], max_rows=100) for _ in range(10)].count(True)
    7
    """

    step_time: StepTime
    _num_left: int = 0
    _num_sequences: int = 0
    # Of each step: tokens and ms with drafts, tokens and ms without.
    _seen: deque[tuple[float, float, float, float]] = field(
        default_factory=lambda: deque(maxlen=_SEEN_STEPS)
    )

    def wants(self, rates: Sequence[Float64 | None], max_rows: int) -> bool:
        """Whether to draft behind a step. To be asked once a step.

        rates: of each sequence that could be drafted for, `survival_rates` of its latest drafts,
        None if it has none. max_rows: most rows of a step.
        """
        if self._num_left and len(rates) >= _SHRUNK * self._num_sequences:
            self._num_left -= 1
            return False
        self._num_left = 0
        self._look(rates, max_rows)
        if len(self._seen) < _TRIAL_STEPS:
            return True
        drafted, drafted_ms, plain, plain_ms = map(sum, zip(*self._seen, strict=True))
        if drafted / drafted_ms >= _CLEARLY * plain / plain_ms:
            return True
        self._seen.clear()
        self._num_left, self._num_sequences = _PAUSE_STEPS, len(rates)
        return False

    def _look(self, rates: Sequence[Float64 | None], max_rows: int) -> None:
        """What a step with these sequences brings, drafted for or not; nothing where too little is
        known of them."""
        num_sequences, known = len(rates), [one for one in rates if one is not None]
        time_of_rows = self.step_time.of_rows(num_sequences)
        if time_of_rows is None or not known or 2 * len(known) < num_sequences:
            return
        # As if the sequences that are not known were like the others.
        num_drafts = choose_budget(known, time_of_rows, max_rows)
        share = num_sequences / len(known)
        emitted = share * float(np.sort(np.concatenate(known))[::-1][:num_drafts].sum())
        num_rows = num_sequences + round(share * num_drafts)
        plain_ms, drafted_ms = time_of_rows(np.array([num_sequences, num_rows])).tolist()
        plain_ms -= self.step_time.sampler_ms(num_sequences)
        self._seen.append((num_sequences + emitted, drafted_ms, num_sequences, plain_ms))
