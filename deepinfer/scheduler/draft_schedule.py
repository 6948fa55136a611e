"""How many drafts a step verifies, and whose. Pure functions over numbers; knows no request.

A verified draft costs a row of the step, and brings a token if it and all drafts before it are
accepted. The draft module's confidences say how likely that is. Two decisions follow (spec 11.5):

Step A, `choose_budget`: how many drafts are verified in all, so that the step brings most tokens
for its time.
Step B, `share_drafts`: which ones. The likeliest of the batch; of each sequence always the first.

**Causality.** Drafts never change the distribution of the tokens. For that, whether a draft is
verified must not depend on its own value, nor on anything that followed from its value. The
confidence of draft j is computed from the tokens before it, so a decision about draft j may use
confidences 0 to j of its sequence. Confidence j + 1 is another matter: it was computed from draft j
itself. If it took part, good drafts would be verified more often than bad ones of the same
probability, and texts would drift towards them. Hence two rounds of confidences:

- Step A uses those of the round before last. Their drafts are accepted or rejected, all is over.
- Step B uses those of the last round, whose drafts are decided on now, as products of prefixes. A
  later draft of the same sequence never comes before an earlier one, equal or not, so it cannot
  push it out. Other sequences can; their draws are independent.

The same holds for all else that decides here. The drafts of the last round must not be counted,
cut or timed by their values: one that a grammar forbids is verified, and rejected, like others.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from deepinfer.step import Int32, Int64

Float64 = npt.NDArray[np.float64]
# Rates of the drafts of each sequence, in the order of the step; their numbers may differ.
Rates = Sequence[Sequence[float] | Float64] | Float64
# Milliseconds of steps with so many rows: [M] -> [M], inf where a step cannot have so many.
TimeOfRows = Callable[[Int64], Float64]


def survival_rates(confidence: npt.ArrayLike) -> Float64:
    """Probability that each draft is emitted: it is accepted, and so are all before it.

    confidence: [..., n], P(draft accepted | those before it accepted), from 0 to 1. Returns
    [..., n], non-increasing along the last axis. NaN, from a bad row, counts as 0.
    """
    known = np.clip(np.nan_to_num(np.asarray(confidence, np.float64), nan=0.0), 0.0, 1.0)
    rates: Float64 = np.cumprod(known, axis=-1, dtype=np.float64)
    return rates


def fill_rates(
    rates: Sequence[Sequence[float] | Float64 | None], num_drafts: Sequence[int]
) -> list[list[float]]:
    """Rates for Step A where some are missing: those of sequences that are new, or had fewer.

    rates: of the round before last, None if the sequence had none. num_drafts: drafts that each has
    now. A missing rate is that of the draft before it, 1.0 for a first: a guess that the new
    sequence is worth its rows. Without drafts there is nothing to rate, which counts as 0.
    """
    filled = []
    for known, wanted in zip(rates, num_drafts, strict=True):
        first = [] if known is None else known[:wanted]
        row = first.tolist() if isinstance(first, np.ndarray) else list(first)
        row += [row[-1] if row else 1.0] * (wanted - len(row))
        filled.append(row)
    return filled


def choose_budget(
    rates: Rates, time_of_rows: TimeOfRows | None, max_rows: int, num_other_rows: int = 0
) -> int:
    """Step A: how many drafts all sequences together should verify, m*.

    rates: `survival_rates` of the round before last, one row for each of the S sequences.
    time_of_rows: of the whole step; None if nothing is known about times: verify all there is room
    for. max_rows: most rows of a step; larger steps are not considered. num_other_rows: rows that
    run in any case and bring no token in this step, as those of prompts.

    Each sequence emits one token and each draft one more with its rate, so a step with m drafts is
    expected to emit E(m) = S + (sum of the m largest rates), in the time of S + m rows. m* has the
    largest E(m) / time; of several the smallest.

    Example: two sequences, confidences 0.9, 0.5 and 0.8, 0.25; a step of b rows takes 10 + b ms.

        rates, largest first      0.9     0.8     0.45    0.2
        drafts m             0    1       2       3       4
        tokens E(m)          2    2.9     3.7     4.15    4.35
        time, ms            12   13      14      15      16
        tokens per ms    0.167    0.223   0.264   0.277   0.272    m* = 3

    >>> rates = [survival_rates([0.9, 0.5]), survival_rates([0.8, 0.25])]
    >>> choose_budget(rates, lambda rows: 10.0 + rows, max_rows=100)
    3
    >>> share_drafts(rates, 3).tolist()  # those of 0.9, 0.8 and 0.45
    [2, 1]
    """
    flat, lengths = _flatten(rates)
    num_rows = len(lengths) + num_other_rows
    most = max(0, min(len(flat), max_rows - num_rows))
    if time_of_rows is None or most == 0:
        return most
    flat.sort()
    emitted = np.empty(most + 1)
    emitted[0] = len(lengths)
    emitted[1:] = flat[::-1][:most]
    np.cumsum(emitted, out=emitted)
    times = time_of_rows(np.arange(num_rows, num_rows + most + 1))
    return int(np.argmax(emitted / times))  # the first of equal maxima


def share_drafts(rates: Rates, num_drafts: int) -> Int32:
    """Step B: how many drafts of each sequence are verified, always the first ones.

    rates: `survival_rates` of the last round, whose drafts these are; a sequence without drafts has
    an empty row. num_drafts: the budget; all are verified if there are no more than that. Returns
    int32 [S]: how many of each sequence's rates are among the `num_drafts` largest of all. Of equal
    rates those of earlier sequences come first, and within a sequence those of earlier drafts.
    """
    assert num_drafts >= 0, f"{num_drafts} drafts"
    flat, lengths = _flatten(rates)
    if num_drafts >= len(flat):
        return lengths.astype(np.int32)
    chosen = np.argsort(-flat, kind="stable")[:num_drafts]
    owners = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(owners[chosen], minlength=len(lengths)).astype(np.int32)


def _flatten(rates: Rates) -> tuple[Float64, Int64]:
    """(a copy of all rates, one sequence after the other; how many each has)."""
    if isinstance(rates, np.ndarray):
        num_sequences, num_drafts = rates.shape
        return rates.flatten(), np.full(num_sequences, num_drafts)
    lengths = np.fromiter(map(len, rates), np.int64, count=len(rates))
    if len(rates) and isinstance(rates[0], np.ndarray):  # several times as fast as one by one
        return np.concatenate(rates, dtype=np.float64), lengths
    num_rates = int(lengths.sum())
    return np.fromiter(chain.from_iterable(rates), np.float64, count=num_rates), lengths


def verify_above(rates: Sequence[float] | Float64, threshold: float) -> int:
    """How many drafts of one sequence are verified: those before the first rate below `threshold`.

    A rule of each draft's own prefix, so that it may use the rates of these very drafts.

    >>> verify_above([0.9, 0.6, 0.3], 0.5)
    2
    """
    rates = np.asarray(rates, np.float64)
    return int(np.count_nonzero(np.logical_and.accumulate(rates >= threshold)))


def choose_threshold(
    rounds: Sequence[Sequence[float] | Float64], time_of_rows: TimeOfRows
) -> float:
    """The threshold for a sequence that runs alone, by rounds of drafts that are decided.

    For one sequence the number of drafts of Step A is a poor rule: it is chosen by another round,
    and no other sequence evens that out. A threshold lets each round decide for itself.

    rounds: `survival_rates` of earlier rounds, none of them still to be verified. Of all thresholds
    that verify anything else the one with the largest (mean of tokens) / (mean of time), of several
    the highest; 0.0, which verifies everything, without rounds.

    Example: rounds with rates 0.9, 0.8 and 0.4, 0.1; a step of b rows takes 4 + b ms.

        threshold       none    0.9     0.8     0.4     0.1
        drafts          0, 0    1, 0    2, 0    2, 1    2, 2
        tokens, mean    1       1.45    1.85    2.05    2.1
        time, mean      5       5.5     6       6.5     7
        tokens per ms   0.2     0.264   0.308   0.315   0.3      the threshold is 0.4

    >>> choose_threshold([[0.9, 0.8], [0.4, 0.1]], lambda rows: 4.0 + rows)
    0.4
    """
    if not rounds:
        return 0.0
    rates, lengths = _flatten([np.asarray(one, np.float64) for one in rounds])
    # Each draft costs what its row adds to a step that verifies those before it.
    longest = int(lengths.max())
    times = time_of_rows(np.arange(1, longest + 2))
    with np.errstate(invalid="ignore"):  # beyond the largest step all times are inf
        each = np.nan_to_num(np.diff(times), nan=np.inf, posinf=np.inf)
    added = np.concatenate([each[:length] for length in lengths])
    order = np.argsort(-rates, kind="stable")
    tokens = len(rounds) + np.cumsum(rates[order])
    spent = len(rounds) * float(times[0]) + np.cumsum(added[order])
    # A threshold takes all drafts of its rate or none: only the last of equal ones is a choice.
    is_last = np.append(np.diff(rates[order]) != 0, True)
    gains = np.where(is_last, tokens / spent, -np.inf)
    best = int(np.argmax(gains))
    nothing = 1.0 / float(times[0])
    return float(rates[order][best]) if gains[best] > nothing else np.inf
