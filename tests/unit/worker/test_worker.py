"""The worker: launch and sample belong together; what it returns belongs to the rows asked for."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deepinfer.engine.continuation import begin, next_rows, prepare
from deepinfer.engine.sample_plan import build_sample_plan
from deepinfer.model.network import Network
from deepinfer.sampling_params import SamplingParams
from deepinfer.step import SamplePlan, Scores, StepPlan, StepResult
from deepinfer.worker.pools import make_pools
from deepinfer.worker.worker import Worker
from tests.laws.engines import run_plan
from tests.laws.networks import open_source

IDS = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def network(tiny_dir: Path) -> Network:
    return open_source(tiny_dir).network("fp32")


@pytest.fixture
def worker(network: Network) -> Worker:
    return Worker(network, make_pools(network.setup.config, 4, 3))


def int32(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def plan_of(sampled: list[int], scored: list[int] | None = None, top: int = 0) -> StepPlan:
    """Two sequences of 5 and 2 rows."""
    scored = scored or []
    return StepPlan(
        slot_ids=int32(2, 0),
        num_computed=int32(0, 0),
        num_rows=int32(5, 2),
        block_tables=np.array([[3], [1]], np.int32),
        decoder_starts=int32(0, 0),
        window_starts=int32(0, 0),
        entry_starts=int32(0, 0),
        token_ids=int32(*IDS, 50, 51),
        sample_rows=int32(*sampled),
        score_rows=int32(*scored),
        score_ids=int32(*[100 + row for row in scored]),
        score_top=top,
    )


def greedy(count: int, **fields: object) -> SamplePlan:
    params = SamplingParams(temperature=0, **fields)
    prepared = prepare(params, seed=0, choice=0, eos_ids=[])
    return build_sample_plan(next_rows([begin(prepared, IDS)] * count))


def test_tokens_belong_to_the_rows(worker: Worker, network: Network) -> None:
    """A token is drawn from another row's logits."""
    logits = run_plan(worker, plan_of([]))
    best = logits.argmax(-1)
    assert len(set(best.tolist())) > 4
    for rows in ([4], [4, 6], [0, 1, 2, 3, 4, 5, 6]):
        worker.launch(plan_of(rows))
        result = worker.sample(greedy(len(rows)))
        assert result.token_ids.tolist() == best[rows].tolist()
        assert result.token_ids.dtype == np.int32
        assert not result.bad_rows.any()
        assert result.logprobs is None
        assert result.prompt_scores is None
    assert network.training is False


def test_no_token_to_draw(worker: Worker) -> None:
    """A step of nothing but the beginnings of prompts fails over an empty list."""
    worker.launch(plan_of([]))
    result = worker.sample(greedy(0))
    assert result.token_ids.shape == result.bad_rows.shape == (0,)
    assert result.logprobs is None


@pytest.mark.parametrize("top", [0, 3])
def test_scores_belong_to_the_rows(top: int, worker: Worker) -> None:
    """G10: a prompt's score is of another row, or of another token."""
    logprobs = run_plan(worker, plan_of([])).log_softmax(-1)
    rows = [0, 2, 5]
    worker.launch(plan_of([6], rows, top))
    scores = worker.sample(greedy(1)).prompt_scores
    assert scores is not None
    expected = logprobs[rows, [100 + row for row in rows]]
    assert torch.equal(torch.from_numpy(scores.chosen), expected)
    assert scores.top_ids.shape == (3, top)
    assert torch.equal(torch.from_numpy(scores.top_logprobs), logprobs[rows].topk(top).values)


def test_many_scores_are_those_of_few(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that are looked at together change a score, or the last of them are left out."""
    worker.launch(plan_of([6], [0, 1, 2, 3, 5], 2))
    whole = worker.sample(greedy(1)).prompt_scores
    monkeypatch.setattr("deepinfer.worker.worker._SCORE_ROWS", 2)
    worker.launch(plan_of([6], [0, 1, 2, 3, 5], 2))
    parts = worker.sample(greedy(1)).prompt_scores
    assert whole is not None
    assert parts is not None
    for name in ("chosen", "ranks", "top_ids", "top_logprobs"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))


def test_running_again_changes_nothing(worker: Worker) -> None:
    """K01: rows that are computed once more leave other numbers behind than the first time."""
    first = run_plan(worker, plan_of([]))
    again = run_plan(worker, plan_of([]))
    assert torch.equal(first, again)
    goes_on = replace(
        plan_of([]),
        num_computed=int32(5, 2),
        num_rows=int32(1, 1),
        token_ids=int32(10, 52),
    )
    once = run_plan(worker, goes_on)
    assert torch.equal(run_plan(worker, goes_on), once)


def test_no_gradients(worker: Worker) -> None:
    """Each step keeps all its activations for a backward pass that never comes."""
    assert not run_plan(worker, plan_of([])).requires_grad
    assert not any(pool.requires_grad for pool in worker.pools.window.values())


def test_order_of_calls(worker: Worker) -> None:
    """Tokens are drawn twice from one step, or never, and nobody notices."""
    with pytest.raises(AssertionError):
        worker.sample(greedy(0))
    worker.launch(plan_of([4]))
    with pytest.raises(AssertionError):
        worker.launch(plan_of([4]))
    worker.sample(greedy(1))
    with pytest.raises(AssertionError):
        worker.sample(greedy(1))


def next_plan(*follows: int) -> StepPlan:
    """One row of the second sequence, behind what the step before drew."""
    return replace(
        plan_of([0]),
        slot_ids=int32(0),
        num_computed=int32(2),
        num_rows=int32(1),
        block_tables=np.array([[1]], np.int32),
        decoder_starts=int32(0),
        token_ids=int32(0),
        follows=int32(*follows),
    )


def test_results_that_are_fetched_late(worker: Worker) -> None:
    """K03: the results of a step change when the next one is launched before anybody has looked."""
    worker.launch(plan_of([4, 6], [0, 2, 5], 3))
    expected = worker.sample(greedy(2, logprobs=2))
    worker.launch(plan_of([4, 6], [0, 2, 5], 3))
    wait = worker.start_sample(greedy(2, logprobs=2))
    worker.launch(next_plan(1))
    worker.start_sample(greedy(1, logprobs=2))
    found = wait()
    for one, other in ((found, expected), *zip(scores(found), scores(expected), strict=True)):
        for name, values in vars(one).items():
            if isinstance(values, np.ndarray):
                assert np.array_equal(values, getattr(other, name))


def scores(result: StepResult) -> tuple[Scores, Scores]:
    assert result.logprobs is not None
    assert result.prompt_scores is not None
    return result.logprobs, result.prompt_scores


def test_nothing_follows_a_lost_step(worker: Worker) -> None:
    """K04: after an interrupt a step goes on with tokens of before, or none can be launched."""
    worker.launch(plan_of([4, 6]))
    worker.sample(greedy(2))
    worker.launch(next_plan(1))
    worker.lose_step()
    with pytest.raises(AssertionError):
        worker.launch(next_plan(1))
    worker.launch(next_plan(-1))


def test_a_bad_row(worker: Worker, network: Network) -> None:
    """A14: a row that is not finite makes the others bad, or passes for good."""
    expected = run_plan(worker, plan_of([]))[4].argmax()
    weight = network.embed.weight
    kept = weight[51].clone()
    with torch.no_grad():
        weight[51] = torch.nan
    try:
        worker.launch(plan_of([4, 6], [0, 5], 2))
        result = worker.sample(greedy(2, logprobs=1))
    finally:
        with torch.no_grad():
            weight[51] = kept
    assert result.bad_rows.tolist() == [False, True]
    assert result.token_ids[0] == expected
    assert result.logprobs is not None
    assert np.isfinite(result.logprobs.chosen).all()
    assert result.prompt_scores is not None
    assert np.isfinite(result.prompt_scores.chosen).all()
