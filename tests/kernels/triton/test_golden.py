"""The goldens through the engine's worker with the Triton kernels: packed pages, chunks, batches.

The rule is that of bfloat16 (tests/golden/test_network.py); the toys' odd sizes take the kernels'
general ways.
"""

from functools import cache

import pytest
from torch import Tensor

from deepinfer.cache.layout import blocks_for
from deepinfer.model.network import Network
from deepinfer.sampling_params import SamplingParams
from deepinfer.worker.pools import make_pools
from deepinfer.worker.worker import Worker
from tests.golden.goldens import PROMPTS, load_golden
from tests.golden.test_engine import NUM_BLOCKS, WHOLE, ids_of, tokenizer_of
from tests.golden.test_network import GREEDY_MARGIN
from tests.kernels.triton.networks import triton_network
from tests.laws.engines import Job, make_engine, poison, run_jobs, run_logits, side_by_side
from tests.laws.networks import golden_source

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("needs_gpu")]


@cache
def network(name: str, device: str) -> Network:
    return triton_network(golden_source(name), device)


def logits_in(name: str, device: str, prompts: tuple[str, ...], chunk: int) -> list[Tensor]:
    """float32 [S, vocab] of each prompt; nothing was ever written where no sequence may read."""
    sequences = [ids_of(name, prompt) for prompt in prompts]
    pools = make_pools(
        golden_source(name).config, NUM_BLOCKS, len(prompts), storage="packed", device=device
    )
    poison(pools, range(len(prompts)), range(NUM_BLOCKS))
    free = list(range(NUM_BLOCKS))
    found = run_logits(
        Worker(network(name, device), pools, device),
        sequences,
        [*side_by_side(chunk, [len(ids) for ids in sequences])],
        slots=list(range(len(prompts)))[::-1],
        blocks=[[free.pop() for _ in range(blocks_for(len(ids)))] for ids in sequences],
    )
    return [logits.float().cpu() for logits in found]


@pytest.mark.parametrize("chunk", [7, 64, WHOLE])
@pytest.mark.parametrize("name", PROMPTS)
def test_logits(name: str, chunk: int, device: str) -> None:
    """A kernel rounds where the model does not, or reads what is another row's."""
    prompts = PROMPTS[name]
    for prompt, actual in zip(prompts, logits_in(name, device, prompts, chunk), strict=True):
        for judge in ("fp32", "bf16"):
            expected = load_golden(name).tensors.get(f"{prompt}/logits.{judge}")
            if expected is None:
                continue
            off = (actual - expected).abs()
            same = (actual.argmax(1) == expected.argmax(1)).float().mean()
            print(f"{name} {prompt} {judge}: median {off.median():.3f}, best token {same:.2f}")
            assert actual.isfinite().all()
            assert off.median() < 0.15
            assert len(actual) < 40 or same >= 0.85


@pytest.mark.parametrize("name", PROMPTS)
def test_greedy(name: str, device: str) -> None:
    """Generation leaves the golden way where float32 is sure of a token."""
    expected = load_golden(name).tensors
    jobs, golden = [], []
    for index in range(3):
        golden.append(expected[f"greedy/{index}/tokens.bf16"].tolist())
        prompt = expected[f"greedy/{index}/prompt"].tolist()
        jobs.append(Job(prompt, SamplingParams(temperature=0, max_tokens=len(golden[-1]))))
    engine = make_engine(network(name, device), kept_as="packed")
    for index, output in enumerate(run_jobs(engine, tokenizer_of(name), jobs)):
        margins = expected[f"greedy/{index}/margins.fp32"]
        sure = int((margins < GREEDY_MARGIN).nonzero()[0])
        pairs = enumerate(zip(output.token_ids, golden[index], strict=True))
        same = next((i for i, (a, b) in pairs if a != b), len(golden[index]))
        print(f"{name} {index}: {same} tokens as the golden's, sure of {sure}")
        assert same >= sure
