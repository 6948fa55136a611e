"""Index scores of many rows of a sequence (spec 7.4): their operands, and the kernel for SM90."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from deepinfer.kernels.triton.index_operands import operands
from deepinfer.kernels.triton.index_scores import index_scores
from tests.kernels.triton.test_index_scores import INF, Case, assert_close

pytestmark = pytest.mark.gpu


@pytest.fixture
def hopper(device: str) -> None:
    """For what only SM90 runs: Gluon has no interpreter."""
    if device != "cuda" or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


def scores_of_operands(case: Case, rows: Tensor) -> Tensor:
    """What index_hopper.py computes from its operands, in float64: [n, N], nothing hidden."""
    made = operands(case.query, case.weights, case.keys, case.places, rows)
    # Within 16 keys the even entries come first.
    keys = made.keys.double().view(-1, 2, 8, 128).transpose(1, 2).reshape(-1, 128)
    queries = made.queries.double().view(len(rows), 32, 128)
    match = torch.relu(queries @ keys.T)
    total = (match * made.weights.double().view(len(rows), 32, 1)).sum(1)
    by = made.factors.double() * made.sizes.double()[:, None]
    return (total * by + by * 0)[:, : case.places.num_entries]


@pytest.mark.parametrize("shape", [((5,), 3, 64), ((2, 7, 3), 2, 37), ((6,), 1, 128)], ids=str)
def test_operands(generator, device, shape):
    """Guards the unpacking, the order of keys, and which number is multiplied by which."""
    counts, num_blocks, per_block = shape
    case = Case(generator, device, counts, num_blocks, per_block)
    case.places.num_visible.fill_(case.places.num_entries)
    exact = case.expected(torch.float64)
    for rows in case.groups(most=0):
        actual = scores_of_operands(case, rows[0])
        largest = exact[rows[0]].abs().amax()
        assert bool(((actual - exact[rows[0]]).abs() <= 1e-12 * largest).all())


def test_operands_of_broken_numbers(generator, device):
    """Guards what must show: a key's code 255 and a row's NaN, where they are and nowhere else."""
    case = Case(generator, device, (5,), 2, 64)
    case.keys[case.table()[0, 77], 66] = 255
    case.query[1, 3, 9], case.weights[2, 31] = float("nan"), float("nan")
    actual = scores_of_operands(case, case.groups(most=0)[0][0])
    expected = torch.zeros_like(actual, dtype=torch.bool)
    expected[:, 77], expected[1:3] = True, True
    assert torch.equal(actual.isnan(), expected)


MANY = [  # rows of each sequence, blocks, entries of a block
    ((64,), 1, 64),
    ((65,), 1, 37),
    ((3, 100), 5, 64),
    ((129, 1, 72), 3, 128),
    ((80,), 7, 130),
    ((1024,), 64, 64),
    ((130, 70), 512, 64),
]


@pytest.mark.parametrize("shape", MANY, ids=str)
def test_scores_of_many_rows(generator, device, hopper, shape):
    """Guards the formula, seams of tiles and rows, shuffled blocks, and what a row does not see."""
    counts, num_blocks, per_block = shape
    case = Case(generator, device, counts, num_blocks, per_block)
    case.places.num_visible[-5:-2] = 0
    actual, exact = case.scores(), case.expected(torch.float64)
    assert actual.dtype == torch.bfloat16
    assert_close(actual, exact, case.bound())
    seen = exact != -INF
    relerr = ((actual.double() - exact)[seen].norm() / exact[seen].norm()).item()
    print(f"relerr {relerr:.2e}")
    assert relerr < 2.5e-3


@pytest.mark.parametrize("apart", [4, 60])
def test_scales_far_apart(generator, device, hopper, apart):
    """Guards keys whose groups the operand cannot hold together."""
    case = Case(generator, device, (70,), 3, 64)
    scales = 127 + torch.randint(-apart, apart + 1, (len(case.keys), 4), generator=generator)
    case.keys[:, 64:] = scales.to(torch.uint8)
    assert_close(case.scores(), case.expected(torch.float64), case.bound(of_size=6 * 2.0**-16))


def test_rows_do_not_depend_on_their_batch(generator, device, hopper):
    """Guards one order of summation: rows get the same bits at other places and in fewer tiles."""
    case = Case(generator, device, (150,), 9, 64)
    together = case.scores((torch.arange(150, device=device)[None],))
    for first in (1, 7, 43):
        some = torch.arange(first, first + 100, device=device)
        assert torch.equal(case.scores((some[None],))[some], together[some])
    mixed = torch.randperm(150, generator=generator).to(device)
    assert torch.equal(case.scores((mixed[None],)), together)


def test_tiles_do_not_depend_on_the_split(generator, device, hopper, monkeypatch):
    """Guards the split over programs: entries at the seams are scored once and rightly."""
    case = Case(generator, device, (90,), 11, 100)
    expected = case.scores()
    for span in (1, 2, 5, 100):
        monkeypatch.setattr(
            "deepinfer.kernels.triton.index_hopper._tiles_of_a_program", lambda *_, n=span: n
        )
        assert torch.equal(case.scores(), expected)


def test_invariance_can_be_asked_for(generator, device, hopper):
    """Guards batch_invariant: a row among many has the bits that it has alone."""
    case = Case(generator, device, (70,), 2, 64)
    inputs = case.query, case.weights, case.keys
    together = case.places._replace(groups=(torch.arange(70, device=device)[None],))
    alone = case.places._replace(groups=(torch.arange(70, device=device)[:, None],))
    actual = index_scores(*inputs, together, is_invariant=True)
    assert torch.equal(actual, index_scores(*inputs, alone))


def test_broken_numbers(generator, device, hopper):
    """Guards what must show, of a key and of a row, and the rows beside it."""
    case = Case(generator, device, (70,), 2, 64)
    case.places.num_visible.fill_(128)
    whole = case.scores()
    case.keys[case.table()[0, 5], 64] = 255
    case.query[1, 3, 9], case.weights[20, 31] = float("nan"), float("nan")
    scores = case.scores()
    expected = torch.zeros_like(scores, dtype=torch.bool)
    expected[:, 5], expected[1], expected[20] = True, True, True
    assert torch.equal(scores.isnan(), expected)
    assert torch.equal(scores[~expected], whole[~expected])


def test_nobody_sees_anything(generator, device, hopper):
    """Guards programs without a tile: they end, and leave -inf."""
    case = Case(generator, device, (64,), 70, 64)
    case.places.num_visible.zero_()
    assert bool((case.scores() == -INF).all())
    case.places.num_visible[40] = 1
    scores = case.scores()
    assert bool(scores[40, 0].isfinite()) and int((scores != -INF).sum()) == 1
