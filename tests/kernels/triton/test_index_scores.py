"""Index scores from packed keys against the reference and against float64 (spec 7.4, 7.5, 14.3)."""

import pytest
import torch

pytest.importorskip("triton")

from deepinfer.kernels.triton.index_scores import index_scores, index_scores_of
from tests.kernels.triton.index_case import INF, Case, assert_close

pytestmark = pytest.mark.gpu


SHAPES = [  # rows of each sequence, blocks, entries of a block, heads
    ((1,), 1, 37, 32),
    ((1, 3, 2), 3, 64, 32),
    ((4, 17), 1, 130, 16),
    ((4, 17), 1, 130, 32),
]
RELEASED = [((1, 4, 3, 4), 512, 64, 32), ((1, 1), 1024, 128, 32), ((301, 2), 70, 64, 32)]


@pytest.mark.parametrize("shape", SHAPES + RELEASED, ids=str)
def test_scores(generator, device, released, shape):
    """Guards the formula, the unpacking and where a key lies: scores of other keys look as good."""
    if shape in RELEASED and not released:
        pytest.skip("too large for the interpreter")
    case = Case(generator, device, *shape)
    actual = case.scores()
    assert actual.dtype == torch.bfloat16
    exact, seen, bound = case.expected(torch.float64), case.visible(), case.bound()
    assert_close(actual, case.expected(torch.bfloat16), bound)
    assert_close(actual, exact, bound)
    relerr = ((actual.double() - exact)[seen].norm() / exact[seen].norm()).item()
    print(f"relerr {relerr:.2e}")
    # The interpreter's cast to bfloat16 cuts off.
    assert relerr < (2.5e-3 if device == "cuda" else 4e-3)


@pytest.mark.parametrize("counts", [(4,), (1, 3, 4), (9,)], ids=str)
def test_rows_do_not_depend_on_their_batch(generator, device, counts):
    """Guards invariance: a row alone, in a pair and among all gets the same bits."""
    case = Case(generator, device, counts, 2, 64)
    together = case.scores()
    num_rows = sum(counts)
    alone = case.scores((torch.arange(num_rows, device=device)[:, None],))
    assert torch.equal(alone, together)
    pairs = []
    for first in range(num_rows - 1):
        ids = case.places.sequence_ids[first : first + 2]
        if first % 2 == 0 and bool(ids[0] == ids[1]):
            pairs.append(torch.arange(first, first + 2, device=device)[None])
    for pair in pairs:
        assert torch.equal(case.scores((pair,))[pair[0]], together[pair[0]])
    assert pairs


def test_keys_do_not_depend_on_the_split(generator, device, monkeypatch):
    """Guards the split over programs: entries at the seams are scored once and rightly."""
    case = Case(generator, device, (2,), 3, 100)
    expected = case.scores()
    for span in (1, 2, 32):
        monkeypatch.setattr(
            "deepinfer.kernels.triton.index_scores._tiles_of_a_program", lambda *_, n=span: n
        )
        assert torch.equal(case.scores(), expected)


def test_nothing_to_score(generator, device):
    """Guards the first steps: no row, no entry, a group without a sequence."""
    case = Case(generator, device, (2,), 2, 64)
    places = case.places
    empty = torch.empty(1, 0, dtype=torch.int64, device=device)
    nobody = places._replace(
        sequence_ids=places.sequence_ids[:0], num_visible=places.num_visible[:0], groups=(empty,)
    )
    args = case.query[:0], case.weights[:0], case.keys, nobody
    assert index_scores(*args).shape == (0, 128)
    chosen = torch.empty(0, 3, dtype=torch.int32, device=device)
    assert index_scores_of(*args, chosen, 8).shape == (0, 24)
    places = places._replace(groups=case.groups())
    no_entry = places._replace(blocks=places.blocks[:, :0])
    assert index_scores(case.query, case.weights, case.keys, no_entry).shape == (2, 0)
    blind = places._replace(num_visible=places.num_visible * 0)
    scores = index_scores(case.query, case.weights, case.keys, blind)
    assert bool((scores == -INF).all())


@pytest.mark.parametrize("power", [-120, -72, -40, 0, 2, 30, 61, 120])
def test_scales_are_exact(generator, device, power):
    """Guards the range of scales: all of one key's channels, 0.5 to 6, at far powers of two."""
    case = Case(generator, device, (1,), 1, 64, heads=16)
    case.keys[:, 64:] = 127 + power
    case.weights.fill_(2.0**-power)
    assert_close(case.scores(), case.expected(torch.float64).bfloat16(), case.bound())


@pytest.mark.parametrize("apart", [4, 16, 60])
def test_scales_far_apart(generator, device, apart):
    """Guards keys whose groups the operand cannot hold together: small ones must not grow."""
    case = Case(generator, device, (1, 3), 1, 64)
    scales = 127 + torch.randint(-apart, apart + 1, (len(case.keys), 4), generator=generator)
    case.keys[:, 64:] = scales.to(torch.uint8)
    # A group too far below counts as 2**-16 of the largest: both are within 6 of that and of 0.
    assert_close(case.scores(), case.expected(torch.float64), case.bound(of_size=6 * 2.0**-16))


@pytest.mark.parametrize("below", [15, 17, 40])
def test_queries_far_apart(generator, device, below):
    """Guards the same of queries: exact to 2**-15, then what e5m2's subnormal numbers hold."""
    case = Case(generator, device, (1, 3), 1, 64)
    case.query[:, :, 32:64] *= 2.0**-below
    case.query[:, ::2] *= 2.0**-90  # and heads of very different size
    case.weights[:, ::2] *= 2.0**90
    lost = 0.0 if below == 15 else 2.0**-19
    assert_close(case.scores(), case.expected(torch.float64), case.bound(of_key=lost))


@pytest.mark.parametrize("power", [-10, -20, -35])
def test_small_weights_count(generator, device, power):
    """Guards weights that a float16 beside the row's largest could not hold."""
    case = Case(generator, device, (1, 2), 1, 64)
    case.weights *= 2.0**power
    case.weights[:, 3] = 1.5
    case.query[:, 3] = -case.query[:, 3].abs()
    case.keys[:, :64] &= 0x77  # no signs: head 3 matches nothing
    expected = case.expected(torch.float64)
    case.weights[:, 3] = 0  # and has no part in what a score may be off by
    bound = case.bound()
    case.weights[:, 3] = 1.5
    assert_close(case.scores(), expected, bound)


def test_zeros(generator, device):
    """Guards sizes that are zero: keys, queries and weights without one make scores of zero."""
    case = Case(generator, device, (4,), 1, 64)
    case.keys[case.table()[0, :7], :64] &= 0x88
    case.keys[case.table()[0, :3], 64:] = 0
    case.query[1], case.weights[2] = 0, 0
    scores = case.scores().masked_fill(~case.visible(), 0)
    assert bool((scores[:, :7] == 0).all()) and bool((scores[1:3] == 0).all())
    assert bool((scores[0, 7:] != 0).all())


def test_all_codes_one_by_one(generator, device):
    """Guards the order of channels: a query channel meets its own nibble, with its value."""
    case = Case(generator, device, (1,), 2, 64, heads=128)
    case.query.copy_(torch.eye(128))
    case.keys[:, :64] = torch.randint(0, 256, case.keys[:, :64].shape, generator=generator)
    for channel in (0, 1, 31, 32, 77, 127):
        case.weights.zero_()
        case.weights[:, channel] = 1
        assert torch.equal(case.scores(), case.expected(torch.bfloat16).bfloat16())


def test_a_broken_key_shows(generator, device):
    """Guards against a lost NaN: an entry whose scale is NaN must not look like any other."""
    case = Case(generator, device, (1,), 1, 64)
    case.keys[case.table()[0, 5], 64:] = 255
    scores = case.scores()[0]
    assert bool(scores[5].isnan()) and int(scores.isnan().sum()) == 1


@pytest.mark.parametrize("what", ["query", "weights"])
def test_a_broken_row_stays_alone(generator, device, what):
    """Guards the other rows of a tile: its NaN meets their operands in the tensor core."""
    case = Case(generator, device, (4,), 1, 64)
    whole = case.scores()
    getattr(case, what)[1, 5] = float("nan")
    scores = case.scores()
    assert bool(scores[1][case.visible()[1]].isnan().all())
    assert torch.equal(scores[[0, 2, 3]], whole[[0, 2, 3]])


@pytest.mark.parametrize("block_size", [8, 3])
@pytest.mark.parametrize("width", [1, 20])
def test_scores_of_candidates(generator, device, block_size, width):
    """Guards candidates: each place of a row's list has the score that its entry has among all."""
    case = Case(generator, device, (3, 1, 17), 2, 64)
    listed = case.candidates(generator, width, block_size)
    actual = index_scores_of(case.query, case.weights, case.keys, case.places, listed, block_size)
    entry = (listed[:, :, None] * block_size + torch.arange(block_size, device=device)).flatten(1)
    is_listed = (listed >= 0).repeat_interleave(block_size, 1)
    expected = case.scores().gather(1, entry.clamp_min(0).long()).masked_fill(~is_listed, -INF)
    assert torch.equal(actual, expected)
