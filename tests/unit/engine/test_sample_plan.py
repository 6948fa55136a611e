"""Sampling plans: what each request asked for, in its own row."""

import numpy as np
import pytest

from deepinfer.engine.continuation import Continuation, begin, next_rows, prepare
from deepinfer.engine.sample_plan import build_sample_plan
from deepinfer.engine.token_counts import TokenCounts
from deepinfer.sampling_params import SamplingParams
from deepinfer.step import TokenLists
from tests.effort import effort

EOS_IDS = (1,)


def start(
    params: SamplingParams, prompt: list[int], outputs: list[int] | None = None
) -> Continuation:
    return begin(prepare(params, seed=5, choice=2, eos_ids=EOS_IDS), prompt, outputs or [])


def pairs(lists: TokenLists) -> set[tuple[int, int, float]]:
    """(row, token, weight); a missing weight is 0."""
    weights = np.zeros(len(lists.row_ids)) if lists.weights is None else lists.weights
    found = [*zip(lists.row_ids.tolist(), lists.token_ids.tolist(), weights.tolist(), strict=True)]
    assert len(found) == len(set(found))
    return set(found)


def test_rows_have_their_own_numbers() -> None:
    """A number goes to the wrong field, or to the neighbour."""
    params = SamplingParams(
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=0.75,
        frequency_penalty=-1.25,
        logprobs=3,
    )
    plan = build_sample_plan(
        next_rows([start(SamplingParams(), [4, 5]), start(params, [6], [7, 8])])
    )
    assert plan.temperature.tolist() == [1.0, 0.5]
    assert plan.top_k.tolist() == [-1, 7]
    assert plan.top_p.tolist() == [1.0, 0.25]
    assert plan.min_p.tolist() == [0.0, 0.125]
    assert plan.repetition.tolist() == [1.0, 1.5]
    assert plan.presence.tolist() == [0.0, 0.75]
    assert plan.frequency.tolist() == [0.0, -1.25]
    assert plan.num_logprobs.tolist() == [-1, 3]
    assert plan.seeds.tolist() == [5, 5]
    assert plan.choices.tolist() == [2, 2]
    assert plan.positions.tolist() == [2, 3]
    assert plan.forced.tolist() == [-1, -1]


def test_types() -> None:
    """The device gets other types than the seam promises, or fails over a step with no rows."""
    reals = ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")
    int32s = ("top_k", "choices", "forced", "num_logprobs")
    for rows in ([], [start(SamplingParams(), [3])]):
        plan = build_sample_plan(next_rows(rows))
        for names, dtype in ((reals, np.float32), (int32s, np.int32)):
            assert all(getattr(plan, name).dtype == dtype for name in names)
        assert plan.seeds.dtype == plan.positions.dtype == np.int64
        for name in (*reals, *int32s, "seeds", "positions"):
            assert getattr(plan, name).shape == (len(rows),)
        for name in ("seen", "produced", "bias", "banned"):
            assert pairs(getattr(plan, name)) == set()


@pytest.mark.parametrize(("seed", "word"), [(0, 0), (2**63 - 1, 2**63 - 1), (2**64 - 1, -1)])
def test_seed_as_a_word(seed: int, word: int) -> None:
    """A seed above 2**63 does not fit into the array, or becomes another one."""
    prepared = prepare(SamplingParams(), seed=seed, choice=0, eos_ids=EOS_IDS)
    assert build_sample_plan(next_rows([begin(prepared, [3])])).seeds.tolist() == [word]


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_only_what_was_generated_is_counted(penalty: str) -> None:
    """G12: penalties count the prompt, or not the last token."""
    row = start(SamplingParams(**{penalty: 0.5}), [9, 9, 8], [8, 7, 8])
    assert pairs(build_sample_plan(next_rows([row])).produced) == {(0, 8, 2.0), (0, 7, 1.0)}
    row.add(7)
    plan = build_sample_plan(next_rows([start(SamplingParams(), [7], [7]), row]))
    assert pairs(plan.produced) == {(1, 8, 2.0), (1, 7, 2.0)}
    assert pairs(plan.seen) == set()
    assert plan.positions.tolist() == [2, 7]


def test_seen_is_prompt_and_output() -> None:
    """The repetition penalty forgets the prompt, or counts a token twice."""
    row = start(SamplingParams(repetition_penalty=1.1), [9, 9, 8], [8, 7])
    plan = build_sample_plan(next_rows([row]))
    assert pairs(plan.seen) == {(0, 9, 0.0), (0, 8, 0.0), (0, 7, 0.0)}
    assert pairs(plan.produced) == set()


def test_a_plan_stays_what_it_was() -> None:
    """G12: the next token is counted into a plan that is still being worked on."""
    row = start(SamplingParams(frequency_penalty=1.0, repetition_penalty=2.0), [3], [4])
    plan = build_sample_plan(next_rows([row]))
    before = pairs(plan.produced), pairs(plan.seen)
    row.add(4)
    assert (pairs(plan.produced), pairs(plan.seen)) == before


def test_counts() -> None:
    """A count is lost when the arrays grow."""
    counts = TokenCounts()
    drawn = np.random.default_rng(0).integers(0, 300, 2000)
    for token_id in drawn.tolist():
        counts.add(token_id)
    ids, expected = np.unique(drawn, return_counts=True)
    found = dict(zip(counts.token_ids.tolist(), counts.counts.tolist(), strict=True))
    assert found == dict(zip(ids.tolist(), expected.tolist(), strict=True))


def test_min_tokens_holds_back_every_end() -> None:
    """G13: an end token that only the model, or only the request, knows of is not held back."""
    row = start(SamplingParams(min_tokens=2, stop_token_ids=[6, 5]), [3])
    expected = {(0, 1, 0.0), (0, 5, 0.0), (0, 6, 0.0)}
    for _ in range(2):
        assert pairs(build_sample_plan(next_rows([row])).banned) == expected
        row.add(9)
    assert pairs(build_sample_plan(next_rows([row])).banned) == set()


def test_an_ignored_end_is_no_end() -> None:
    """G13: what is held back differs from what ends the generation."""
    row = start(SamplingParams(min_tokens=2, ignore_eos=True, stop_token_ids=[6]), [3])
    assert row.prepared.end_ids.tolist() == [6]
    assert pairs(build_sample_plan(next_rows([row])).banned) == {(0, 6, 0.0)}
    none = start(SamplingParams(min_tokens=2, ignore_eos=True), [3])
    assert pairs(build_sample_plan(next_rows([none, row])).banned) == {(1, 6, 0.0)}


def test_golden_tokens() -> None:
    """A forced token is one place off, or goes on after the end of the list."""
    row = start(SamplingParams(golden_token_ids=[7, -1, 8]), [3, 3])
    forced = []
    for _ in range(4):
        forced += build_sample_plan(next_rows([row])).forced.tolist()
        row.add(9)
    assert forced == [7, -1, 8, -1]


def test_bias() -> None:
    """G06: a bias goes to another row, or is rounded to a whole number."""
    rows = [
        start(SamplingParams(logit_bias=bias), [3]) for bias in ({4: -100, 6: 0.5}, None, {4: 1})
    ]
    assert pairs(build_sample_plan(next_rows(rows)).bias) == {
        (0, 4, -100.0),
        (0, 6, 0.5),
        (2, 4, 1.0),
    }


@pytest.mark.parametrize("temperature", [0, 1e-12, 9e-6])
def test_greedy_is_temperature_zero(temperature: float) -> None:
    """G01: a temperature near zero is divided by."""
    plan = build_sample_plan(next_rows([start(SamplingParams(temperature=temperature), [3])]))
    assert plan.temperature.tolist() == [0.0]


def test_extreme_numbers_fit_into_float32() -> None:
    """G01: a temperature or penalty that float32 cannot hold becomes infinity or zero."""
    rows = [
        start(SamplingParams(temperature=1e300, repetition_penalty=penalty), [3])
        for penalty in (1e300, 1e-300)
    ]
    plan = build_sample_plan(next_rows(rows))
    assert np.isfinite(plan.temperature).all()
    assert np.isfinite(plan.repetition).all()
    assert (plan.repetition > 0).all()


def test_a_step_of_64_rows_is_quick() -> None:
    """Sampling plans take longer than the scheduler: the GPU waits for the host."""
    rows = [start(SamplingParams(seed=i), [*range(100)], [*range(500)]) for i in range(64)]
    with effort(5):
        for _ in range(100):  # of 0.2 ms each
            build_sample_plan(next_rows(rows))
