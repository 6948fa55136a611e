"""The demo model served by a GPU: its answers are the CPU's, and need no waiting or luck."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.entrypoints.llm import LLM
from deepinfer.errors import DeviceError
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.worker.faults import named_faults
from deepinfer.worker.lane import Lane

pytestmark = pytest.mark.gpu

DEMO = Path(__file__).parents[3] / "models" / "demo"
PROMPTS = [
    "The house stood at the end of the road, and nobody",
    "2 + 2 =",
    "Copy: apple pear plum cherry. Copy: apple pear plum",
    "In the morning the captain looked at the sea. " * 12,
    '{"name": "Ann", "age":',
    "def add(a, b):\n    return",
    "Once upon a time there was a fox who",
    "The capital of France is",
]
GREEDY = SamplingParams(temperature=0, max_tokens=32, logprobs=2, ignore_eos=True)


def open_llm(device: str, **options: object) -> LLM:
    return LLM(DEMO, device=device, max_num_seqs=16, max_model_len=1024, num_threads=8, **options)


@pytest.fixture(scope="module")
def gpu(needs_gpu: None) -> Iterator[LLM]:
    with open_llm("cuda") as llm:
        yield llm


@pytest.fixture(scope="module")
def invariant(needs_gpu: None) -> Iterator[LLM]:
    with open_llm("cuda", batch_invariant=True, draft_schedule="off") as llm:
        yield llm


def test_as_sure_as_float32(gpu: LLM) -> None:
    """Paging, packed rows or a kernel is wrong in a way that a single forward does not show.

    Answers may part from the CPU's wherever bfloat16 jumps, at a choice of entries or experts. So
    each has its own answers judged: how likely float32 finds every token, on a CPU.
    """
    with open_llm("cpu") as cpu:
        of_cpu = cpu.generate(PROMPTS, GREEDY)
    of_gpu = gpu.generate(PROMPTS, GREEDY)
    with open_llm("cpu", dtype="float32") as judge:
        allowed, found = (errors(judge, outputs) for outputs in (of_cpu, of_gpu))
    for name, one in (("the CPU", allowed), ("the GPU", found)):
        print(f"{name}: off by {one.mean():.4f} nats, {one.quantile(0.9):.4f} of nine in ten")
    assert found.mean() < 2 * allowed.mean()
    assert found.quantile(0.9) < 2 * allowed.quantile(0.9)


def errors(judge: LLM, outputs: list[RequestOutput]) -> Tensor:
    """By how many nats log-probabilities of all tokens of answers differ from the judge's: [N]."""
    texts = [[*one.prompt_token_ids, *one.outputs[0].token_ids] for one in outputs]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    off = []
    for one, judged in zip(outputs, judge.generate(None, params, texts), strict=True):
        own = one.outputs[0].logprobs
        for mine, other in zip(own, judged.prompt_logprobs[-len(own) :], strict=True):
            off.append(abs(mine.logprob - other.logprob))
    return torch.tensor(off)


def test_drafts_change_nothing(gpu: LLM) -> None:
    """A verified draft is another row's, or a rejected one leaves something behind."""
    with open_llm("cuda", draft_schedule="off") as plain:
        without = plain.generate(PROMPTS, GREEDY)
    same = sum(
        one.outputs[0].token_ids == other.outputs[0].token_ids
        for one, other in zip(gpu.generate(PROMPTS, GREEDY), without, strict=True)
    )
    print(f"{same} of {len(PROMPTS)} answers are the same with drafts")
    assert same >= len(PROMPTS) // 2


def test_graphs_change_nothing(needs_gpu: None) -> None:
    """A branch beside another, or a kernel that starts early, reads what is not there yet. Steps of
    so few rows are not padded, so that even bits are the same; many times over."""
    with open_llm("cuda", draft_schedule="off", enforce_eager=True) as eager:
        expected = eager.generate(PROMPTS, GREEDY)
    with open_llm("cuda", draft_schedule="off", enable_prefix_caching=False) as recorded:
        for _ in range(6):
            for one, other in zip(expected, recorded.generate(PROMPTS, GREEDY), strict=True):
                assert one.outputs[0].token_ids == other.outputs[0].token_ids
                assert one.outputs[0].logprobs == other.outputs[0].logprobs


def test_batch_invariance(invariant: LLM) -> None:
    """A row has other bits in another batch though the user paid for the same."""
    together = invariant.generate(PROMPTS, GREEDY)
    for prompt, expected in zip(PROMPTS, together, strict=True):
        (alone,) = invariant.generate([prompt], GREEDY)
        assert alone.outputs[0].token_ids == expected.outputs[0].token_ids
        of_alone, of_both = alone.outputs[0].logprobs, expected.outputs[0].logprobs
        assert [one.logprob for one in of_alone] == [one.logprob for one in of_both]


def test_steps_are_timed_by_the_device(needs_gpu: None) -> None:
    """Drafts by confidence weigh steps by what it takes the host to start them."""
    worker: Any = SimpleNamespace(device="cuda")
    lane = Lane(worker)

    def start() -> Callable[[], None]:
        torch.cuda._sleep(10**8)  # cycles: 50 ms and more
        return torch.cuda.synchronize

    pending = lane._call(start)
    pending.result()
    assert 0.03 < pending.taken_s < 1


def test_a_device_without_room(gpu: LLM) -> None:
    """Out of memory kills the process, or leaves it hanging."""
    with pytest.raises(DeviceError, match="no memory left"), named_faults("a test"):
        torch.empty(2**45, dtype=torch.uint8, device="cuda")
    assert gpu.generate(["after that"], GREEDY)[0].outputs[0].token_ids
