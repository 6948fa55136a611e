"""`SamplePlan` of a step, from what the sampled requests ask and have generated.

Knows parameters and token ids. Does not know texts, steps, or how a token is drawn.

What never changes in a continuation is prepared once, so that a step only stacks arrays; what grows
with it is counted token by token, and only if its penalties are on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from deepinfer.engine.steering import Steering
from deepinfer.sampling_params import FREE, SamplingParams
from deepinfer.so_args import SoArgs, read_so_args
from deepinfer.step import Float32, Int32, SamplePlan, TokenLists

_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_NO_IDS = np.empty(0, np.int32)
_NO_TOKENS = TokenLists(_NO_IDS, _NO_IDS)
_NO_MASKS = np.empty((0, 0), np.int32)


@dataclass(frozen=True)
class PreparedParams:
    """What one continuation asks of every step.

    reals: temperature, top_p, min_p, repetition, presence, frequency. wholes: top_k, seed (its 64
        bits as a signed number), choice, num_logprobs.
    end_ids: int32, the tokens that end it; the test for the end must use the same, or min_tokens
        holds back others than it. golden_ids: tokens that are forced, FREE where none is.
    bias_ids, biases: int32 and float32 of one length. so_args: the grammar that it follows.
    """

    reals: tuple[float, ...]
    wholes: tuple[int, ...]
    end_ids: Int32
    min_tokens: int
    golden_ids: tuple[int, ...]
    bias_ids: Int32
    biases: Float32
    so_args: SoArgs | None = None

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
    params: SamplingParams, *, seed: int, choice: int, eos_ids: Iterable[int]
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
    )


class TokenCounts:
    """How often each token occurred, as arrays that are ready for a step."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.zeros(16, np.int32)
        self._counts = np.zeros(16, np.float32)

    @property
    def token_ids(self) -> Int32:
        """int32, each token once; a view that the next `add` may outdate."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Float32:
        """float32, of `token_ids`."""
        return self._counts[: len(self._places)]

    def add(self, token_id: int) -> None:
        """Count one token."""
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[place] = token_id
        self._counts[place] += 1


@dataclass
class Continuation:
    """A continuation as far as the choice of its next token goes. Make it with `begin`."""

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


def build_sample_plan(rows: Sequence[Continuation]) -> SamplePlan:
    """How the next token of each of `rows` is chosen, in their order."""
    # First, because a mask tells whether anything but the end may come.
    masks = {i: mask for i, row in enumerate(rows) if (mask := row.steering.mask()) is not None}
    reals = np.array([row.prepared.reals for row in rows], np.float32).reshape(len(rows), 6)
    wholes = np.array([row.prepared.wholes for row in rows], np.int64).reshape(len(rows), 4)
    temperature, top_p, min_p, repetition, presence, frequency = np.ascontiguousarray(reals.T)
    top_k, seeds, choices, num_logprobs = np.ascontiguousarray(wholes.T)
    return SamplePlan(
        temperature=temperature,
        top_k=top_k.astype(np.int32),
        top_p=top_p,
        min_p=min_p,
        seeds=seeds,
        choices=choices.astype(np.int32),
        positions=np.array([row.num_prompt + row.num_outputs for row in rows], np.int64),
        repetition=repetition,
        presence=presence,
        frequency=frequency,
        seen=_lists([(i, row.seen.token_ids, None) for i, row in enumerate(rows) if row.seen]),
        produced=_lists(
            [
                (i, row.produced.token_ids, row.produced.counts)
                for i, row in enumerate(rows)
                if row.produced
            ]
        ),
        bias=_lists(
            [
                (i, row.prepared.bias_ids, row.prepared.biases)
                for i, row in enumerate(rows)
                if row.prepared.bias_ids.size
            ]
        ),
        banned=_lists([(i, ids, None) for i, ids in enumerate(map(_banned, rows)) if ids.size]),
        forced=np.array([_forced(row) for row in rows], np.int32),
        mask_rows=np.array(list(masks), np.int32),
        masks=np.stack(list(masks.values())) if masks else _NO_MASKS,
        num_logprobs=num_logprobs.astype(np.int32),
    )


def _forced(row: Continuation) -> int:
    golden_ids = row.prepared.golden_ids
    golden = golden_ids[row.num_outputs] if row.num_outputs < len(golden_ids) else FREE
    return row.steering.forced() if golden == FREE else golden


def _banned(row: Continuation) -> Int32:
    """Tokens that may not come. Where a grammar leaves only the end, min_tokens gives way."""
    if row.num_outputs < row.prepared.min_tokens and not row.steering.must_end:
        return row.prepared.end_ids
    banned = row.steering.banned()
    return np.array(banned, np.int32) if banned else _NO_IDS


def _lists(parts: list[tuple[int, Int32, Float32 | None]]) -> TokenLists:
    """(row, token ids, weights) of the rows that have any, one after another."""
    if not parts:
        return _NO_TOKENS
    rows, token_ids, weights = zip(*parts, strict=True)
    return TokenLists(
        row_ids=np.repeat(np.array(rows, np.int32), [len(ids) for ids in token_ids]),
        token_ids=np.concatenate(token_ids),
        weights=None if weights[0] is None else np.concatenate(weights),
    )
