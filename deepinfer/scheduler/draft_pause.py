"""Whether to draft at all: with many sequences, proposals can cost more than they bring.

Knows numbers. A draft module runs for every sequence of a step, before anybody can tell what its
drafts are worth. Verifying fewer of them saves rows, not that time; only leaving it out does.

What decides are the drafts of the step that was just sampled, and earlier ones: never those that
would be proposed, so texts keep their distribution (see `draft_schedule`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepinfer.scheduler.draft_schedule import Float64, choose_budget
from deepinfer.scheduler.step_time import StepTime

# Steps without drafts before they are tried again, and steps of a trial: the first of them has
# nothing to verify, the second nothing to choose by.
_PAUSE_STEPS = 24
_TRIAL_STEPS = 3
# Fewer sequences than this share of those at the start of a pause end it: their steps are shorter.
_SHRUNK = 0.75


@dataclass
class DraftPause:
    """Says before each step's drafts whether they are wanted.

    Example: steps of b rows take 10 + b ms, drafts for both sequences 20 ms more. Both verify two
    drafts of rates 0.5 and 0.1: at best 3 tokens in 34 ms, where 2 tokens take 12 without.

    >>> step_time = StepTime({1: 11.0, 9: 19.0}, graphs=False)
    >>> step_time.record(2, 4, 14.0, 20.0)
    >>> pause = DraftPause(step_time)
    >>> rates = np.array([0.5, 0.1])
    >>> [pause.wants([rates, rates], max_rows=100) for _ in range(4)]
    [True, True, True, False]
    """

    step_time: StepTime
    _num_trials: int = 0
    _num_left: int = 0
    _num_sequences: int = 0

    def wants(self, rates: Sequence[Float64 | None], max_rows: int) -> bool:
        """Whether to draft behind a step. To be asked once a step.

        rates: of each sequence that could be drafted for, `survival_rates` of its latest drafts,
        None if it has none. max_rows: most rows of a step.
        """
        if self._num_left and len(rates) >= _SHRUNK * self._num_sequences:
            self._num_left -= 1
            return False
        self._num_left = 0
        if self._num_trials < _TRIAL_STEPS:
            self._num_trials += 1
            return True
        if self._pays([one for one in rates if one is not None], len(rates), max_rows):
            return True
        self._num_left, self._num_trials, self._num_sequences = _PAUSE_STEPS, 0, len(rates)
        return False

    def _pays(self, known: Sequence[Float64], num_sequences: int, max_rows: int) -> bool:
        """By tokens for a step's time; where little is known, it does."""
        time_of_rows = self.step_time.of_rows(num_sequences)
        if time_of_rows is None or 2 * len(known) < num_sequences:
            return True
        # As if the sequences that are not known were like the others.
        num_drafts = choose_budget(known, time_of_rows, max_rows)
        share = num_sequences / len(known)
        emitted = share * float(np.sort(np.concatenate(known))[::-1][:num_drafts].sum())
        num_rows = num_sequences + round(share * num_drafts)
        times = time_of_rows(np.array([num_sequences, num_rows]))
        alone = float(times[0]) - self.step_time.sampler_ms(num_sequences)
        return (num_sequences + emitted) / float(times[1]) >= num_sequences / alone
