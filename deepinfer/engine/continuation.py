"""One continuation as far as the choice of its tokens goes: what it asks, what it has, and the rows
in which its next tokens are chosen.

Knows parameters and token ids. Does not know texts, steps, or how a token is drawn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from deepinfer.engine.steering import Steering
from deepinfer.engine.token_counts import Counted, TokenCounts
from deepinfer.sampling_params import FREE, SamplingParams
from deepinfer.so_args import SoArgs, read_so_args
from deepinfer.step import NO_IDS, Float32, Int32

_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class PreparedParams:
    """What one continuation asks of every step.

    reals: temperature, top_p, min_p, repetition, presence, frequency. wholes: top_k, seed (its 64
        bits as a signed number), choice, num_logprobs.
    end_ids: int32, the tokens that end it; the test for the end must use the same, or min_tokens
        holds back others than it. golden_ids: tokens that are forced, FREE where none is.
    bias_ids, biases: int32 and float32 of one length. so_args: the grammar that it follows.
    is_rejection: how its drafts are accepted, see `SamplePlan`.
    """

    reals: tuple[float, ...]
    wholes: tuple[int, ...]
    end_ids: Int32
    min_tokens: int
    golden_ids: tuple[int, ...]
    bias_ids: Int32
    biases: Float32
    so_args: SoArgs | None = None
    is_rejection: bool = False

    @property
    def num_logprobs(self) -> int:
        """Likeliest tokens to report, 0 for none but the token's own, -1 for nothing."""
        return self.wholes[3]

    @property
    def counts_seen(self) -> bool:
        """Whether the repetition penalty is on."""
        return self.reals[3] != 1.0

    @property
    def counts_produced(self) -> bool:
        """Whether the presence or the frequency penalty is on."""
        return self.reals[4] != 0.0 or self.reals[5] != 0.0


def prepare(
    params: SamplingParams,
    *,
    seed: int,
    choice: int,
    eos_ids: Iterable[int],
    is_rejection: bool = False,
) -> PreparedParams:
    """The constants of continuation number `choice`.

    seed: in [0, 2**64), drawn once for all continuations of a request. eos_ids: the model's
    end-of-sequence tokens.
    """
    # The generator works on 64-bit words; arrays hold them as signed numbers.
    seed_word = seed - (1 << 64) if seed >> 63 else seed
    end_ids = {*(params.stop_token_ids or ()), *(() if params.ignore_eos else eos_ids)}
    bias = params.logit_bias or {}
    return PreparedParams(
        reals=(
            # The limits of float32: an infinite temperature or a penalty of 0 would make NaN.
            0.0 if params.greedy else min(params.temperature, _MOST),
            params.top_p,
            params.min_p,
            min(max(params.repetition_penalty, _LEAST), _MOST),
            params.presence_penalty,
            params.frequency_penalty,
        ),
        wholes=(params.top_k, seed_word, choice, params.num_logprobs),
        end_ids=np.array(sorted(end_ids), np.int32),
        min_tokens=params.min_tokens,
        golden_ids=tuple(params.golden_token_ids or ()),
        bias_ids=np.array(list(bias), np.int32),
        biases=np.array(list(bias.values()), np.float32),
        so_args=read_so_args(params.so_args),
        is_rejection=is_rejection,
    )


class Row(NamedTuple):
    """How one token is chosen, as far as it differs from row to row of a continuation.

    position: absolute, of the token. draft_id: the draft that stands there, FREE for none. seen,
    produced: as of `SamplePlan`, None where their penalties are off. mask: int32 [ceil(V / 32)],
    None allows all. banned: int32. forced: the token to take, FREE for none.
    """

    prepared: PreparedParams
    position: int
    draft_id: int = FREE
    seen: Counted | None = None
    produced: Counted | None = None
    mask: Int32 | None = None
    banned: Int32 = NO_IDS
    forced: int = FREE


@dataclass
class Continuation:
    """A continuation as far as the choice of its next tokens goes. Make it with `begin`."""

    prepared: PreparedParams
    num_prompt: int
    num_outputs: int = 0
    seen: TokenCounts | None = None
    produced: TokenCounts | None = None
    steering: Steering = field(default_factory=Steering)

    def add(self, token_id: int) -> bool:
        """Take one more generated token; False if a grammar does not allow it."""
        self.num_outputs += 1
        for counts in (self.seen, self.produced):
            if counts is not None:
                counts.add(token_id)
        return self.steering.add(token_id)

    def rows(self, draft_ids: Sequence[int] = ()) -> list[Row]:
        """The row of the next token; then, for each draft, the row of the token after it, if all
        drafts up to there are accepted. Nothing of the continuation changes.

        Rows behind a draft that a grammar forbids are free: that draft is never accepted. So are
        rows behind an end token, under a grammar: nothing follows it.
        """
        seen = None if self.seen is None else self.seen.ahead(draft_ids)
        produced = None if self.produced is None else self.produced.ahead(draft_ids)
        rows = []
        with self.steering.looking_ahead() as steering:
            is_possible = True
            for ahead, draft_id in enumerate((*draft_ids, FREE)):
                # First the mask: it tells whether anything but the end may come.
                mask = steering.mask() if is_possible else None
                row = Row(
                    self.prepared,
                    self.num_prompt + self.num_outputs + ahead,
                    draft_id,
                    seen=None if seen is None else next(seen),
                    produced=None if produced is None else next(produced),
                    mask=mask,
                )
                if is_possible:
                    row = row._replace(
                        banned=self._banned(ahead, steering), forced=self._forced(ahead, steering)
                    )
                    is_possible = self._is_possible(draft_id, steering)
                rows.append(row)
        return rows

    def _is_possible(self, draft_id: int, steering: Steering) -> bool:
        """Whether anything may follow the draft, which is added to `steering`.

        Without a grammar an end token can come too early and be forced: then the text goes on.
        """
        if draft_id == FREE or (steering.grammar and draft_id in self.prepared.end_ids):
            return False
        return steering.add(draft_id)

    def _forced(self, ahead: int, steering: Steering) -> int:
        golden_ids, place = self.prepared.golden_ids, self.num_outputs + ahead
        golden = golden_ids[place] if place < len(golden_ids) else FREE
        return steering.forced() if golden == FREE else golden

    def _banned(self, ahead: int, steering: Steering) -> Int32:
        """Tokens that may not come. Where a grammar leaves only the end, min_tokens gives way."""
        if self.num_outputs + ahead < self.prepared.min_tokens and not steering.must_end:
            return self.prepared.end_ids
        banned = steering.banned()
        return np.array(banned, np.int32) if banned else NO_IDS


def begin(
    prepared: PreparedParams,
    prompt_ids: Sequence[int],
    output_ids: Iterable[int] = (),
    steering: Steering | None = None,
) -> Continuation:
    """A continuation of `prompt_ids` that has `output_ids` already."""
    state = Continuation(
        prepared, num_prompt=len(prompt_ids), steering=Steering() if steering is None else steering
    )
    if prepared.counts_seen:
        state.seen = TokenCounts()
        for token_id in prompt_ids:
            state.seen.add(token_id)
    if prepared.counts_produced:
        state.produced = TokenCounts()
    for token_id in output_ids:
        state.add(token_id)
    return state


def next_rows(continuations: Iterable[Continuation]) -> list[Row]:
    """The row of the next token of each."""
    return [continuation.rows()[0] for continuation in continuations]
