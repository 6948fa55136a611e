"""Asynchronous stepping changes no answer: tokens, log-probabilities to the bit, reasons, texts.

The repertoire and the companies are those of `test_engine`, the drafters those of `test_drafts`.
Delays on either side change who waits for whom.
"""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.engine import Engine
from deepinfer.model.network import Network
from deepinfer.tokenizer.tokenizer import Tokenizer
from tests.laws.drafters import DRAFTERS, with_drafter
from tests.laws.engines import Alone, Drafts, Job, run_jobs
from tests.laws.test_engine import MODES, check_company, companies, engine_of

# Longer than a step of the toy's, so that either side is sure to be behind.
_DELAYS_S = (0.0, 0.0, 0.001, 0.02)


def with_delays(engine: Engine, rng: random.Random) -> Engine:
    """Now and then the device is late, or the host."""
    worker: Any = engine.worker

    def late(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            time.sleep(rng.choice(_DELAYS_S))
            return call(*args)

        return wrapped

    for name in ("launch", "start_sample", "start_draft"):
        setattr(worker, name, late(getattr(worker, name)))
    scheduler: Any = engine.scheduler
    for name in ("schedule", "update"):
        setattr(scheduler, name, late(getattr(scheduler, name)))
    return engine


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None, derandomize=True)
@given(
    company=companies(),
    num_drafts=st.integers(0, 5),
    schedule=st.sampled_from(["fixed", "fixed", "confidence"]),
    drafter=st.sampled_from(DRAFTERS),
    num_rows=st.sampled_from([8, 9, 13, 40, 512]),
    num_blocks=st.sampled_from([4, 5, 8, 64]),
    num_slots=st.sampled_from([2, 5, 8]),
    seed=st.integers(0, 2**16),
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
    seed: int,
    **sizes: int,
) -> None:
    """C12, G12, K01, K02, K09: an answer depends on who waits for whom, with chunked prompts,
    preemption, aborts, stop texts, penalties, grammars, several continuations and drafts."""
    numbers, jobs = company
    drafts = Drafts(num_drafts, schedule if num_drafts else "off")
    engine = engine_of(tiny_networks, mode, drafts=drafts, is_ahead=True, **sizes)
    expected = [alone(mode, number) for number in numbers]
    if num_drafts:
        with_drafter(engine, drafter, expected)
    with_delays(engine, random.Random(seed))
    outputs = run_jobs(engine, tokenizer, jobs)
    engine.close()
    for job, output, one in zip(jobs, outputs, expected, strict=True):
        check_company(output, one, job.aborted is not None)
