"""The steps of sampling put together: rows of every kind in one batch, each as if alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.sampling.sample import Drawn
from tests.unit.sampling.plans import LISTS, PER_ROW, make_plan, random_logits, sample

VOCAB_SIZE = 67  # not a multiple of any vector: the last elements take a path of their own

TOKENS = st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.integers(1, 5), max_size=4)
ROW = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 7.0]),
        "top_k": st.sampled_from([-1, 0, 1, 5, VOCAB_SIZE, 1000]),
        "top_p": st.sampled_from([1e-6, 0.5, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1, 1.0]),
        "seeds": st.integers(-(2**63), 2**63 - 1),
        "choices": st.integers(0, 3),
        "positions": st.integers(0, 2**20),
        "repetition": st.sampled_from([1.0, 1.7]),
        "presence": st.sampled_from([0.0, 1.5]),
        "frequency": st.sampled_from([0.0, -0.5]),
        "forced": st.sampled_from([-1, -1, -1, 3]),
        "num_logprobs": st.integers(-1, 4),
        **dict.fromkeys(LISTS, TOKENS),
    }
)


def run(logits: Tensor, rows: list[dict[str, Any]]) -> Drawn:
    return sample(
        logits, make_plan(len(rows), **{name: [r[name] for r in rows] for name in rows[0]})
    )


def asked_scores(result: Drawn, row: int, num_logprobs: int) -> list[bytes]:
    """The row's scores to the bit, or nothing if it did not ask."""
    if num_logprobs < 0:
        return []
    assert result.logprobs is not None
    chosen, ranks, top_ids, top_logprobs = (column.numpy() for column in result.logprobs)
    num_top = max(num_logprobs, 0)
    return [
        chosen[row].tobytes(),
        ranks[row].tobytes(),
        top_ids[row, :num_top].tobytes(),
        top_logprobs[row, :num_top].tobytes(),
    ]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rows=st.lists(ROW, min_size=2, max_size=9), seed=st.integers(0, 10**6), data=st.data())
def test_alone_is_in_a_batch(rows: list[dict[str, Any]], seed: int, data: st.DataObject) -> None:
    """F01, F02, G02: neighbours, their parameters, or the place in the batch change a row."""
    logits = random_logits(seed, len(rows), VOCAB_SIZE)
    logits[0, 5] = torch.nan  # A14: not even a broken row changes the others
    order = data.draw(st.permutations(range(len(rows))))
    together = run(logits[list(order)], [rows[i] for i in order])
    for place, row in enumerate(order):
        alone = run(logits[row : row + 1], [rows[row]])
        asked = rows[row]["num_logprobs"]
        assert together.token_ids[place] == alone.token_ids[0]
        assert together.bad_rows[place] == alone.bad_rows[0] == (row == 0)
        assert asked_scores(together, place, asked) == asked_scores(alone, 0, asked)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (torch.exp, torch.float64),
        (lambda x: x.abs().log(), torch.float64),
        (lambda x: x / 1.3, torch.float64),
        (lambda x: x.log_softmax(-1), torch.float32),
        (lambda x: x.log_softmax(-1), torch.float64),
        (lambda x: x.softmax(-1), torch.float64),
    ],
)
@pytest.mark.parametrize("vocab_size", [1, 3, 7, 8, 65, 512, 1001, 4099])
def test_what_rows_are_made_of(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype, vocab_size: int
) -> None:
    """F01: a function rounds differently by the place in memory (sigmoid of torch does), so that a
    row's bits depend on how many others there are."""
    logits = random_logits(vocab_size, 19, vocab_size).to(dtype)
    together = function(logits)
    for rows in (slice(0, 1), slice(1, 2), slice(2, 5), slice(3, 19), slice(18, 19)):
        assert torch.equal(function(logits[rows].clone()), together[rows])


def test_broken_rows() -> None:
    """A14: one row of NaN ends every request, or a bad row is taken for a good one."""
    logits = random_logits(1, 7, VOCAB_SIZE)
    logits[1, 9] = torch.nan
    logits[2] = -torch.inf
    logits[3, 0] = torch.inf
    logits[4] = torch.nan
    logits[5, 1:] = -torch.inf
    good = sample(logits[[0, 5, 6]], make_plan(3, temperature=1.0, top_k=5, num_logprobs=2))
    for changes in (
        {},
        {"forced": [-1, 5, 5, 5, -1, -1, -1]},
        {"banned": [{}, {9: 0}, {}, {0: 0}]},
    ):
        plan = make_plan(7, temperature=1.0, top_k=5, num_logprobs=2, **changes)
        result = sample(logits, plan)
        assert result.bad_rows.tolist() == [False, True, True, True, True, False, False]
        assert result.token_ids[[1, 2, 3, 4]].tolist() == [0] * 4
        assert result.token_ids[[0, 5, 6]].tolist() == good.token_ids.tolist()
        assert result.logprobs is not None
        assert good.logprobs is not None
        assert result.logprobs.chosen[[0, 5, 6]].tolist() == good.logprobs.chosen.tolist()
        assert result.logprobs.chosen.isfinite().all()
        assert result.logprobs.top_logprobs.isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_to_choose(temperature: float) -> None:
    """G02: bans that leave no token end the process, or a banned token is drawn."""
    everything = dict.fromkeys(range(VOCAB_SIZE), 0.0)
    logits = random_logits(2, 3, VOCAB_SIZE)
    plan = make_plan(3, temperature=temperature, top_p=0.5, banned=[everything, {}, everything])
    result = sample(logits, plan)
    assert result.bad_rows.tolist() == [True, False, True]
    assert result.token_ids[0] == result.token_ids[2] == 0
    # A forced token needs nobody's leave.
    result = sample(logits, replace(plan, forced=np.array([7, -1, -1], np.int32)))
    assert result.bad_rows.tolist() == [False, False, True]
    assert result.token_ids[0] == 7


def test_greedy_and_random_rows_with_masks() -> None:
    """G02: a greedy row is divided by its marker temperature, and minus infinity becomes NaN."""
    logits = random_logits(3, 4, VOCAB_SIZE)
    all_but = [dict.fromkeys(set(range(VOCAB_SIZE)) - {row, row + 10}, 0.0) for row in range(4)]
    for bias in ([], [{0: -100.0}] * 4):
        plan = make_plan(4, temperature=[0.0, 1.0, 0.0, 2.0], banned=all_but, bias=bias)
        result = sample(logits, plan)
        assert not result.bad_rows.any()
        for row, token_id in enumerate(result.token_ids.tolist()):
            assert token_id in (row, row + 10)


def test_logprobs_are_the_models_own() -> None:
    """G09: temperature, filters, penalties and bias change the reported values."""
    logits = random_logits(4, 1, VOCAB_SIZE)
    settings: list[dict[str, Any]] = [
        {},
        {"temperature": 0.3},
        {"temperature": 5.0, "top_k": 2, "top_p": 0.5, "min_p": 0.3},
        {"repetition": 3.0, "seen": [{3: 1}], "frequency": 1.0, "produced": [{3: 9}]},
        {"bias": [{3: -100.0, 4: 100.0}]},
        {"banned": [{3: 0}]},
    ]
    results = [
        sample(logits, make_plan(1, forced=3, num_logprobs=3, **changes)) for changes in settings
    ]
    expected = logits.log_softmax(-1)[0, 3]
    for result in results:
        assert result.token_ids.tolist() == [3]
        assert result.logprobs is not None
        assert result.logprobs.chosen.tolist() == [expected]
        assert results[0].logprobs is not None
        assert result.logprobs.top_ids.tolist() == results[0].logprobs.top_ids.tolist()


def test_rows_that_ask_for_nothing_get_nothing() -> None:
    """G11: the places of rows that did not ask hold what was there before."""
    logits = random_logits(5, 3, VOCAB_SIZE)
    assert sample(logits, make_plan(3)).logprobs is None
    scores = sample(logits, make_plan(3, num_logprobs=[-1, 2, 0])).logprobs
    assert scores is not None
    assert scores.top_ids[0].tolist() == [-1, -1]
    assert scores.ranks.tolist() == [0, 1, 1]
    only_chosen = sample(logits, make_plan(3, num_logprobs=0)).logprobs
    assert only_chosen is not None
    assert only_chosen.top_ids.shape == (3, 0)


def test_types_of_the_result() -> None:
    """The host gets other arrays than it was promised, or a step without sampled rows fails."""
    for num_rows in (0, 1, 3):
        for temperature in (0.0, 1.0):
            plan = make_plan(num_rows, temperature=temperature, top_k=3)
            result = sample(random_logits(6, num_rows, VOCAB_SIZE), plan)
            assert result.token_ids.dtype == torch.int64
            assert result.bad_rows.dtype == torch.bool
            assert result.token_ids.shape == result.bad_rows.shape == (num_rows,)


def test_plan_may_be_read_only() -> None:
    """Arrays that came through a message cannot be written to, and torch warns or fails."""
    plan = make_plan(2, temperature=1.0, bias=[{1: 1.0}])
    for name in PER_ROW:
        getattr(plan, name).flags.writeable = False
    sample(random_logits(7, 2, VOCAB_SIZE), plan)
