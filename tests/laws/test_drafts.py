"""Drafts never change an answer: tokens, log-probabilities to the bit, reasons and texts.

The repertoire and the companies are those of `test_engine`. Drafters are the toy's own module,
whose drafts are mostly wrong, and three that know the answer: perfect, always wrong, and one that
throws a coin.
"""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.model.network import Network
from deepinfer.sampling_params import SamplingParams
from deepinfer.tokenizer.tokenizer import Tokenizer
from tests.laws.drafters import DRAFTERS, drafting, with_drafter
from tests.laws.engines import Alone, Drafts, Job, make_engine, poison_free, run_jobs, run_watched
from tests.laws.test_engine import (
    MODES,
    REPERTOIRE,
    check_company,
    companies,
    engine_of,
    some_ids,
)


@pytest.fixture(scope="module")
def network(tiny_networks: dict[str, Network]) -> Network:
    return tiny_networks["fp32"]


# ---- everything at once --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None, derandomize=True)
@given(
    company=companies(),
    num_drafts=st.integers(1, 5),
    schedule=st.sampled_from(["fixed", "confidence"]),
    drafter=st.sampled_from(DRAFTERS),
    num_rows=st.sampled_from([8, 9, 13, 40, 512]),
    num_blocks=st.sampled_from([4, 5, 8, 64]),
    num_slots=st.sampled_from([2, 5, 8]),
)
def test_any_company(
    tiny_networks: dict[str, Network],
    tokenizer: Tokenizer,
    alone: Alone,
    mode: str,
    company: tuple[list[int], list[Job]],
    num_drafts: int,
    schedule: Any,
    drafter: str,
    **sizes: int,
) -> None:
    """C03, C07, C08, C11, C12, C13, F02, F03: an answer depends on drafts, on how many, on whose,
    or on company, memory and aborts beside them."""
    numbers, jobs = company
    engine = engine_of(tiny_networks, mode, drafts=Drafts(num_drafts, schedule), **sizes)
    expected = [alone(mode, number) for number in numbers]
    with_drafter(engine, drafter, expected)
    outputs = run_watched(engine, tokenizer, jobs, poison_free)
    for job, output, one in zip(jobs, outputs, expected, strict=True):
        check_company(output, one, job.aborted is not None)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_all_at_once(
    tiny_networks: dict[str, Network], tokenizer: Tokenizer, alone: Alone, drafter: str
) -> None:
    """F02: forty continuations in one batch in a shuffled order, with any number of drafts."""
    order = list(range(len(REPERTOIRE)))
    for num_drafts in (1, 3, 5):
        random.Random(num_drafts).shuffle(order)
        expected = [alone("fp32", number) for number in order]
        schedule: Any = ("fixed", "confidence")[num_drafts % 4 == 3]
        drafts = Drafts(num_drafts, schedule)
        engine = engine_of(tiny_networks, "fp32", num_blocks=128, num_slots=64, drafts=drafts)
        with_drafter(engine, drafter, expected)
        jobs = [REPERTOIRE[number] for number in order]
        assert run_watched(engine, tokenizer, jobs, poison_free) == expected


def test_unseeded_greedy_rows_beside_rejection(network: Network, tokenizer: Tokenizer) -> None:
    """A seeded neighbour's row is taken for one that is accepted by rejection, or the reverse."""
    asks: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1},
        {"temperature": 1, "seed": 3},
    ]
    jobs = [
        Job(some_ids(n, 9), SamplingParams(**ask, max_tokens=20, ignore_eos=True, logprobs=1))
        for n, ask in enumerate(asks * 2)
    ]
    expected = run_jobs(make_engine(network), tokenizer, jobs)
    found = run_jobs(drafting(network, Drafts(5)), tokenizer, jobs)
    for ask, one, other in zip(asks * 2, expected, found, strict=True):
        assert (one == other) is (ask.get("seed") is not None or ask["temperature"] == 0)
