"""From logits to tokens: what takes part, and that draws follow the probabilities of what does."""

import math
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.reference import pick as pick_module
from deepinfer.kernels.reference.noise import row_key
from deepinfer.kernels.reference.pick import pick
from deepinfer.sampling.draw import draw, filter_logits, greedy

VOCAB_SIZE = 12
TOP_KS = (-1, 0, 1, 2, 5, VOCAB_SIZE, VOCAB_SIZE + 1, 10**6)
TOP_PS = (1e-300, 1e-8, 1e-4, 0.01, 0.25, 0.5, 0.9, 1 - 1e-9, 1.0)

# The 0.999 quantile of the chi-square distribution, by degrees of freedom.
CHI_SQUARE = {1: 10.83, 2: 13.82, 4: 18.47, 7: 24.32}


def random_logits(seed: int, rows: int = 1, vocab_size: int = VOCAB_SIZE) -> Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


def plain_kept(logits: list[float], top_k: int, top_p: float) -> set[int]:
    """The ids that take part, from the description, in plain Python."""
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if top_k > 0:
        ranked = ranked[:top_k]
    if top_p == 1.0:
        return set(ranked)
    weights = [math.exp(logits[i] - logits[ranked[0]]) for i in ranked]
    kept, reached = set(), 0.0
    for token_id, weight in zip(ranked, weights, strict=True):
        if kept and reached >= top_p:
            break
        kept.add(token_id)
        reached += weight / math.fsum(weights)
    return kept


def draw_many(logits: Tensor, count: int, *, seed: int = 1, **changes: float) -> Tensor:
    """`count` draws from one row of logits, at positions 0, 1, 2, ..."""
    options = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, **changes}
    positions = torch.arange(count)
    key = row_key(torch.full_like(positions, seed), torch.zeros_like(positions), positions)
    return draw(logits.expand(count, -1), key, **options, pick=pick)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_kept_sets(seed: int) -> None:
    """G03, G04, G05: top_k and top_p together leave nothing, too much, or the wrong ones."""
    logits = random_logits(seed).double()
    for top_k, top_p in product(TOP_KS, TOP_PS):
        filtered = filter_logits(logits, top_k, top_p)[0]
        kept = set(filtered.isfinite().nonzero().flatten().tolist())
        assert kept == plain_kept(logits[0].tolist(), top_k, top_p), (top_k, top_p)
        assert filtered[list(kept)].tolist() == logits[0, list(kept)].tolist()
        assert not filtered.isnan().any()


def test_top_p_is_of_what_top_k_left() -> None:
    """G03: top_p counts probability that top_k has taken away, so nothing ever reaches it."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()
    kept = filter_logits(logits, 2, 0.6)[0].isfinite()
    assert kept.tolist() == [True, True, False, False]  # 4/7 is below 0.6
    kept = filter_logits(logits, 2, 0.5)[0].isfinite()
    assert kept.tolist() == [True, False, False, False]  # and above 0.5; unfiltered 0.4 is not


def test_ties_rank_by_id() -> None:
    """Which of equal tokens take part depends on the sort of the machine."""
    logits = torch.zeros(1, 1000, dtype=torch.float64)
    assert filter_logits(logits, 7, 1.0)[0].isfinite().nonzero().flatten().tolist() == [*range(7)]
    # A sixteenth is a float without error, so the sums are too.
    logits = torch.zeros(1, 16, dtype=torch.float64)
    assert filter_logits(logits, -1, 0.25)[0].isfinite().nonzero().flatten().tolist() == [*range(4)]


@pytest.mark.parametrize("top_k", [-1, 0, VOCAB_SIZE, VOCAB_SIZE + 1])
def test_disabled_filters_touch_nothing(top_k: int) -> None:
    """G05: a filter that is off behaves like top_k 1, or rounds the logits."""
    logits = random_logits(3, rows=4)
    assert filter_logits(logits, top_k, 1.0) is logits


@pytest.mark.parametrize(("top_k", "top_p"), [*product((-1, 3), (0.5, 1.0))])
def test_minus_infinity_never_takes_part(top_k: int, top_p: float) -> None:
    """G02, G07: a forbidden token makes NaN of the row, or is drawn."""
    logits = random_logits(4)
    logits[0, ::2] = -torch.inf
    filtered = filter_logits(logits.double(), top_k, top_p)
    assert not filtered.isnan().any()
    drawn = draw_many(logits, 300, top_k=top_k, top_p=top_p)
    assert (drawn % 2 == 1).all()


def test_only_one_token_is_possible() -> None:
    """A row with a single token that is not forbidden draws another one."""
    logits = torch.full((1, VOCAB_SIZE), -torch.inf)
    logits[0, 7] = -3.0
    assert greedy(logits).tolist() == [7]
    assert draw_many(logits, 50, top_k=5, top_p=0.9).unique().tolist() == [7]


def test_greedy_takes_the_lowest_of_equals() -> None:
    """F06: on a tie the choice depends on the device or on the shape of the batch."""
    logits = random_logits(5, rows=3, vocab_size=4096)
    top = logits.max() + 1
    for row, ids in enumerate(((9, 10, 4095), (0, 2048), (4094, 4095))):
        logits[row, list(ids)] = top
    assert greedy(logits).tolist() == [9, 0, 4094]
    assert [greedy(row[None]).item() for row in logits] == [9, 0, 4094]
    assert greedy(torch.full((1, 8), -torch.inf)).tolist() == [0]
    assert greedy(torch.tensor([[-0.0, 0.0]])).tolist() == [0]


def test_greedy_stays_in_the_vocabulary() -> None:
    """A14: NaN among the logits makes a token that does not exist, and the next step crashes."""
    logits = torch.tensor([[1.0, torch.nan, 2.0], [torch.nan] * 3, [1.0, 2.0, 0.0]])
    found = greedy(logits)
    assert (found >= 0).all()
    assert (found < 3).all()
    assert found[2] == 1


@pytest.mark.parametrize(
    ("options", "vocab_size"),
    [
        ({}, 8),
        ({"temperature": 0.5}, 8),
        ({"temperature": 3.0}, 8),
        ({"top_k": 5}, 8),
        ({"top_p": 0.7}, 8),
        ({"temperature": 2.0, "top_k": 3, "top_p": 0.95}, 8),
        ({"top_k": 0}, 2),
    ],
)
def test_draws_follow_the_probabilities(options: dict[str, float], vocab_size: int) -> None:
    """The drawn tokens have another distribution than the one that was asked for."""
    logits = random_logits(6, vocab_size=vocab_size) / 2
    kept = filter_logits(
        logits.double() / options.get("temperature", 1.0),
        int(options.get("top_k", -1)),
        options.get("top_p", 1.0),
    )
    count = 20_000
    expected = kept.softmax(-1)[0] * count
    found = draw_many(logits, count, seed=77, **options).bincount(minlength=vocab_size)
    assert (found[expected == 0] == 0).all()
    possible = expected > 0
    distance = ((found - expected)[possible] ** 2 / expected[possible]).sum()
    assert distance < CHI_SQUARE[int(possible.sum()) - 1]


@pytest.mark.parametrize("top_k", [0, -1])
def test_defaults_are_not_greedy(top_k: int) -> None:
    """G05: with filters off, every seed gives the likeliest token."""
    logits = random_logits(8)
    drawn = [int(draw_many(logits, 1, seed=seed, top_k=top_k)) for seed in range(200)]
    assert len(set(drawn)) > 4


def test_temperature_leads_to_greedy_without_a_turn() -> None:
    """G01: 1e-3 is fine, 1e-4 is rubbish and 1e-6 is fine again."""
    logits = random_logits(9, rows=1, vocab_size=200).half().float()
    best = greedy(logits)
    temperatures = (4.0, 1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-12, 1e-300)
    agreed = [
        draw_many(logits * scale, 500, temperature=t) == best
        for scale in (1.0, 100.0)
        for t in temperatures
    ]
    for scale, start in ((1.0, 0), (100.0, len(temperatures))):
        steps = agreed[start : start + len(temperatures)]
        # With the same noise, a draw that is the likeliest token stays it as the temperature falls.
        for warmer, colder in pairwise(steps):
            assert (colder | ~warmer).all(), scale
        assert steps[-1].all()
    assert not agreed[0].all()


@pytest.mark.parametrize("scale", [1e-30, 1e4, 1e30, 3e38])
@pytest.mark.parametrize("temperature", [1e-5, 1.0, 1e250])
def test_logits_of_any_size(scale: float, temperature: float) -> None:
    """G01: large logits, or a large or small temperature, end in NaN and a token out of range."""
    logits = torch.tensor([[-1.0, 0.5, 1.0, 0.0]]) * scale
    drawn = draw_many(logits, 400, temperature=temperature, top_k=3, top_p=0.99)
    assert set(drawn.tolist()) <= {1, 2, 3}
    if scale / temperature > 1e4:
        assert drawn.unique().tolist() == [2]
    if scale / temperature < 1e-4:
        assert drawn.unique().tolist() == [1, 2, 3]


def test_rows_do_not_see_each_other() -> None:
    """F01, F02: the batch, or the place in it, changes what a row draws."""
    logits = random_logits(10, rows=6, vocab_size=300)
    seed = torch.tensor([0, -1, 2**62, 5, 5, -(2**63)])
    choice = torch.tensor([0, 0, 1, 2, 3, 0])
    position = torch.tensor([1, 2, 3, 4, 4, 2**20])

    def drawn(rows: list[int]) -> list[int]:
        key = row_key(seed[rows], choice[rows], position[rows])
        return draw(logits[rows], key, temperature=1.3, top_k=50, top_p=0.97, pick=pick).tolist()

    alone = [drawn([row])[0] for row in range(6)]
    assert drawn([0, 1, 2, 3, 4, 5]) == alone
    assert drawn([5, 2, 3, 0]) == [alone[row] for row in (5, 2, 3, 0)]


def test_a_row_is_a_function_of_seed_choice_and_position() -> None:
    """F03, F04: the same words give different tokens, or different words the same."""
    logits = torch.zeros(1, 100_000)
    first = draw_many(logits, 4, seed=3)
    assert torch.equal(first, draw_many(logits, 4, seed=3))
    assert len(set(first.tolist())) == 4  # positions differ
    assert not (first == draw_many(logits, 4, seed=4)).any()


def test_input_is_left_alone() -> None:
    """Log-probabilities are taken from logits that sampling has filtered in place (G09)."""
    logits = random_logits(11)
    before = logits.clone()
    draw_many(logits, 3, temperature=0.7, top_k=2, top_p=0.5)
    greedy(logits)
    assert torch.equal(logits, before)


MIN_PS = (0.0, 1e-300, 0.1, 0.5, 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_kept_sets_with_min_p(seed: int) -> None:
    """G03: min_p is measured against another token than the likeliest, or leaves nothing."""
    logits = random_logits(seed).double()
    for top_k, top_p, min_p in product((-1, 1, 2, 5), (0.01, 0.5, 0.9, 1.0), MIN_PS):
        kept = set(filter_logits(logits, top_k, top_p, min_p)[0].isfinite().nonzero().flatten())
        ratios = (logits - logits.max()).exp()[0]
        expected = {
            i for i in plain_kept(logits[0].tolist(), top_k, top_p) if ratios[i].item() >= min_p
        }
        assert {int(i) for i in kept} == expected, (top_k, top_p, min_p)
        assert expected


def test_filters_of_each_row() -> None:
    """A row is filtered by its neighbour's numbers, or by the widest of the batch."""
    rows = [*product((-1, 1, 3, VOCAB_SIZE), (0.4, 1.0), (0.0, 0.3))]
    logits = random_logits(12, rows=len(rows)).double()
    logits[5] = 0.0
    top_k, top_p, min_p = zip(*rows, strict=True)
    together = filter_logits(logits, top_k, top_p, min_p)
    for i, numbers in enumerate(rows):
        assert torch.equal(together[i], filter_logits(logits[i : i + 1], *numbers)[0]), numbers


@pytest.mark.parametrize("vocab_size", [1000, 129_280])
def test_top_p_of_a_flat_distribution(vocab_size: int) -> None:
    """G04: sums of many small probabilities drift, and tokens too many or too few take part."""
    logits = torch.zeros(2, vocab_size, dtype=torch.float64)
    for top_p in (0.25, 0.5, 1 - 2**-20):
        kept = filter_logits(logits, -1, top_p).isfinite().sum(-1)
        assert kept.tolist() == [math.ceil(vocab_size * top_p)] * 2


def test_top_p_of_a_long_tail() -> None:
    """G04: the small probabilities of a tail vanish in their sum, and top_p cuts it off."""
    logits = torch.linspace(0, -25, 2000, dtype=torch.float64)[None]
    for digits in range(1, 8):
        kept = filter_logits(logits, -1, 1 - 10.0**-digits).isfinite().sum()
        assert kept == len(plain_kept(logits[0].tolist(), -1, 1 - 10.0**-digits)), digits


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 1.0])
def test_noise_of_some_is_noise_of_all(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token depends on how many take part, or on how many do in the rows beside it."""
    words = torch.arange(40)
    key = row_key(words, words, words)
    kept = random_logits(13, rows=40, vocab_size=300).double()
    is_out = torch.rand(kept.shape, generator=torch.Generator().manual_seed(14)) >= share
    kept[is_out] = -torch.inf
    kept[0] = -torch.inf
    kept[1, 3] = torch.nan
    found = []
    for few in (-1.0, 2.0):
        monkeypatch.setattr(pick_module, "_FEW", few)
        found.append(pick(kept, key))
    assert torch.equal(*found)
    monkeypatch.undo()
    assert torch.equal(pick(kept, key), found[0])
