"""Faults of drafts that users of such engines have reported, one by one."""

from typing import Any

import pytest
import torch

from deepinfer.engine.engine import Engine
from deepinfer.model.batch import FreshStore, make_batch
from deepinfer.model.network import Network
from deepinfer.sampling_params import SamplingParams
from deepinfer.scheduler.request import Request
from deepinfer.tokenizer.tokenizer import Tokenizer
from tests.laws.drafters import (
    SCRIPTS,
    Place,
    Script,
    answers_of,
    coin,
    drafting,
    perfect,
    play,
    with_drafter,
)
from tests.laws.engines import Drafts, Job, make_engine, poison_free, run_jobs, run_watched
from tests.laws.networks import run_draft
from tests.laws.test_engine import (
    some_ids,
)


@pytest.fixture(scope="module")
def network(tiny_networks: dict[str, Network]) -> Network:
    return tiny_networks["fp32"]


def greedy_jobs(lengths: list[int], **params: Any) -> list[Job]:
    asked: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 18} | params
    return [Job(some_ids(length, length), SamplingParams(**asked)) for length in lengths]


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 4, 5])
def test_c01_c02_c07_every_depth_and_phase(
    network: Network, tokenizer: Tokenizer, num_drafts: int
) -> None:
    """C01, C02, C07: one depth corrupts what is compressed, at one phase of the ratios and rings.

    24 lengths of prompts, so every phase of the ratios 1 and 2, of the slack of 8 rows and of the
    ring of 16 + 8; drafts right with a chance of 50 to 90 %.
    """
    jobs = greedy_jobs(list(range(1, 25)), logprobs=1)
    sizes = {"num_slots": 24}
    expected = run_jobs(make_engine(network, **sizes), tokenizer, jobs)
    engine = drafting(network, Drafts(num_drafts), **sizes)
    play(engine, coin(answers_of(expected), seed=num_drafts))
    assert run_watched(engine, tokenizer, jobs, poison_free) == expected
    stats = engine.drafting.stats
    assert 0 < stats.num_accepted < stats.num_verified


def test_c03_joining_and_leaving(network: Network, tokenizer: Tokenizer) -> None:
    """C03: requests that decode together get each other's drafts or windows."""
    jobs = [
        Job(some_ids(n, 5 + 7 * n), SamplingParams(temperature=0, max_tokens=40), arrival=3 * n)
        for n in range(6)
    ]
    expected = [run_jobs(make_engine(network), tokenizer, [job])[0] for job in jobs]
    engine = play(drafting(network, Drafts(5)), coin(answers_of(expected)))
    assert run_watched(engine, tokenizer, jobs, poison_free) == expected


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 4, 5])
def test_c04_perfect_drafts_are_all_accepted(
    network: Network, tokenizer: Tokenizer, num_drafts: int
) -> None:
    """C04: drafts behind the first one are looked at in the wrong row or position: 100 % accepted
    at each place, and 1 + num_drafts tokens a step."""
    jobs = greedy_jobs([1, 9, 16, 30], max_tokens=1 + 4 * (1 + num_drafts))
    expected = run_jobs(make_engine(network), tokenizer, jobs)
    engine = play(drafting(network, Drafts(num_drafts)), perfect(answers_of(expected)))
    assert run_jobs(engine, tokenizer, jobs) == expected
    stats = engine.drafting.stats
    assert stats.verified_by_slot.tolist() == [4 * 4] * num_drafts
    assert stats.accepted_by_slot.tolist() == [4 * 4] * num_drafts
    assert stats.num_steps == 1 + 4


@pytest.mark.parametrize("num_drafts", [2, 5])
def test_c04_drafts_are_the_modules_own(
    network: Network, tokenizer: Tokenizer, num_drafts: int
) -> None:
    """C04: in the engine the module sees other windows or positions than in a plain run of it:
    shortened blocks, prompts shorter and longer than its window, behind rejected drafts."""
    jobs = greedy_jobs([1, 3, 20, 40], max_tokens=12)
    engine = drafting(network, Drafts(num_drafts), num_rows=16)
    seen: list[tuple[list[int], list[int], Any]] = []
    propose = Request.propose

    def record(request: Request, draft_ids: list[int], rates: Any) -> None:
        seen.append((list(request.tokens), draft_ids, rates))
        propose(request, draft_ids, rates)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Request, "propose", record)
        run_watched(engine, tokenizer, jobs, poison_free)
    assert len(seen) > 30
    for tokens, draft_ids, rates in seen[::3]:
        with torch.no_grad():
            batch = make_batch(network.setup.config, torch.tensor([tokens[:-1]]))
            features = network.run(batch, FreshStore()).features
        plain = run_draft(
            network,
            features,
            torch.tensor([len(tokens) - 1]),
            torch.tensor(tokens[-1:]),
            lambda logits, i: logits.argmax(-1),
            num_drafts,
        ).proposal
        assert plain.token_ids[0].tolist() == draft_ids
        expected = plain.confidence[0].sigmoid().cumprod(0)
        torch.testing.assert_close(torch.tensor(rates), expected.double(), rtol=1e-4, atol=1e-5)


def state_of(engine: Engine, request: Request) -> dict[Any, torch.Tensor]:
    """All that is stored of the request's computed tokens and may be read again."""
    pools, config, end = (
        engine.worker.pools,
        engine.worker.network.setup.config,
        request.num_computed,
    )
    ring = config.sliding_window + 8
    windows = torch.arange(max(0, end - config.sliding_window), end) % ring
    found = {
        (name, layer): pool[request.slot_id][windows].clone()
        for name in ("window", "draft_window")
        for layer, pool in getattr(pools, name).items()
    }
    for layer, pool in pools.pending.items():
        found["pending", layer] = pool[request.slot_id][(end - 1) % 8].clone()
    back = torch.arange(max(0, end - config.engram_max_ngram_size + 1), end) % 8
    found["tokens", 0] = pools.token_ids[request.slot_id][back].clone()
    for name in ("entries", "keys"):
        for layer, pool in getattr(pools, name).items():
            num_entries = end // config.compress_ratios[layer]
            found[name, layer] = pool[request.block_ids].flatten(0, 1)[:num_entries].clone()
    return found


def states(engine: Engine, job: Job) -> dict[int, dict[Any, torch.Tensor]]:
    """By number of computed tokens, after each step that generated."""
    engine.submit("0", job.prompt, job.params)
    found = {}
    while engine.has_work:
        engine.step()
        for request in engine.scheduler.running:
            found[request.num_computed] = state_of(engine, request)
    return found


@pytest.mark.parametrize(
    "place", [0, 3, *(pytest.param(place, marks=pytest.mark.slow) for place in (1, 2, 4))]
)
def test_c06_caches_as_without_drafts(network: Network, tokenizer: Tokenizer, place: int) -> None:
    """C06: a rejected draft had closed an entry, or stays in a window, a look-back or a draft
    block's window. Rejected at each place of five, from four phases of the start."""
    for length in (6, 7, 128 - 9, 128 - 6):
        (job,) = greedy_jobs([length], max_tokens=16)
        plain = drafting(network, Drafts(5))
        plain.drafting.num_drafts = 0  # keeps the module's windows, and never asks it
        expected = states(plain, job)
        answer = run_jobs(make_engine(network), tokenizer, [job])
        right = perfect(answers_of(answer))

        def script(request: Place, num: int, right: Script = right) -> Any:
            ids = list(right(request, num)[0])
            ids[place] = (ids[place] + 1) % 500
            return ids, [0.9] * num

        found = states(play(drafting(network, Drafts(5)), script), job)
        assert len(found) >= 3
        for num_computed, state in found.items():
            for part, tensor in state.items():
                assert torch.equal(tensor, expected[num_computed][part]), (num_computed, part)


ASKS: dict[str, dict[str, Any]] = {
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": 1.5},
    "repetition": {"repetition_penalty": 1.7},
    "min_p": {"min_p": 0.05, "temperature": 1.5},
    "top_p": {"top_p": 0.8, "temperature": 0.7},
    "top_k": {"top_k": 5, "temperature": 1.0},
    "bias": {"logit_bias": {7: 4.0, 9: 3.5, 11: -100}},
    "min_tokens": {"stop_token_ids": list(range(3, 512, 3)), "min_tokens": 9},
    "forced": {"golden_token_ids": [5, -1, 1, 8, 8, -1, 9], "min_tokens": 5},
}


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("drafter", SCRIPTS)
def test_c08_c09_parameters(network: Network, tokenizer: Tokenizer, ask: str, drafter: str) -> None:
    """C08, C09: a parameter has no effect on rows of drafts, or counts steps instead of tokens."""
    params = {"seed": 5, "ignore_eos": False, "logprobs": 5} | ASKS[ask]
    jobs = greedy_jobs([4, 21], **params)
    expected = run_jobs(make_engine(network), tokenizer, jobs)
    engine = with_drafter(drafting(network, Drafts(5)), drafter, expected)
    assert run_jobs(engine, tokenizer, jobs) == expected


@pytest.mark.parametrize("drafter", SCRIPTS)
def test_c11_c12_logprobs(network: Network, tokenizer: Tokenizer, drafter: str) -> None:
    """C11, C12: log-probabilities are 0, of another request, or of another token of the step."""
    jobs = [
        Job(job.prompt, SamplingParams(temperature=0, max_tokens=20, logprobs=5 if n % 2 else None))
        for n, job in enumerate(greedy_jobs([3, 8, 17, 33]))
    ]
    expected = run_jobs(make_engine(network), tokenizer, jobs)
    engine = with_drafter(drafting(network, Drafts(5)), drafter, expected)
    outputs = run_jobs(engine, tokenizer, jobs)
    assert outputs == expected
    for number, output in enumerate(outputs):
        if number % 2:
            assert output.logprobs is not None
            assert [one.token_id for one in output.logprobs] == output.token_ids
            assert all(one.logprob < 0 for one in output.logprobs)


@pytest.mark.parametrize("num_rows", [8, 16, 64])
def test_c13_prompt_logprobs(network: Network, tokenizer: Tokenizer, num_rows: int) -> None:
    """C13: scores of a prompt that is run in chunks beside drafts are wrong for some lengths."""
    jobs = [
        Job(
            some_ids(n, n),
            SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=1),
            arrival=n,
        )
        for n in range(1, 60, 7)
    ]
    expected = run_jobs(make_engine(network, num_rows=num_rows), tokenizer, jobs)
    engine = drafting(network, Drafts(5), num_rows=num_rows)
    play(engine, coin(answers_of(expected)))
    assert run_jobs(engine, tokenizer, jobs) == expected


def test_c15_too_few_rows_for_all_drafts(network: Network, tokenizer: Tokenizer) -> None:
    """C15: a placeholder or an old draft reaches the model where rows do not suffice for all."""
    jobs = greedy_jobs(list(range(3, 11)))
    expected = run_jobs(make_engine(network), tokenizer, jobs)
    for num_rows in (8, 11, 20):
        engine = drafting(network, Drafts(5), num_rows=num_rows)
        worker: Any = play(engine, coin(answers_of(expected))).worker
        launch = worker.launch

        def checked(plan: Any, launch: Any = launch, most: int = num_rows) -> None:
            assert len(plan.token_ids) <= most
            assert ((plan.token_ids >= 0) & (plan.token_ids < 512)).all()
            launch(plan)

        worker.launch = checked
        assert run_watched(engine, tokenizer, jobs, poison_free) == expected


def test_c16_unseeded_requests_differ(network: Network, tokenizer: Tokenizer) -> None:
    """C16: unseeded requests share one stream of numbers; seeded ones do not agree."""
    texts = set()
    for _ in range(30):
        job = Job([5, 6, 7], SamplingParams(temperature=1.0, max_tokens=5))
        (output,) = run_jobs(drafting(network, Drafts(5)), tokenizer, [job])
        texts.add(tuple(output.token_ids))
    assert len(texts) >= 28


def test_f01_f02_f04_neighbours(network: Network, tokenizer: Tokenizer) -> None:
    """F01, F02, F04: a seeded request changes with unseeded neighbours, with their order, or beside
    its own twin."""
    seeded = Job(some_ids(1, 12), SamplingParams(temperature=1, seed=7, max_tokens=16, logprobs=1))
    (expected,) = run_jobs(make_engine(network), tokenizer, [seeded])
    for number in range(4):
        others = [
            Job(some_ids(n, 6), SamplingParams(temperature=n % 3, max_tokens=16, top_p=0.9))
            for n in range(number)
        ]
        jobs = [*others, seeded, seeded, *others]
        outputs = run_jobs(drafting(network, Drafts(1 + number), num_slots=9), tokenizer, jobs)
        assert outputs[number] == outputs[number + 1] == expected


def test_f03_several_continuations(network: Network, tokenizer: Tokenizer) -> None:
    """F03: continuations of one seed are copies with drafts, or others than without."""
    for seed in (None, 7):
        params = SamplingParams(temperature=1, seed=seed, n=4, max_tokens=12)
        job = Job(some_ids(3, 9), params)
        (found,) = run_jobs(drafting(network, Drafts(4)), tokenizer, [job])
        assert len({tuple(one.token_ids) for one in found.outputs}) == 4
        if seed is not None:
            assert [found] == run_jobs(make_engine(network), tokenizer, [job])


def test_a_stop_string_inside_a_step(network: Network, tokenizer: Tokenizer) -> None:
    """Tokens that were accepted behind a stop string get into the text, the ids or the counts."""
    jobs = greedy_jobs(list(range(2, 12)), temperature=1.5, seed=3, stop=["e", "t", "a"])
    expected = run_jobs(make_engine(network, num_slots=10), tokenizer, jobs)
    assert {output.finish_reason for output in expected} == {"stop"}
    # They go on where the answer ends, with what would be said without the stop.
    free = greedy_jobs(list(range(2, 12)), temperature=1.5, seed=3)
    longer = run_jobs(make_engine(network, num_slots=10), tokenizer, free)
    engine = play(drafting(network, Drafts(5), num_slots=10), perfect(answers_of(longer)))
    outputs = run_jobs(engine, tokenizer, jobs)
    assert outputs == expected
    for output in outputs:
        drafts = output.drafts
        assert drafts.accepted < len(output.token_ids)
        assert drafts.accepted <= drafts.verified <= drafts.drafted
