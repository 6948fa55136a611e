"""Laws of compact replay: the rows that it leaves out of the decoder half change nothing, to the
bit, and are not run there."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.model.layer import Flow
from deepinfer.model.network import Network
from deepinfer.sampling_params import SamplingParams
from deepinfer.tokenizer.tokenizer import Tokenizer
from tests.laws.engines import Drafts, Job, make_engine, run_jobs
from tests.laws.test_engine import some_ids

KEEP = 24  # the toy's window is 16
LENGTHS = (5, 23, 24, 25, 60, 130, 200, 270)
ASKS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 3},
    {"temperature": 0.8, "seed": 5, "n": 2},
    {"temperature": 0, "prompt_logprobs": 2, "logprobs": 1},
    {"temperature": 1, "seed": 6, "frequency_penalty": 0.5},
]


@pytest.fixture(scope="module")
def network(tiny_networks: dict[str, Network]) -> Network:
    return tiny_networks["bf16"]


@pytest.fixture(scope="module")
def masked(network: Network, tokenizer: Tokenizer) -> Any:
    """An answer under mask, alone, of a whole prompt."""

    @cache
    def run(length: int, ask: int, max_tokens: int) -> Any:
        engine = make_engine(network, keep_tokens=KEEP)
        (output,) = run_jobs(engine, tokenizer, [job_of(length, ask, max_tokens)])
        return output

    return run


def job_of(length: int, ask: int, max_tokens: int, arrival: int = 0) -> Job:
    params = SamplingParams(**ASKS[ask], max_tokens=max_tokens, ignore_eos=True)
    # One text, so that shorter prompts are prefixes of longer ones.
    return Job(some_ids(1, max(LENGTHS))[:length], params, arrival)


@settings(deadline=None, derandomize=True)
@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from(LENGTHS),
            st.integers(0, len(ASKS) - 1),
            st.integers(1, 12),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=5,
    ),
    num_blocks=st.sampled_from([6, 12, 64]),
    num_rows=st.sampled_from([20, 60, 512]),
    num_drafts=st.sampled_from([0, 3]),
    is_ahead=st.booleans(),
    prefix=st.sampled_from([None, "exact"]),
)
def test_compact_is_mask(
    network: Network,
    tokenizer: Tokenizer,
    masked: Any,
    asked: list[tuple[int, int, int, int]],
    num_drafts: int,
    **options: Any,
) -> None:
    """A row is left out that another one sees, is sampled, scored or drafted from: with chunks,
    hits, preemption, drafts and steps that overlap."""
    drafts = Drafts(num_drafts, "fixed" if num_drafts else "off")
    engine = make_engine(
        network, keep_tokens=KEEP, is_compact=True, drafts=drafts, num_slots=8, **options
    )
    outputs = run_jobs(engine, tokenizer, [job_of(*one) for one in asked])
    for (length, ask, max_tokens, _), output in zip(asked, outputs, strict=True):
        expected = masked(length, ask, max_tokens)
        assert output.prompt_logprobs == expected.prompt_logprobs
        for one, other in zip(output.outputs, expected.outputs, strict=True):
            assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)


@pytest.mark.parametrize("num_rows", [20, 512])
def test_rows_of_the_decoder_half(network: Network, tokenizer: Tokenizer, num_rows: int) -> None:
    """Compact runs all rows all the same; or leaves out those of a prompt whose every row is
    scored."""
    num_run = dict.fromkeys(range(len(network.layers)), 0)

    def count(layer: Any, _inputs: object, flow: Flow) -> None:
        num_run[layer.plan.layer_id] += len(flow.streams)

    hooks = [layer.register_forward_hook(count) for layer in network.layers]
    try:
        for ask, kept in ((0, KEEP), (2, 200)):
            num_run.update(dict.fromkeys(num_run, 0))
            engine = make_engine(network, keep_tokens=KEEP, is_compact=True, num_rows=num_rows)
            run_jobs(engine, tokenizer, [job_of(200, ask, 1)])
            for layer in network.layers:
                wanted = kept if layer.plan.in_decoder else 200
                assert num_run[layer.plan.layer_id] == wanted
    finally:
        for hook in hooks:
            hook.remove()


def test_mask_is_another_answer(network: Network, tokenizer: Tokenizer, masked: Any) -> None:
    """The law above compares two engines that both hide nothing."""
    (whole,) = run_jobs(make_engine(network), tokenizer, [job_of(200, 0, 8)])
    assert whole.outputs[0].logprobs != masked(200, 0, 8).outputs[0].logprobs
    assert torch.isfinite(torch.tensor(whole.outputs[0].logprobs[0].logprob))
