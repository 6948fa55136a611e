"""The goldens through the engine: paged memory, chunks and batches as users' requests meet them.

The rules are those of `test_network.py`; a position's logits are read from the worker.
"""

from functools import cache

import pytest
import torch
from torch import Tensor

from deepinfer.cache.layout import blocks_for
from deepinfer.sampling_params import SamplingParams
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from deepinfer.worker.pools import make_pools
from deepinfer.worker.worker import Worker
from tests.golden.goldens import PROMPTS, assert_close, load_golden
from tests.laws.engines import (
    Job,
    Step,
    in_chunks,
    make_engine,
    poison,
    run_jobs,
    run_logits,
    side_by_side,
)
from tests.laws.networks import golden_network, golden_source

NUM_BLOCKS = 16
WHOLE = 512
CHUNKS = (3, 7, 64, WHOLE)
LOGPROBS = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3)


def ids_of(name: str, prompt: str) -> list[int]:
    return load_golden(name).tensors[f"{prompt}/input_ids"].tolist()


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return load_tokenizer(load_golden(name).config_dir, golden_source(name).config)


def fresh_worker(name: str) -> Worker:
    """Its memory holds what no sequence may read."""
    pools = make_pools(golden_source(name).config, NUM_BLOCKS, len(PROMPTS[name]))
    poison(pools, range(len(PROMPTS[name])), range(NUM_BLOCKS))
    return Worker(golden_network(name), pools)


def logits_in(name: str, prompts: tuple[str, ...], steps: list[Step]) -> list[Tensor]:
    """The prompts' logits; slots and blocks are dealt from the last to the first."""
    sequences = [ids_of(name, prompt) for prompt in prompts]
    free = list(range(NUM_BLOCKS))
    return run_logits(
        fresh_worker(name),
        sequences,
        steps,
        slots=list(range(len(prompts)))[::-1],
        blocks=[[free.pop() for _ in range(blocks_for(len(ids)))] for ids in sequences],
    )


def check(name: str, prompts: tuple[str, ...], found: list[Tensor]) -> None:
    golden = load_golden(name)
    for prompt, logits in zip(prompts, found, strict=True):
        expected = golden.tensors[f"{prompt}/logits.fp32"]
        assert_close(logits, expected, golden.tolerance(prompt))


def lengths_of(name: str, prompts: tuple[str, ...]) -> list[int]:
    return [len(ids_of(name, prompt)) for prompt in prompts]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", PROMPTS)
def test_each_alone(name: str, chunk: int) -> None:
    """A01, A02, A06, A09: a cut, a ring that goes round, or a second block moves a logit.

    (The longest in small chunks runs in the tests of batches.)
    """
    prompts = PROMPTS[name] if chunk > 7 else PROMPTS[name][:-1]
    check(name, prompts, logits_in(name, prompts, [*in_chunks(chunk, lengths_of(name, prompts))]))


@pytest.mark.parametrize("name", PROMPTS)
def test_short_ones_token_by_token(name: str) -> None:
    """A01, A02: the same, one row a step. (The long ones run so in the tests of batches.)"""
    prompts = ("p1", "p2", "p3", "p17", "p40")
    check(name, prompts, logits_in(name, prompts, [*in_chunks(1, lengths_of(name, prompts))]))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", PROMPTS)
def test_all_in_one_batch(name: str, chunk: int) -> None:
    """A08, F02: neighbours of other lengths move a logit."""
    prompts = PROMPTS[name]
    check(
        name, prompts, logits_in(name, prompts, [*side_by_side(chunk, lengths_of(name, prompts))])
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a", marks=[pytest.mark.slow, pytest.mark.sample]),
        pytest.param("b", marks=pytest.mark.slow),
    ],
)
def test_all_in_one_batch_token_by_token(name: str) -> None:
    """A02, A09: after hundreds of single rows the logits have drifted."""
    prompts = PROMPTS[name]
    check(name, prompts, logits_in(name, prompts, [*side_by_side(1, lengths_of(name, prompts))]))


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
@pytest.mark.parametrize("name", PROMPTS)
def test_every_way_has_the_same_bits(name: str, mode: str) -> None:
    """F02, K09: chunks and neighbours change bits that the goldens' tolerance forgives."""
    prompts = PROMPTS[name]
    jobs = [Job(ids_of(name, prompt), LOGPROBS) for prompt in prompts]
    found = []
    for num_rows in (8, WHOLE):
        engine = make_engine(golden_network(name, mode), num_rows=num_rows)
        found.append(run_jobs(engine, tokenizer_of(name), jobs))
    engine = make_engine(golden_network(name, mode))
    found.append([run_jobs(engine, tokenizer_of(name), [job])[0] for job in jobs])
    assert all(outputs == found[0] for outputs in found)


@pytest.mark.parametrize("num_rows", [64, WHOLE])
@pytest.mark.parametrize("name", PROMPTS)
def test_prompt_logprobs(name: str, num_rows: int) -> None:
    """G10, G11: a prompt's log-probabilities are another row's, or doubled where chunks meet."""
    golden = load_golden(name)
    jobs = [Job(ids_of(name, prompt), LOGPROBS) for prompt in PROMPTS[name]]
    engine = make_engine(golden_network(name), num_rows=num_rows)
    for prompt, output in zip(
        PROMPTS[name], run_jobs(engine, tokenizer_of(name), jobs), strict=True
    ):
        expected = golden.tensors[f"{prompt}/logits.fp32"].log_softmax(-1)[:-1]
        assert output.prompt_logprobs is not None
        first, *scores = output.prompt_logprobs
        assert first is None
        assert [one.token_id for one in scores] == output.prompt_token_ids[1:]
        found = torch.tensor([[one.logprob] for one in scores]).view(-1, 1)
        # A log-probability moves by at most twice what the logits do.
        tolerance = 2 * golden.tolerance(prompt)[:-1]
        chosen = torch.tensor(output.prompt_token_ids[1:], dtype=torch.int64)[:, None]
        assert_close(found, expected.gather(1, chosen), tolerance)
        best = torch.tensor([[value for _, value in one.top] for one in scores]).view(-1, 3)
        assert_close(best, expected.topk(3).values, tolerance)


@pytest.mark.parametrize("num_rows", [8, WHOLE])
@pytest.mark.parametrize("name", PROMPTS)
def test_greedy_continuations(name: str, num_rows: int) -> None:
    """A02: generation leaves the golden way, alone or beside the other two."""
    expected = load_golden(name).tensors
    prompts = [expected[f"greedy/{index}/prompt"].tolist() for index in range(3)]
    tokens = [expected[f"greedy/{index}/tokens.fp32"].tolist() for index in range(3)]
    params = SamplingParams(temperature=0, max_tokens=len(tokens[0]))
    jobs = [Job(prompt, params) for prompt in prompts]
    engine = make_engine(golden_network(name), num_rows=num_rows)
    together = run_jobs(engine, tokenizer_of(name), jobs)
    assert [output.token_ids for output in together] == tokens
    alone = [run_jobs(engine, tokenizer_of(name), [job])[0] for job in jobs[:1]]
    assert alone == together[:1]
