"""Drafts and the rows that verify them: the edges. A law has the distributions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.kernels.reference.noise import row_key
from deepinfer.kernels.reference.pick import pick
from deepinfer.sampling import drafts
from deepinfer.sampling.drafts import Drafted, Proposed
from deepinfer.sampling.draw import draw
from deepinfer.sampling.sample import Drawn
from deepinfer.step import SamplePlan
from tests.unit.sampling.plans import draft_tokens, make_plan, random_logits, sample

VOCAB_SIZE = 30
ANCHOR = 17  # its position
FILTERS: list[dict[str, Any]] = [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}]


def plan_of(num_rows: int, **changes: Any) -> SamplePlan:
    """Rows that yield anchors, of different seeds."""
    fields = {"temperature": 1.0, "positions": ANCHOR, "seeds": np.arange(num_rows), **changes}
    return make_plan(num_rows, **fields)


def after(plan: SamplePlan, drafted: Drafted) -> SamplePlan:
    """The plan of the rows that verify the first drafts."""
    draft_ids = drafted.token_ids.numpy().astype(np.int32)
    return replace(plan, positions=plan.positions + 1, draft_ids=draft_ids)


def drafted_by(logits: Tensor, plan: SamplePlan, i: int = 0) -> Drafted:
    return drafted_at(logits, plan, np.arange(len(logits)), i)


def drafted_at(logits: Tensor, plan: SamplePlan, rows: np.ndarray, i: int) -> Drafted:
    """Behind the tokens that these rows yield."""
    return draft_tokens(logits, plan, rows, torch.from_numpy(plan.positions[rows]), i)


def tokens_of(logits: Tensor, plan: SamplePlan, proposed: Proposed | None = None) -> np.ndarray:
    return sample(logits, plan, proposed).token_ids.numpy()


def certain(draft_ids: np.ndarray) -> Proposed:
    """Of drafts that were not drawn."""
    logprobs = torch.full((len(draft_ids), VOCAB_SIZE), -torch.inf)
    logprobs[torch.arange(len(draft_ids)), torch.tensor(draft_ids)] = 0.0
    return Proposed(np.arange(len(draft_ids)), logprobs)


def same(a: Drawn, b: Drawn) -> bool:
    return bool((a.token_ids == b.token_ids).all() and (a.bad_rows == b.bad_rows).all())


@pytest.mark.parametrize("draft_id", [-1, 0, 3, VOCAB_SIZE - 1])
def test_a_draft_changes_no_coupled_token(draft_id: int) -> None:
    """One seed gives two answers, with drafts and without."""
    logits = random_logits(1, 40, VOCAB_SIZE)
    logits[7, 3] = torch.nan
    plan = plan_of(40, top_p=0.9, temperature=np.linspace(0.0, 2.0, 40), banned=[{3: 0}] * 9)
    without = sample(logits, plan)
    assert same(sample(logits, replace(plan, draft_ids=np.full(40, draft_id, np.int32))), without)
    flags = np.zeros(40, np.bool_)
    with_flags = replace(plan, draft_ids=np.full(40, draft_id, np.int32), is_rejection=flags)
    assert same(sample(logits, with_flags), without)


def test_rows_that_need_no_test() -> None:
    """Rejection changes a greedy row, a forced one, or one that no draft follows."""
    logits = random_logits(2, 6, VOCAB_SIZE)
    plan = plan_of(
        6, temperature=[0.0, 0.0, 1.0, 1.0, 1.0, 1.0], forced=[-1, -1, 9, 9, -1, -1], top_k=7
    )
    draft_ids = np.array([3, -1, 4, -1, -1, -1], np.int32)
    tested = replace(plan, draft_ids=draft_ids, is_rejection=np.full(6, True))
    assert same(sample(logits, tested), sample(logits, plan))
    assert same(sample(logits, replace(tested, draft_ids=draft_ids[:0])), sample(logits, plan))


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("i", [0, 1, 4])
def test_coupled_drafts_are_the_targets_own(filters: dict[str, Any], i: int) -> None:
    """C04: a perfect draft module is refused, since its noise is of another position."""
    logits = random_logits(3, 50, VOCAB_SIZE)
    plan = plan_of(50, temperature=0.8, choices=3, **filters)
    drafted = drafted_by(logits, plan, i)
    seeds = torch.from_numpy(plan.seeds)
    key = row_key(seeds, torch.full_like(seeds, 3), torch.full_like(seeds, ANCHOR + 1 + i))
    own = draw(logits, key, temperature=plan.temperature, **filters, pick=pick)
    assert torch.equal(drafted.token_ids, own)
    assert drafted.proposed.rows.size == 0
    found = tokens_of(logits, replace(plan, positions=plan.positions + 1 + i))
    assert (found == own.numpy()).all()


@pytest.mark.parametrize("filters", FILTERS)
def test_a_perfect_draft_stays(filters: dict[str, Any]) -> None:
    """C04: rejection refuses drafts that are drawn from the target's own distribution."""
    logits = random_logits(4, 500, VOCAB_SIZE)
    plan = plan_of(500, is_rejection=True, **filters)
    drafted = drafted_by(logits, plan)
    later = after(plan, drafted)
    found = tokens_of(logits, later, drafted.proposed)
    assert (found == later.draft_ids).all()
    assert (found != tokens_of(logits, replace(later, draft_ids=later.draft_ids[:0]))).any()


def test_drafts_of_every_kind_in_one_call() -> None:
    """C03: a sequence's draft is drawn by the settings of its neighbour."""
    logits = random_logits(5, 12, VOCAB_SIZE)
    kinds = {
        "temperature": [0.0, 0.7, 1.0, 2.0] * 3,
        "is_rejection": [True, False, True, True, False, True] * 2,
        "top_k": [-1, 4, 9] * 4,
        "top_p": [1.0, 0.5, 0.9, 1.0] * 3,
    }
    plan = plan_of(12, **kinds)
    rows = np.array([3, 0, 11, 7, 2, 5])
    together = drafted_at(logits[rows], plan, rows, 1)
    expected = [r for r in range(6) if plan.is_rejection[rows[r]] and plan.temperature[rows[r]]]
    assert together.proposed.rows.tolist() == expected
    for place, row in enumerate(rows):
        alone = drafted_at(logits[[row]], plan, rows[[place]], 1)
        assert alone.token_ids[0] == together.token_ids[place]
        if place in expected:
            logprobs = together.proposed.logprobs[expected.index(place)]
            assert torch.equal(alone.proposed.logprobs[0], logprobs)
            assert logprobs.dtype == torch.float32
            assert logprobs[alone.token_ids[0]].isfinite()
            assert abs(logprobs.exp().sum() - 1) < 1e-6
        if plan.temperature[row] == 0:
            assert together.token_ids[place] == logits[row].argmax()


def test_alone_is_in_a_batch() -> None:
    """F01, F02: neighbours, broken ones too, change a row that is accepted by rejection."""
    logits, of_drafts = random_logits(6, 60, VOCAB_SIZE), random_logits(7, 60, VOCAB_SIZE)
    plan = plan_of(60, is_rejection=np.arange(60) % 4 > 0, top_p=[0.8, 1.0] * 30)
    drafted = drafted_by(of_drafts, plan)
    logits[9, 4] = torch.nan
    together = sample(logits, after(plan, drafted), drafted.proposed)
    assert together.bad_rows.tolist() == [row == 9 for row in range(60)]
    assert together.token_ids[9] == 0
    for row in range(60):
        one = plan_of(1, seeds=row, is_rejection=plan.is_rejection[row], top_p=plan.top_p[row])
        drafted = drafted_by(of_drafts[[row]], one)
        alone = sample(logits[[row]], after(one, drafted), drafted.proposed)
        assert alone.token_ids[0] == together.token_ids[row]


@pytest.mark.parametrize("filters", FILTERS)
def test_a_rejected_draft_does_not_come_back(filters: dict[str, Any]) -> None:
    """C15: a draft that a filter, a ban or a grammar leaves out stays, or comes from what is left;
    or a rejected one is yielded after all and counts as accepted."""
    count = 2_000
    logits = random_logits(8, 1, VOCAB_SIZE).expand(count, -1)
    draft_ids = np.full(count, int(logits[0].argmax()), np.int32)
    plan = plan_of(count, is_rejection=True, draft_ids=draft_ids, **filters)
    found = tokens_of(logits, plan, certain(draft_ids))
    assert 0 < (found == draft_ids).sum() < count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafts, "uniform", lambda key: torch.full(key.shape, 1 - 2.0**-53).double())
        assert (tokens_of(logits, plan, certain(draft_ids)) != draft_ids).all()
        patch.setattr(drafts, "uniform", lambda key: torch.full(key.shape, 2.0**-53).double())
        assert (tokens_of(logits, plan, certain(draft_ids)) == draft_ids).all()
        allowed = [i for i in range(VOCAB_SIZE) if i != draft_ids[0]]
        without = {"is_rejection": True, "draft_ids": draft_ids, **filters}
        masked = plan_of(count, allowed=allowed, **without)
        banned = plan_of(count, banned=[{int(draft_ids[0]): 0}] * count, **without)
        for out in (masked, banned):
            assert (tokens_of(logits, out, certain(draft_ids)) != draft_ids).all()


def test_residual_of_nothing() -> None:
    """Rounding leaves nothing of q, and the token is one that may not come, or always the first."""
    count = 3_000
    logits = random_logits(9, 1, VOCAB_SIZE).expand(count, -1)
    draft_ids = np.full(count, int(logits[0].argmax()), np.int32)
    plan = plan_of(count, is_rejection=True, draft_ids=draft_ids, top_k=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafts, "_residual", lambda q, p: torch.zeros_like(q))
        patch.setattr(drafts, "uniform", lambda key: torch.ones(key.shape).double())
        found = tokens_of(logits, plan, certain(draft_ids))
    kept = logits[0].topk(4)
    shares = torch.tensor([(found == int(i)).mean() for i in kept.indices])
    assert (shares - kept.values.softmax(-1)).abs().max() < 5 * (0.25 / count) ** 0.5


@pytest.mark.parametrize("logprob", [-torch.inf, torch.nan])
def test_what_cannot_have_been_drawn(logprob: float) -> None:
    """A14: a draft module gone wrong makes a bad row of a good one, or a token that no filter
    would let pass."""
    logits = random_logits(10, 200, VOCAB_SIZE)
    proposed = Proposed(np.arange(200), torch.full((200, VOCAB_SIZE), logprob))
    plan = plan_of(200, is_rejection=True, draft_ids=2, top_k=4)
    found = sample(logits, plan, proposed)
    assert not found.bad_rows.any()
    likeliest = logits.topk(4).indices
    assert (found.token_ids[:, None] == likeliest).any(-1).all()


def test_broken_drafts_are_in_the_vocabulary() -> None:
    """A14: NaN from the draft module makes a token that does not exist."""
    logits = torch.full((4, VOCAB_SIZE), torch.nan)
    logits[3] = -torch.inf
    plan = plan_of(4, temperature=[0.0, 1.0, 1.0, 1.0], is_rejection=[False, False, True, True])
    drafted = drafted_by(logits, plan)
    assert ((drafted.token_ids >= 0) & (drafted.token_ids < VOCAB_SIZE)).all()
    good = random_logits(11, 4, VOCAB_SIZE)
    assert not sample(good, after(plan, drafted), drafted.proposed).bad_rows.any()


def test_another_anchor_another_draft() -> None:
    """A position is drafted again with the numbers of the first time; or a draft is told where its
    anchor stands, and goes by the position of the plan's row."""
    logits = torch.zeros(2_000, VOCAB_SIZE)
    plan = plan_of(2_000, is_rejection=True)
    first = drafted_by(logits, plan, 1).token_ids
    second = drafted_by(logits, replace(plan, positions=plan.positions + 1), 0).token_ids
    assert abs((first == second).double().mean() * VOCAB_SIZE - 1) < 5 * (VOCAB_SIZE / 2_000) ** 0.5
    assert torch.equal(first, drafted_by(logits, plan, 1).token_ids)
    anchors = torch.from_numpy(plan.positions + 1)
    told = draft_tokens(logits, plan, np.arange(2_000), anchors, 0).token_ids
    assert torch.equal(told, second)


def test_what_was_drawn_from_is_needed() -> None:
    """A row is verified against another row's distribution, or against none."""
    logits = random_logits(12, 3, VOCAB_SIZE)
    plan = plan_of(3, is_rejection=True, draft_ids=[1, -1, 2])
    some = certain(np.array([1, 0, 2]))
    for rows in ([0, 1], [1, 2], [0]):
        with pytest.raises((AssertionError, IndexError)):
            sample(logits, plan, Proposed(np.array(rows), some.logprobs[rows]))
    with pytest.raises(AssertionError):
        sample(logits, plan)
    only = Proposed(np.array([0, 2]), some.logprobs[[0, 2]])
    assert same(sample(logits, plan, only), sample(logits, plan, some))


def test_input_is_left_alone() -> None:
    """G09: log-probabilities are taken from logits that drafting or verifying has changed."""
    logits, of_drafts = random_logits(13, 5, VOCAB_SIZE), random_logits(14, 5, VOCAB_SIZE)
    copies = logits.clone(), of_drafts.clone()
    plan = plan_of(5, is_rejection=True, temperature=1.0)
    drafted = drafted_by(of_drafts, plan)
    before = drafted.proposed.logprobs.clone()
    sample(logits, after(plan, drafted), drafted.proposed)
    assert torch.equal(logits, copies[0])
    assert torch.equal(of_drafts, copies[1])
    assert torch.equal(drafted.proposed.logprobs, before)
