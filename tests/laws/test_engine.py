"""Laws of the engine: nobody's answer depends on who else is there, on memory, or on luck.

A fixed repertoire of requests has every parameter in it. What each gives alone is computed once;
hypothesis then chooses companies, arrivals, aborts, and sizes of steps and pools. Results are
compared as they are: tokens, log-probabilities to the bit, reasons, texts. Memory that nobody has
is poisoned between all steps.
"""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.engine import Engine
from deepinfer.model.network import Network
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.tokenizer.tokenizer import Tokenizer
from tests.laws.engines import (
    Alone,
    Job,
    assert_empty,
    make_engine,
    poison_free,
    run_jobs,
    run_watched,
)
from tests.laws.networks import run_greedily, run_whole

# Networks, and how much of a prompt bounded replay keeps: the toy's window is 16.
KEEP = 24
MODES = {"fp32": ("fp32", None), "bf16": ("bf16", None), "replay": ("fp32", KEEP)}
LENGTHS = (1, 2, 3, 8, 17, 40, 126, 128, 150)
MANY_IDS = tuple(range(3, 512, 7))

# What requests ask, each with some of the others below.
ASKS = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
    {"temperature": 1.5, "min_p": 0.02},
    {"temperature": 0, "repetition_penalty": 1.7},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": -0.7},
    {"temperature": 0, "logit_bias": {7: 4.0, 9: 3.5, 11: -100}},
    {"temperature": 3.0, "stop_token_ids": MANY_IDS},
    {"temperature": 3.0, "stop_token_ids": MANY_IDS, "min_tokens": 5},
    {"temperature": 2.0, "stop": ["e", "th", " a"]},
    {"temperature": 2.0, "stop": ["o"], "include_stop_str_in_output": True, "min_tokens": 2},
    {"temperature": 1.0, "golden_token_ids": [5, -1, 9, -1, 1]},
    {"temperature": 1.0, "golden_token_ids": [6, 1, 8], "ignore_eos": True},
    {"temperature": 1.2, "n": 3},
    {"temperature": 1.0, "repetition_penalty": 0.8, "n": 2, "stop": "i"},
]
REPORTS = [{}, {"logprobs": True}, {"logprobs": 5}, {"prompt_logprobs": 2}, {"top_logprobs": 1}]


def some_ids(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 500) for _ in range(length)]


def make_repertoire() -> list[Job]:
    """Two requests for everything that can be asked."""
    jobs = []
    for number in range(2 * len(ASKS)):
        ask, report = ASKS[number % len(ASKS)], REPORTS[number % len(REPORTS)]
        params = SamplingParams(**ask, **report, seed=number, max_tokens=4 + number % 5)
        jobs.append(Job(some_ids(number, LENGTHS[number * 5 % len(LENGTHS)]), params))
    return jobs


def engine_of(networks: dict[str, Network], mode: str, **sizes: Any) -> Engine:
    """An engine of one of the modes."""
    name, keep_tokens = MODES[mode]
    return make_engine(networks[name], keep_tokens=keep_tokens, **sizes)


REPERTOIRE = make_repertoire()


def test_repertoire(alone: Alone) -> None:
    """The laws below are about requests that all end in the same way."""
    outputs = [alone("fp32", number) for number in range(len(REPERTOIRE))]
    ends = [one for output in outputs for one in output.outputs]
    assert {one.finish_reason for one in ends} == {"stop", "length"}
    stops = {type(one.stop_reason) for one in ends}
    assert stops == {str, int, type(None)}
    assert any(one.token_ids[-1] == 1 and one.finish_reason == "stop" for one in ends)
    assert len({tuple(one.token_ids) for one in ends}) > 0.8 * len(ends)


def test_who_is_replayed(alone: Alone) -> None:
    """Short prompts and scored ones get other answers with replay, or long ones never do."""
    changed = []
    for number, job in enumerate(REPERTOIRE):
        same = alone("replay", number) == alone("fp32", number)
        if len(job.prompt) <= KEEP or job.params.prompt_logprobs is not None:
            assert same, number
        else:
            changed.append(not same)
    assert sum(changed) > 0.5 * len(changed)


# ---- company -------------------------------------------------------------------------------------


@st.composite
def companies(draw: st.DrawFn) -> tuple[list[int], list[Job]]:
    """Requests of the repertoire in any order, some twice; when each comes, and whether it goes."""
    numbers = draw(st.lists(st.integers(0, len(REPERTOIRE) - 1), min_size=2, max_size=7))
    jobs = []
    for number in numbers:
        arrival = draw(st.integers(0, 6))
        stay = draw(st.none() | st.integers(0, 5)) if jobs else None
        aborted = None if stay is None else arrival + stay
        jobs.append(replace(REPERTOIRE[number], arrival=arrival, aborted=aborted))
    return numbers, jobs


def check_company(output: RequestOutput, expected: RequestOutput, aborted: bool) -> None:
    """The same result; of an aborted request, whatever it had when it went."""
    if not aborted:
        assert output == expected
        return
    for one, whole in zip(output.outputs, expected.outputs, strict=True):
        assert one.token_ids == whole.token_ids[: len(one.token_ids)]
        assert one.finish_reason in ("abort", whole.finish_reason)
        if one.logprobs is not None and whole.logprobs is not None:
            assert one.logprobs == whole.logprobs[: len(one.logprobs)]


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None, derandomize=True)
@given(
    company=companies(),
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
    num_rows: int,
    num_blocks: int,
    num_slots: int,
) -> None:
    """A12, A13, B02, F02, F03, G10, G11, G12, K01, K04, K09: company changes an answer."""
    numbers, jobs = company
    engine = engine_of(
        tiny_networks, mode, num_blocks=num_blocks, num_slots=num_slots, num_rows=num_rows
    )
    outputs = run_watched(engine, tokenizer, jobs, poison_free)
    for number, job, output in zip(numbers, jobs, outputs, strict=True):
        check_company(output, alone(mode, number), job.aborted is not None)


@pytest.mark.parametrize("mode", MODES)
def test_all_at_once(
    tiny_networks: dict[str, Network], tokenizer: Tokenizer, alone: Alone, mode: str
) -> None:
    """F02, K09: forty continuations in one batch, and the same in another order."""
    order = list(range(len(REPERTOIRE)))
    for seed in (0, 1):
        random.Random(seed).shuffle(order)
        engine = engine_of(tiny_networks, mode, num_blocks=128, num_slots=64)
        jobs = [REPERTOIRE[number] for number in order]
        outputs = run_watched(engine, tokenizer, jobs, poison_free)
        assert outputs == [alone(mode, number) for number in order]


# ---- preemption ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "num_rows"), [("fp32", 20), ("fp32", 512), ("bf16", 64), ("replay", 20)]
)
def test_preempted_is_not_preempted(
    tiny_networks: dict[str, Network], tokenizer: Tokenizer, mode: str, num_rows: int
) -> None:
    """K01: what is computed again gives other tokens, reports the prompt twice, or leaks."""
    rng, scored = random.Random(num_rows), None if mode == "replay" else 1
    jobs = [
        Job(
            some_ids(number, rng.randint(118, 127)),
            SamplingParams(
                temperature=number % 2,
                seed=number,
                max_tokens=14,
                logprobs=2,
                prompt_logprobs=scored,
                frequency_penalty=0.5,
            ),
            arrival=number,
        )
        for number in range(5)
    ]
    ample = engine_of(tiny_networks, mode, num_rows=num_rows)
    expected = run_jobs(ample, tokenizer, jobs)
    assert ample.scheduler.counters.num_preemptions == 0
    tight = engine_of(tiny_networks, mode, num_rows=num_rows, num_blocks=3, max_model_len=3 * 128)
    found = run_watched(tight, tokenizer, jobs, poison_free)
    assert tight.scheduler.counters.num_preemptions > 0
    assert found == expected


# ---- several continuations -----------------------------------------------------------------------


def test_choices_are_themselves_alone(
    tiny_networks: dict[str, Network], tokenizer: Tokenizer
) -> None:
    """Continuations of one request feel each other, or are one and the same."""
    params = SamplingParams(n=4, seed=9, temperature=1.3, max_tokens=6, logprobs=1)
    prompt = some_ids(0, 20)
    (together,) = run_jobs(make_engine(tiny_networks["fp32"]), tokenizer, [Job(prompt, params)])
    assert [one.index for one in together.outputs] == [0, 1, 2, 3]
    assert len({tuple(one.token_ids) for one in together.outputs}) == 4
    one_alone = Job(prompt, replace(params, n=1))
    (first,) = run_jobs(make_engine(tiny_networks["fp32"]), tokenizer, [one_alone])
    assert first.outputs[0] == together.outputs[0]
    for kept in range(4):
        engine = make_engine(tiny_networks["fp32"])
        engine.submit("it", prompt, params)
        for choice in range(4):
            if choice != kept:
                engine.finish("it", choice, "abort")
        news = []
        while engine.has_work:
            news += engine.step()
        assert_empty(engine)
        assert [delta.choice for delta in news] == [kept] * 6
        assert [delta.token_id for delta in news] == together.outputs[kept].token_ids
        assert [delta.logprob for delta in news] == together.outputs[kept].logprobs


# ---- the network ---------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    length=st.integers(1, 60),
    num_rows=st.sampled_from([8, 31, 512]),
    keep_tokens=st.sampled_from([None, 22, 30]),
)
def test_greedy_is_the_networks_own(
    exact: Network,
    tokenizer: Tokenizer,
    seed: int,
    length: int,
    num_rows: int,
    keep_tokens: int | None,
) -> None:
    """A02: paging chooses other tokens than the network that keeps all it ever computed; or replay
    begins at another position."""
    prompt = some_ids(seed, length)
    job = Job(prompt, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    engine = make_engine(exact, num_rows=num_rows, kept_as="float32", keep_tokens=keep_tokens)
    (output,) = run_jobs(engine, tokenizer, [job])
    first = max(0, length - keep_tokens) if keep_tokens else 0
    assert output.token_ids == run_greedily(exact, prompt, 12, first)


@pytest.mark.parametrize("num_rows", [8, 50, 512])
def test_prompt_logprobs_are_a_whole_forward(
    exact: Network, tokenizer: Tokenizer, num_rows: int
) -> None:
    """G10: the list is short, shifted, or wrong where two chunks meet."""
    jobs = [
        Job(some_ids(length, length), SamplingParams(max_tokens=1, prompt_logprobs=True))
        for length in (1, 7, 8, 9, 16, 33, 129)
    ]
    outputs = run_jobs(make_engine(exact, num_rows=num_rows, kept_as="float32"), tokenizer, jobs)
    for output in outputs:
        ids = torch.tensor(output.prompt_token_ids)
        logprobs = run_whole(exact, ids[None])[0, :-1].log_softmax(-1)
        expected = logprobs.gather(1, ids[1:, None])[:, 0]
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        found = torch.tensor([one.logprob for one in output.prompt_logprobs[1:] if one])
        assert len(found) == len(ids) - 1
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
