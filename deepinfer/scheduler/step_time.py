"""How long a step will take: a curve measured at the start, corrected while running (spec 11.5).

The model of a step with b rows of S sequences, in milliseconds:

    time(b) = max(base(G(b)) + excess(G(b)), base(G(b)) / 2) + sampler(S)

base: the start-up curve. excess: what steps of about that size take beyond it: contexts grow, and
the curve was measured with short ones; or less than 0, because the rows of one text share experts.
(The release has one figure a row for all sizes, and none below 0. What small steps take more, they
take once, not for every row: multiplied by many rows it makes drafts look too dear.) sampler: all
that follows the forward (choosing tokens, the next drafts), which depends on the number of
sequences alone. Both corrections are medians of what was recorded, so one stalled step does not
move them.
"""

import math
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import median

import numpy as np

from deepinfer.scheduler.draft_schedule import Float64, TimeOfRows
from deepinfer.step import Int64

# Rows of a step -> milliseconds of its forward.
Curve = dict[int, float]

_EXCESS_STEPS = 5000
_EXCESS_SAMPLES = 10
_SAMPLER_STEPS = 9
_SAMPLER_SAMPLES = 5
_TIMED_RUNS = 5
_NO_TIME_MS = 1e9  # eleven days


def curve_sizes(max_rows: int, interval: int | None = 8) -> list[int]:
    """Sizes of steps that the curve is measured at, ascending; the last is `max_rows`.

    Powers of two below `interval`, then its multiples: the sizes of captured graphs. None is powers
    of two all the way, enough where times between sizes are interpolated.
    """
    assert max_rows >= 1, f"{max_rows} rows"
    end = max_rows if interval is None else min(interval, max_rows)
    sizes = [2**power for power in range(end.bit_length()) if 2**power < end]
    if interval is not None:
        sizes += range(interval, max_rows, interval)
    return [*sizes, max_rows]


def measure_curve(
    run: Callable[[int], object],
    sizes: Iterable[int],
    clock: Callable[[], float] = time.perf_counter,
) -> Curve:
    """The start-up curve: once to warm up, then the fastest of five timed runs of each size.

    What else the machine does can only add to a time, and it hits one size and not the next; what
    all steps take beyond the curve, the running engine adds (`StepTime.slope`).
    run: one forward of so many rows, as in a decode step, that returns when the device is done: the
    rows valid, the experts chosen at random. clock: seconds.
    """
    return {size: _measure(run, size, clock) for size in sizes}


def _measure(run: Callable[[int], object], size: int, clock: Callable[[], float]) -> float:
    run(size)
    times = []
    for _ in range(_TIMED_RUNS):
        start = clock()
        run(size)
        times.append(1000 * (clock() - start))
    return min(times)


class StepTime:
    """The time model: asked before every step, told after it.

    curve: as `measure_curve` returns it; times positive and finite. Without a curve (empty) nothing
        is predicted: `of_rows` is None, which `choose_budget` takes as "verify everything".
    graphs: steps run as the captured graph of the smallest size that holds their rows, G(b), and
        cannot be larger than the largest. Otherwise G(b) = b, with a straight line between measured
        sizes and, beyond the last, the line of the last two (but never a falling one).
    """

    def __init__(self, curve: Mapping[int, float], *, graphs: bool) -> None:
        assert all(math.isfinite(ms) and ms > 0 for ms in curve.values()), "times are positive"
        self._sizes: Int64 = np.array(sorted(curve), np.int64)
        self._times: Float64 = np.array([curve[size] for size in sorted(curve)], np.float64)
        self._graphs = graphs
        self._excess: deque[tuple[int, float]] = deque()
        self._excess_by_size: dict[int, list[float]] = {}  # the same, each list ascending
        self._known: tuple[Float64, Float64] | None = None  # None: to be computed anew
        self._sampler: deque[float] = deque(maxlen=_SAMPLER_STEPS)
        self._sampler_by_count: dict[int, deque[float]] = {}

    def of_rows(self, num_sequences: int) -> TimeOfRows | None:
        """Time of steps with so many sequences, as it is known now. None without a curve."""
        if not len(self._sizes):
            return None
        after = self.sampler_ms(num_sequences)

        def time_of_rows(num_rows: Int64) -> Float64:
            run = self._run_rows(num_rows)
            base = self._base(run)
            # Half: what was seen at some sizes is no measure of others.
            times = np.maximum(base + self.excess_ms(run), base / 2) + after
            return np.where(num_rows > self._sizes[-1], np.inf, times) if self._graphs else times

        return time_of_rows

    def excess_ms(self, run_rows: Int64) -> Float64:
        """Milliseconds beyond the curve of steps with so many rows; may be negative.

        The median of each size of the curve that ran ten times or more, of the last 5000 steps,
        with straight lines between them. Fewer rows than the least of them have their share of it;
        more rows have more, but what is below 0 does not grow. 0 where nothing is known.
        """
        if self._known is None:
            known = {
                size: _middle(self._excess_by_size[size])
                for size in sorted(self._excess_by_size)
                if len(self._excess_by_size[size]) >= _EXCESS_SAMPLES
            }
            self._known = np.array([*known], np.float64), np.array([*known.values()], np.float64)
        sizes, excess = self._known
        if not len(sizes):
            return np.zeros(len(run_rows))
        found: Float64 = np.interp(run_rows, sizes, excess)
        found *= np.minimum(run_rows / sizes[0], 1.0)
        if excess[-1] > 0:
            found *= np.maximum(run_rows / sizes[-1], 1.0)
        return found

    def sampler_ms(self, num_sequences: int) -> float:
        """Time after the forward: the median of the last nine steps with so many sequences.

        Of the last nine steps of any kind if there were fewer than five such; 0 before the first.
        """
        samples = self._sampler_by_count.get(num_sequences, self._sampler)
        if len(samples) < _SAMPLER_SAMPLES:
            samples = self._sampler
        return median(samples) if samples else 0.0

    def record(
        self, num_sequences: int, num_rows: int, forward_ms: float, sampler_ms: float
    ) -> None:
        """What a step took.

        num_rows: all its rows, at least 1. A time that is no time (a clock that was set back) is
        left out. Steps larger than the curve say nothing about it.
        """
        if 0 <= sampler_ms < _NO_TIME_MS:  # false for NaN
            self._sampler.append(sampler_ms)
            by_count = self._sampler_by_count
            by_count.setdefault(num_sequences, deque(maxlen=_SAMPLER_STEPS)).append(sampler_ms)
        place = int(np.searchsorted(self._sizes, num_rows))
        if 0 < forward_ms < _NO_TIME_MS and place < len(self._sizes):
            run = self._run_rows(np.array([num_rows], np.int64))
            excess = float(forward_ms - self._base(run)[0])
            # Also without graphs: sizes in between are many, and none would run ten times.
            self._add_excess(int(self._sizes[place]), excess)

    def _add_excess(self, size: int, excess: float) -> None:
        self._known = None
        self._excess.append((size, excess))
        insort(self._excess_by_size.setdefault(size, []), excess)
        if len(self._excess) > _EXCESS_STEPS:
            old_size, old = self._excess.popleft()
            samples = self._excess_by_size[old_size]
            del samples[bisect_left(samples, old)]

    def _run_rows(self, num_rows: Int64) -> Int64:
        """G(b); where no graph is large enough, the largest."""
        if not self._graphs:
            return num_rows
        places = np.searchsorted(self._sizes, num_rows)
        run: Int64 = self._sizes.take(places, mode="clip")
        return run

    def _base(self, run_rows: Int64) -> Float64:
        sizes, times = self._sizes, self._times
        base: Float64 = np.interp(run_rows, sizes, times)
        if len(sizes) == 1:
            return base
        rise = float((times[-1] - times[-2]) / (sizes[-1] - sizes[-2]))
        base += max(0.0, rise) * np.maximum(run_rows - sizes[-1], 0)
        return base


def _middle(ascending: list[float]) -> float:
    """Median of a sorted list."""
    half = len(ascending) // 2
    return ascending[half] if len(ascending) % 2 else (ascending[half - 1] + ascending[half]) / 2
