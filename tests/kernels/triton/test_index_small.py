"""Index scores of few or narrow heads, against the reference and float64 (spec 7.4, 7.5, 14.3)."""

import pytest
import torch

pytest.importorskip("triton")

from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.triton.index_scores import index_scores, serves
from deepinfer.kernels.triton.index_small import index_scores_small
from deepinfer.kernels.values import CandidateRule
from tests.kernels.triton.index_case import INF, Case, assert_close

pytestmark = pytest.mark.gpu

SHAPES = [  # rows of each sequence, blocks, entries of a block, heads, channels
    ((1,), 1, 37, 8, 64),
    ((1, 3, 2), 3, 64, 8, 64),
    ((4, 17), 1, 130, 16, 64),
    ((2, 1), 2, 64, 4, 32),
    ((2, 1), 2, 64, 1, 64),
    ((2, 1), 2, 64, 24, 96),
    ((2, 1), 2, 64, 8, 128),
    ((1, 2), 1, 65, 5, 160),
]
# The demo model's: 32 sequences of six rows at once, and the rows of a prompt.
DEMO = [((6,) * 32, 16, 64, 8, 64), ((300, 2), 70, 64, 8, 64), ((1, 1), 130, 64, 64, 64)]


@pytest.mark.parametrize("shape", SHAPES + DEMO, ids=str)
def test_scores(generator, device, released, shape):
    """Guards the formula, the unpacking and where a key lies: scores of other keys look as good."""
    if shape in DEMO and not released:
        pytest.skip("too large for the interpreter")
    case = Case(generator, device, *shape)
    assert not serves(case.query)
    actual = case.scores()
    assert actual.dtype == torch.bfloat16
    bound = 2.0**-16 * case.size()
    assert_close(actual, case.expected(torch.bfloat16), bound)
    assert_close(actual, case.expected(torch.float64), bound)


def test_many_heads_agree(generator, device):
    """Guards that both kernels mean the same by their arguments: heads that either may score."""
    case = Case(generator, device, (1, 3), 2, 64, heads=16)
    view = case.places._replace(groups=case.groups())
    args = case.query, case.weights, case.keys, view
    assert_close(index_scores_small(*args), index_scores(*args), case.bound())


@pytest.mark.parametrize("heads", [1, 8, 16])
def test_rows_do_not_depend_on_their_batch(generator, device, heads):
    """Guards invariance: a row alone gets the bits that it has among others, in fewer entries, too:
    those of a later step must not change what an earlier one was chosen by."""
    case = Case(generator, device, (4, 1, 3), 3, 64, heads, 64)
    together, view = case.scores(), case.places
    for row in range(8):
        alone = view._replace(
            blocks=view.blocks[view.sequence_ids[row : row + 1], :2].contiguous(),
            sequence_ids=view.sequence_ids[row : row + 1] * 0,
            num_visible=view.num_visible[row : row + 1],
        )
        scores = index_scores_small(
            case.query[row : row + 1], case.weights[row : row + 1], case.keys, alone
        )
        assert torch.equal(scores[0], together[row, :128])


def test_nothing_to_score(generator, device):
    """Guards the first steps: no row, no entry, nothing that a row sees, as of rows that pad."""
    case = Case(generator, device, (2,), 2, 64, 8, 64)
    args, view = (case.query, case.weights, case.keys), case.places
    nobody = view._replace(
        sequence_ids=view.sequence_ids[:0], num_visible=view.num_visible[:0], groups=()
    )
    none = case.query[:0], case.weights[:0], case.keys
    assert index_scores_small(*none, nobody).shape == (0, 128)
    chosen = torch.zeros(2, 3, dtype=torch.int32, device=device)
    assert index_scores_small(*none, nobody, chosen[:0], 8).shape == (0, 24)
    assert index_scores_small(*args, view._replace(blocks=view.blocks[:, :0])).shape == (2, 0)
    blind = view._replace(num_visible=view.num_visible * 0)
    assert bool((index_scores_small(*args, blind) == -INF).all())
    assert bool((index_scores_small(*args, blind, chosen, 8) == -INF).all())


@pytest.mark.parametrize("power", [-110, -72, 0, 30, 110])
def test_scales_are_exact(generator, device, power):
    """Guards the range of scales: one group far from the other, both at far powers of two."""
    case = Case(generator, device, (1,), 1, 64, 8, 64)
    case.keys[:, 32], case.keys[:, 33] = 127 + power, 127
    case.weights.fill_(2.0 ** -max(power, 0))
    assert_close(case.scores(), case.expected(torch.float64), 2.0**-16 * case.size())


def test_zeros(generator, device):
    """Guards sizes that are zero: keys, queries and weights without one make scores of zero, and
    the least scale counts as zero."""
    case = Case(generator, device, (4,), 1, 64, 8, 64)
    case.keys[case.table()[0, :7], :32] &= 0x88
    case.keys[case.table()[0, 7:9], 32:] = 0
    case.query[1], case.weights[2] = 0, 0
    scores = case.scores().masked_fill(~case.visible(), 0)
    assert bool((scores[:, :9] == 0).all()) and bool((scores[1:3] == 0).all())
    assert bool((scores[0, 9:] != 0).all())


@pytest.mark.parametrize("channels", [32, 64, 96])
def test_all_codes_one_by_one(generator, device, channels):
    """Guards the order of channels: a query channel meets its own nibble, with its value."""
    case = Case(generator, device, (1,), 2, 64, channels, channels)
    case.query.copy_(torch.eye(channels))
    half = channels // 2
    case.keys[:, :half] = torch.randint(0, 256, case.keys[:, :half].shape, generator=generator)
    for channel in {0, 1, 31, 32 % channels, channels - 1}:
        case.weights.zero_()
        case.weights[:, channel] = 1
        assert torch.equal(case.scores(), case.expected(torch.bfloat16).bfloat16())


@pytest.mark.parametrize("group", [32, 33])
def test_a_broken_key_shows(generator, device, group):
    """Guards against a lost NaN: an entry whose scale is NaN must not look like any other."""
    case = Case(generator, device, (1,), 1, 64, 8, 64)
    case.keys[case.table()[0, 5], group] = 255
    scores = case.scores()[0]
    assert bool(scores[5].isnan()) and int(scores.isnan().sum()) == 1


@pytest.mark.parametrize("what", ["query", "weights"])
def test_a_broken_row_stays_alone(generator, device, what):
    """Guards a row's NaN: it shows in all that the row sees, and nowhere else."""
    case = Case(generator, device, (4,), 1, 64, 8, 64)
    whole = case.scores()
    getattr(case, what)[1, 5] = float("nan")
    scores = case.scores()
    assert bool(scores[1][case.visible()[1]].isnan().all())
    assert torch.equal(scores[[0, 2, 3]], whole[[0, 2, 3]])


@pytest.mark.parametrize("block_size", [4, 3])
@pytest.mark.parametrize("width", [1, 40])
def test_scores_of_candidates(generator, device, block_size, width):
    """Guards candidates: each place of a row's list has the score that its entry has among all."""
    case = Case(generator, device, (1, 3), 3, 64, 8, 64)
    listed = case.candidates(generator, width, block_size)
    args = case.query, case.weights, case.keys, case.places
    actual = index_scores_small(*args, listed, block_size)
    entry = (listed[:, :, None] * block_size + torch.arange(block_size, device=device)).flatten(1)
    is_listed = (listed >= 0).repeat_interleave(block_size, 1)
    expected = case.scores().gather(1, entry.clamp_min(0).long()).masked_fill(~is_listed, -INF)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("heads", [8, 32])
def test_select(generator, device, heads):
    """Guards which kernel scores: heads that the one for many is not made for come from the other,
    first of all entries, then of candidates."""
    case = Case(generator, device, (2, 1), 3, 64, heads, 64 if heads == 8 else 128)
    kernels, rule = load_kernels("triton"), CandidateRule(4, 20)
    view = case.places._replace(groups=case.groups())
    asked = case.query, case.weights, case.keys, view, 16, rule
    first = kernels.select(*asked, makes_candidates=True)
    scores = case.scores()
    best = scores.float().sort(dim=-1, descending=True, stable=True)
    for row, count in enumerate(case.places.num_visible.clamp_max(16).tolist()):
        entry = best.indices[row, :count].sort().values
        rows = case.table()[case.places.sequence_ids[row], entry]
        assert torch.equal(first.rows[row, :count].long(), rows)
        assert bool((first.rows[row, count:] == -1).all())
    again = kernels.select(*asked, first.candidates)
    # The best entries lie in the best blocks, of which there are more than enough.
    assert torch.equal(again.rows, first.rows)
