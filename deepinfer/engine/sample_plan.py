"""`SamplePlan` of a step: the rows in which tokens are chosen, as arrays.

Knows rows. Does not know requests, or how a token is drawn.
"""

from collections.abc import Sequence

import numpy as np

from deepinfer.engine.continuation import Row
from deepinfer.sampling_params import FREE
from deepinfer.step import NO_IDS, Float32, Int32, SamplePlan, TokenLists

_NO_TOKENS = TokenLists(NO_IDS, NO_IDS)
_NO_MASKS = np.empty((0, 0), np.int32)


def build_sample_plan(rows: Sequence[Row]) -> SamplePlan:
    """How the token of each of `rows` is chosen, in their order."""
    masks = {i: row.mask for i, row in enumerate(rows) if row.mask is not None}
    reals = np.array([row.prepared.reals for row in rows], np.float32).reshape(len(rows), 6)
    wholes = np.array([row.prepared.wholes for row in rows], np.int64).reshape(len(rows), 4)
    temperature, top_p, min_p, repetition, presence, frequency = np.ascontiguousarray(reals.T)
    top_k, seeds, choices, num_logprobs = np.ascontiguousarray(wholes.T)
    draft_ids = np.array([row.draft_id for row in rows], np.int32)
    return SamplePlan(
        temperature=temperature,
        top_k=top_k.astype(np.int32),
        top_p=top_p,
        min_p=min_p,
        seeds=seeds,
        choices=choices.astype(np.int32),
        positions=np.array([row.position for row in rows], np.int64),
        repetition=repetition,
        presence=presence,
        frequency=frequency,
        seen=_lists([(i, row.seen.token_ids, None) for i, row in enumerate(rows) if row.seen]),
        produced=_lists([(i, *row.produced) for i, row in enumerate(rows) if row.produced]),
        bias=_lists(
            [
                (i, row.prepared.bias_ids, row.prepared.biases)
                for i, row in enumerate(rows)
                if row.prepared.bias_ids.size
            ]
        ),
        banned=_lists([(i, row.banned, None) for i, row in enumerate(rows) if row.banned.size]),
        forced=np.array([row.forced for row in rows], np.int32),
        mask_rows=np.array(list(masks), np.int32),
        masks=np.stack(list(masks.values())) if masks else _NO_MASKS,
        num_logprobs=num_logprobs.astype(np.int32),
        draft_ids=draft_ids if (draft_ids != FREE).any() else NO_IDS,
        is_rejection=np.array([row.prepared.is_rejection for row in rows], np.bool_),
    )


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
