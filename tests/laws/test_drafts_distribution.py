"""Through the whole engine, tokens are distributed as the model says: by rejection, by confidence.

Everything is at work: the toy's own draft module, the schedule with its budget of another round,
and its choice among sequences that compete for rows.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.model.network import Network
from deepinfer.sampling_params import SamplingParams
from deepinfer.tokenizer.tokenizer import Tokenizer
from deepinfer.worker import drafter
from tests.laws.engines import Drafts, Job, make_engine, run_jobs
from tests.laws.networks import run_whole
from tests.laws.test_acceptance import distance

PROMPT = [5, 80, 200]
# Nearly nothing else is ever said, by the model or by the drafts: a vocabulary that can be counted.
TOKENS = [10, 33, 150, 301, 302]
BIAS = dict.fromkeys(TOKENS, 60.0)
NUM_REQUESTS = 1200
BATCH = 200


def small_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Penalties and bias are not for drafts, which would come from the whole vocabulary."""
    draft_tokens = drafter.draft_tokens

    def biased(logits: Tensor, *rest: Any, **options: Any) -> Any:
        logits = logits.clone()
        logits[:, TOKENS] += 60.0
        return draft_tokens(logits, *rest, **options)

    monkeypatch.setattr(drafter, "draft_tokens", biased)


def conditional(network: Network, prefixes: list[list[int]], params: dict[str, Any]) -> Tensor:
    """float64 [len(prefixes), 5]: how likely each of TOKENS comes next."""
    logits = run_whole(network, torch.tensor(prefixes))[:, -1, TOKENS].double()
    chances = (logits / params.get("temperature", 1.0)).softmax(-1)
    least = params.get("min_p", 0.0) * chances.amax(-1, keepdim=True)
    kept = chances.masked_fill(chances < least, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def expected_pairs(network: Network, params: dict[str, Any]) -> Tensor:
    """float64 [5, 5]: the second and third token, whatever the first."""
    next_tokens = partial(conditional, network, params=params)
    first = next_tokens([PROMPT])[0]
    second = next_tokens([[*PROMPT, a] for a in TOKENS])
    third = next_tokens([[*PROMPT, a, b] for a in TOKENS for b in TOKENS]).view(5, 5, 5)
    return torch.einsum("a,ab,abc->bc", first, second, third)


@pytest.mark.parametrize("schedule", ["confidence", "fixed"])
@pytest.mark.parametrize(
    "params", [{"temperature": 2.0}, {"temperature": 3.0, "min_p": 0.15}], ids=str
)
def test_second_and_third_token(
    exact: Network,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    schedule: Any,
    params: dict[str, Any],
) -> None:
    """Drafts, or the choice of those that are verified, change what is said: chi-square of pairs of
    1,200 requests, 200 at a time."""
    small_drafts(monkeypatch)
    engine = make_engine(
        exact,
        num_slots=BATCH,
        num_blocks=BATCH,
        num_rows=2 * BATCH,
        max_model_len=64,
        kept_as="float32",
        drafts=Drafts(3, schedule, "rejection", {1: 5.0, 1000: 1004.0}),
    )
    found = []
    for start in range(0, NUM_REQUESTS, BATCH):
        jobs = [
            Job(
                PROMPT,
                SamplingParams(seed=seed, max_tokens=4, logit_bias=BIAS, ignore_eos=True, **params),
            )
            for seed in range(start, start + BATCH)
        ]
        found += [output.token_ids[1:3] for output in run_jobs(engine, tokenizer, jobs)]
    pairs = np.array([TOKENS.index(b) * 5 + TOKENS.index(c) for b, c in found])
    assert distance(pairs, expected_pairs(exact, params)) < 1
    # Another distribution would be noticed, and drafts were indeed accepted and rejected.
    assert distance(pairs, expected_pairs(exact, {"temperature": 1.0})) > 1
    stats = engine.drafting.stats
    assert 0.1 < stats.num_accepted / stats.num_verified < 0.9
    assert (stats.num_verified < 0.9 * stats.num_drafted) or schedule == "fixed"
