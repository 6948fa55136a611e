"""The tokens of verified drafts are distributed as without drafts, by chi-square.

Every test draws from thousands of seeds at once: a row of a batch for each.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.kernels.reference.noise import ACCEPT, DRAFT, RESIDUAL, draft_key, row_key, uniform
from deepinfer.sampling import drafts
from deepinfer.sampling.draw import temper_and_filter
from deepinfer.sampling.logits import adjust_logits
from tests.unit.sampling.plans import draft_tokens, make_plan, random_logits, sample

VOCAB_SIZE = 12
ANCHOR = 40  # its position
TARGET = random_logits(1, 1, VOCAB_SIZE)[0] / 2
OTHER = random_logits(2, 1, VOCAB_SIZE)[0] / 2
# Logits of the draft module, next to those of the target.
DRAFTS = {
    "another distribution": OTHER,
    "the opposite": -TARGET,
    "nearly the same": TARGET + 0.3 * OTHER,
    "the same": TARGET,
    "tokens missing": TARGET.masked_fill(torch.arange(VOCAB_SIZE) % 2 == 0, -torch.inf),
    "always one token": torch.where(TARGET.max() > TARGET, -torch.inf, 0.0),
}
PENALTIES = {"repetition": 1.8, "seen": {1: 1, 2: 1, 7: 1}, "bias": {3: 1.5}, "banned": {4: 0}}
PENALTIES |= {"frequency": 0.4, "produced": {2: 3, 7: 1}}
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "temperature": {"temperature": 0.6},
    "top_p": {"top_p": 0.8},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.25},
    "mask": {"allowed": [0, 3, 4, 5, 9]},
    "penalties": PENALTIES,
    "all": PENALTIES | {"temperature": 1.4, "top_p": 0.9, "min_p": 0.05, "allowed": range(1, 10)},
}
REJECTION = {"rejection": True, "coupled": False}


def plan_of(count: int, **options: Any) -> Any:
    """One request in `count` rows of other seeds, at the anchor."""
    lists = {k: [v] * count for k, v in options.items() if isinstance(v, dict)}
    return make_plan(
        count,
        **{"temperature": 1.0, **options, **lists},
        seeds=np.arange(count) * 7,
        positions=ANCHOR,
    )


def yielded(logits: Tensor, plan: Any, position: int, drafted: drafts.Drafted, which: Any) -> Any:
    """Each row's token, where `which` rows verify the draft."""
    draft_ids = np.where(which, drafted.token_ids.numpy(), -1).astype(np.int32)
    at = np.full(len(logits), position, np.int64)
    plan = replace(plan, positions=at, draft_ids=draft_ids)
    return sample(logits, plan, drafted.proposed).token_ids.numpy()


def drafted_by(logits: Tensor, plan: Any, i: int) -> drafts.Drafted:
    """Draft i of each row of the plan."""
    anchors = torch.from_numpy(plan.positions)
    return draft_tokens(logits, plan, np.arange(len(logits)), anchors, i)


def one_token(
    draft_logits: Tensor, count: int, is_rejection: bool, options: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Tokens [count], the drafts that they verified [count], the distribution wanted [V]."""
    plan = plan_of(count, is_rejection=is_rejection, **options)
    logits = TARGET.expand(count, -1)
    drafted = drafted_by(draft_logits.expand(count, -1), plan, 0)
    numbers = (n[:1] for n in (plan.temperature, plan.top_k, plan.top_p, plan.min_p))
    kept = temper_and_filter(adjust_logits(TARGET[None], plan_of(1, **options)), *numbers)
    tokens = yielded(logits, plan, ANCHOR + 1, drafted, np.full(count, True))
    return tokens, drafted.token_ids.numpy(), kept.softmax(-1)[0]


def distance(tokens: np.ndarray, wanted: Tensor) -> float:
    """Chi-square of the tokens over its 0.9999 quantile: above 1 they are not distributed so."""
    expected = wanted.flatten().numpy() * len(tokens)
    found = np.bincount(tokens, minlength=len(expected))
    if found[expected == 0].any():
        return math.inf
    is_rare = (expected < 5) & (expected > 0)  # together, if not too few even so
    cells = [(found[expected >= 5], expected[expected >= 5])]
    if expected[is_rare].sum() >= 5:
        cells.append((found[is_rare].sum(keepdims=True), expected[is_rare].sum(keepdims=True)))
    found, expected = (np.concatenate(x) for x in zip(*cells, strict=True))
    freedom = max(len(expected) - 1, 1)
    # Wilson and Hilferty's approximation.
    spread = 2 / (9 * freedom)
    limit = freedom * (1 - spread + 3.719 * math.sqrt(spread)) ** 3
    return float(((found - expected) ** 2 / expected).sum() / limit)


@pytest.mark.parametrize("way", REJECTION)
@pytest.mark.parametrize("options", OPTIONS)
def test_one_position(way: str, options: str) -> None:
    """Drafts change what is said: their favourites come too often, or what they miss too rarely."""
    for name, logits in DRAFTS.items():
        tokens, _, wanted = one_token(logits, 4_000, REJECTION[way], OPTIONS[options])
        assert distance(tokens, wanted) < 1, name


@pytest.mark.slow
@pytest.mark.parametrize("way", REJECTION)
def test_one_position_many_times(way: str) -> None:
    """The same, by a bias that shows only in many tokens."""
    for options, (name, logits) in product(("nothing", "top_p", "min_p"), DRAFTS.items()):
        tokens, _, wanted = one_token(logits, 200_000, REJECTION[way], OPTIONS[options])
        assert distance(tokens, wanted) < 1, (options, name)


def reuse(stream: int, instead: Callable[..., Tensor]) -> dict[str, Any]:
    """A rule that takes the numbers of one stream from elsewhere."""

    def key(seed: Tensor, choice: Tensor, position: Tensor, asked: int = 0) -> Tensor:
        words = seed, choice, position
        return instead(*words) if asked == stream else row_key(*words, asked)

    return {"row_key": key}


def as_draft(seed: Tensor, choice: Tensor, position: Tensor) -> Tensor:
    return draft_key(seed, choice, position, position - 1)


BIASED: dict[str, dict[str, Any]] = {
    "p is not subtracted": {"_residual": lambda q, p: q},
    "too little is subtracted": {"_residual": lambda q, p: (q - 0.8 * p).clamp(min=0.0)},
    "drafts stay too easily": {"uniform": lambda key: 0.8 * uniform(key)},
    "drafts stay too rarely": {"uniform": lambda key: 1 - 0.8 * uniform(key)},
    "the test knows the draft": reuse(ACCEPT, as_draft),
    "the other token knows the draft": reuse(RESIDUAL, as_draft),
    "the other token knows the test": reuse(RESIDUAL, lambda *words: row_key(*words, ACCEPT)),
}


@contextmanager
def patched(changes: dict[str, Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setattr(drafts, name, value)
        yield


def test_a_biased_rule_is_found() -> None:
    """The tests above would pass for a wrong rule as well."""
    for name, changes in ({"right": {}} | BIASED).items():
        with patched(changes):
            tokens, _, wanted = one_token(OTHER, 60_000, True, {})
        assert (distance(tokens, wanted) > 1) == (name in BIASED), name


def rates(q: Tensor, p: Tensor) -> dict[str, float]:
    """The share of drafts that stay, from the two distributions [V]."""
    both = [v for v in range(VOCAB_SIZE) if q[v] > 0 and p[v] > 0]
    return {
        "rejection": float(torch.minimum(q, p).sum()),
        "coupled": sum(1 / float(torch.maximum(q / q[v], p / p[v]).sum()) for v in both),
    }


@pytest.mark.parametrize("way", REJECTION)
def test_how_many_drafts_stay(way: str) -> None:
    """C04: drafts are refused that could have stayed; then they only cost time."""
    count = 20_000
    for (name, logits), options in product(DRAFTS.items(), ("nothing", "top_p", "temperature")):
        tokens, draft_ids, q = one_token(logits, count, REJECTION[way], OPTIONS[options])
        plan = plan_of(1, **OPTIONS[options])
        numbers = (plan.temperature, plan.top_k, plan.top_p, plan.min_p)
        p = temper_and_filter(logits[None], *numbers).softmax(-1)[0]
        expected = rates(q, p)[way]
        apart = 1 - rates(q, p)["rejection"]  # total variation
        assert (1 - apart) / (1 + apart) - 1e-9 <= expected <= 1 - apart + 1e-9
        error = 5 * math.sqrt(max(expected * (1 - expected), 0.0) / count) + 1e-9
        assert abs((tokens == draft_ids).mean() - expected) < error, (name, options)


SMALL = 4
FIRST, DRAFT_FIRST = random_logits(3, 2, SMALL) / 2
SECOND, DRAFT_SECOND = (random_logits(seed, SMALL, SMALL) / 2 for seed in (4, 5))
Verified = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


def within_rules(i: int, before: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Draft i by the number allowed to a sequence, and by the draft before."""
    allowed = np.arange(len(before)) % 3 > i
    return allowed & (before != 1) if i else allowed


def by_its_own_value(i: int, before: np.ndarray, own: np.ndarray) -> np.ndarray:
    return own != 0


def two_tokens(count: int, is_rejection: bool, verified: Verified) -> tuple[np.ndarray, np.ndarray]:
    """The first two tokens after the anchor, and what they are without drafts: int64 [count] each,
    SMALL * first + second.

    A block of two drafts; if it does not yield two tokens, a second block of one, which is verified
    or not by what the first block had there.
    """
    plan = plan_of(count, is_rejection=is_rejection)
    one = drafted_by(DRAFT_FIRST.expand(count, -1), plan, 0)
    two = drafted_by(DRAFT_SECOND[one.token_ids], plan, 1)
    d1, d2 = one.token_ids.numpy(), two.token_ids.numpy()
    of_1 = verified(0, np.zeros(count), d1)
    of_2 = of_1 & verified(1, d1, d2)
    first = yielded(FIRST.expand(count, -1), plan, ANCHOR + 1, one, of_1)
    second = yielded(SECOND[d1], plan, ANCHOR + 2, two, of_2)
    later = replace(plan, positions=plan.positions + 1)
    again = drafted_by(DRAFT_SECOND[first], later, 0)
    last = yielded(SECOND[first], plan, ANCHOR + 2, again, d2 == 0)
    found = SMALL * first + np.where(of_1 & (first == d1), second, last)
    none = np.full(count, False)
    plain = yielded(FIRST.expand(count, -1), plan, ANCHOR + 1, one, none)
    return found, SMALL * plain + yielded(SECOND[plain], plan, ANCHOR + 2, two, none)


def test_two_positions() -> None:
    """How many drafts are verified, by what is known of earlier ones, changes what is said."""
    wanted = FIRST.double().softmax(-1)[:, None] * SECOND.double().softmax(-1)
    for verified in (within_rules, lambda i, before, own: own >= 0):
        assert distance(two_tokens(20_000, True, verified)[0], wanted) < 1
    found, plain = two_tokens(20_000, False, within_rules)
    assert distance(found, wanted) < 1
    assert (found == plain).all()
    # A biased schedule is found, unless it is the target's own token whatever the draft.
    assert distance(two_tokens(20_000, True, by_its_own_value)[0], wanted) > 1
    found, plain = two_tokens(20_000, False, by_its_own_value)
    assert (found == plain).all()


def test_a_second_draft_of_a_position_is_another() -> None:
    """A draft drawn with the numbers of an earlier one at its position is verified by its own
    value: the earlier one decided that it would be."""
    wanted = FIRST.double().softmax(-1)[:, None] * SECOND.double().softmax(-1)

    def same(seed: Tensor, choice: Tensor, position: Tensor, anchor: Tensor) -> Tensor:
        return row_key(seed, choice, position, DRAFT)

    with patched({"draft_key": same}):
        assert distance(two_tokens(20_000, True, within_rules)[0], wanted) > 1
