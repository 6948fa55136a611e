"""Selections on the device against the reference: the same sets, ties included (spec 7.5)."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from deepinfer.kernels.reference import index
from deepinfer.kernels.triton import select
from deepinfer.kernels.triton.select import candidate_blocks, select_entries
from deepinfer.kernels.values import EntryView

pytestmark = pytest.mark.gpu
INF = float("inf")


def few_values(generator, num_rows: int, width: int) -> Tensor:
    """Ties everywhere, both zeros, both signs."""
    values = torch.tensor([-2.0, -1.0, -0.0, 0.0, 1.0, 1.0078125])
    return values[torch.randint(0, 6, (num_rows, width), generator=generator)]


def normal(generator, num_rows: int, width: int) -> Tensor:
    return torch.randn(num_rows, width, generator=generator)


def broken(generator, num_rows: int, width: int) -> Tensor:
    """NaN of both signs, infinities, numbers at the ends of the range."""
    values = torch.tensor([torch.nan, -torch.nan, INF, 3.4e38, -3.39e38, 1e-40, -1e-40, 0.0])
    return values[torch.randint(0, 8, (num_rows, width), generator=generator)]


def rising(generator, num_rows: int, width: int) -> Tensor:
    """The best are together at the end."""
    return torch.arange(width).expand(num_rows, -1) / 8


def one_group(generator, num_rows: int, width: int) -> Tensor:
    """All good places are STEP apart: the sieve's bound is far too low."""
    return torch.where(torch.arange(width) % select._STEP < 3, 5.0, 1.0).expand(num_rows, -1)


KINDS = [few_values, normal, broken, rising, one_group]


def made(generator, device, kind, num_rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Scores bf16, -inf from each row's num_visible on; the first row sees all, the last none."""
    num_visible = torch.randint(0, width + 1, (num_rows,), generator=generator)
    num_visible[-1], num_visible[0] = 0, width
    scores = kind(generator, num_rows, width).bfloat16()
    scores = scores.masked_fill(torch.arange(width) >= num_visible[:, None], -INF)
    return scores.to(device), num_visible.to(device)


def expected_entries(scores: Tensor, topk: int) -> Tensor:
    return index.select_entries(scores.float(), scores != -INF, topk).int()


@pytest.fixture
def small(monkeypatch) -> None:
    """Steps so short that a few hundred places need several, and several parts."""
    monkeypatch.setattr(select, "_STEP", 64)
    monkeypatch.setattr(select, "_DIRECT", 64)
    monkeypatch.setattr(select, "_LISTED", 128)
    monkeypatch.setattr(select, "_WORDS", 16)


WIDTHS = [(1, 1, 4), (3, 5, 8), (17, 100, 8), (3, 1024, 33), (1, 777, 512)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_rows", "width", "topk"), WIDTHS, ids=str)
def test_short_rows(generator, device, kind, num_rows, width, topk):
    """Guards the choice itself: ties to the lowest, NaN first, -1 at the end."""
    scores, num_visible = made(generator, device, kind, num_rows, width)
    expected = expected_entries(scores, topk)
    assert torch.equal(select_entries(scores, topk), expected)
    assert torch.equal(select_entries(scores, topk, num_visible), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("num_rows", "width", "topk"), [(3, 500, 8), (1, 1000, 20), (2, 300, 1)], ids=str
)
def test_rounds_of_the_sieve(generator, device, small, kind, num_rows, width, topk):
    """Guards the sieve, where nothing that belongs to the best may be lost, and its way out."""
    scores, num_visible = made(generator, device, kind, num_rows, width)
    expected = expected_entries(scores, topk)
    assert torch.equal(select_entries(scores, topk, num_visible), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_long_rows(generator, device, kind):
    """Guards the sizes that are used: one part, several parts, a last part of a few places."""
    scores, num_visible = made(generator, device, kind, 2, 16_384 + 48)
    expected = expected_entries(scores, 512)
    assert torch.equal(select_entries(scores, 512, num_visible), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1024, 65_536), (4, 131_072), (2, 1_048_576)], ids=str)
def test_released_rows(generator, device, released, kind, shape):
    """Guards what the interpreter cannot afford: many programs, several rounds of lists."""
    if not released:
        pytest.skip("too large for the interpreter")
    scores, num_visible = made(generator, device, kind, *shape)
    expected = torch.cat([expected_entries(part, 512) for part in scores.split(64)])
    assert torch.equal(select_entries(scores, 512, num_visible), expected)


def test_rows_do_not_depend_on_their_batch(generator, device, small, monkeypatch):
    """Guards invariance, though rows are split in other places when they are few."""
    monkeypatch.setattr(select, "_PROGRAMS", 8)
    scores, _ = made(generator, device, few_values, 5, 600)
    together = select_entries(scores, 24)
    for row in range(5):
        assert torch.equal(select_entries(scores[row : row + 1], 24)[0], together[row])
    pair = torch.cat([select_entries(part.contiguous(), 24) for part in scores.split(2)])
    assert torch.equal(pair, together)


def test_no_rows(device):
    """Guards an empty step, and rows that have no place at all."""
    none = torch.empty(0, 40, dtype=torch.bfloat16, device=device)
    seen = torch.empty(0, dtype=torch.int64, device=device)
    assert select_entries(none, 8).shape == (0, 8)
    assert candidate_blocks(none, seen, 8, 2).shape == (0, 2)
    empty = torch.empty(2, 0, dtype=torch.bfloat16, device=device)
    assert bool((select_entries(empty, 8) == -1).all())
    assert candidate_blocks(empty, torch.zeros(2, device=device).long(), 8, 2).shape == (2, 0)


@pytest.mark.parametrize("per_block", [64, 37])
@pytest.mark.parametrize("block_size", [None, 8])
def test_where_the_chosen_lie(generator, device, per_block, block_size):
    """Guards the way from place to entry to store row: a row off by one attends to a stranger."""
    num_rows, topk, num_blocks, listed = 7, 20, 4, 12
    width = num_blocks * per_block if block_size is None else listed * block_size
    scores, _ = made(generator, device, few_values, num_rows, width)
    place = expected_entries(scores, topk).long()
    candidates, entry, seen = None, place, None
    if block_size is not None:
        # As many blocks are listed as hold a visible entry, if that is fewer than the list is long.
        seen = torch.full((num_rows,), (listed - 2) * block_size - 3, device=device)
        scores[:, (listed - 2) * block_size :] = -INF
        place = expected_entries(scores, topk).long()
        total = num_blocks * per_block // block_size
        chosen = [torch.randperm(total, generator=generator)[:listed] for _ in range(num_rows)]
        candidates = torch.stack(chosen).sort().values.int().to(device)
        block = candidates.long().gather(1, place.clamp_min(0) // block_size)
        entry = block * block_size + place.clamp_min(0) % block_size
    assert torch.equal(
        select_entries(scores, topk, seen, candidates=candidates, block_size=block_size or 1),
        torch.where(place < 0, -1, entry).int(),
    )
    blocks = torch.randperm(3 * num_blocks, generator=generator).view(3, num_blocks).to(device)
    ids = torch.tensor([0, 0, 1, 1, 1, 2, 2], device=device)
    stored_at = EntryView(blocks, per_block, ids, ids, ())
    row = blocks[ids].gather(1, entry.clamp_min(0) // per_block) * per_block
    row += entry.clamp_min(0) % per_block
    actual = select_entries(
        scores, topk, seen, candidates=candidates, block_size=block_size or 1, stored_at=stored_at
    )
    assert torch.equal(actual, torch.where(place < 0, -1, row).int())


def assert_same_blocks(scores: Tensor, num_visible: Tensor, size: int, most: int) -> None:
    """Ascending, then -1, and the same visible entries as the reference's."""
    num_rows, width = scores.shape
    actual = candidate_blocks(scores, num_visible, size, most)
    num_blocks = -(-width // size)
    assert actual.shape == (num_rows, min(most, num_blocks)) and actual.dtype == torch.int32
    kept = torch.zeros(num_rows, num_blocks + 1, dtype=torch.bool, device=scores.device)
    kept.scatter_(1, torch.where(actual < 0, num_blocks, actual).long(), True)
    count = kept[:, :-1].sum(1)
    assert torch.equal(count, (actual >= 0).sum(1))
    places = torch.arange(actual.shape[1], device=scores.device)
    ends = torch.where(actual < 0, num_blocks + places, actual)
    assert bool((ends.diff(dim=1) > 0).all())
    visible = torch.arange(width, device=scores.device) < num_visible[:, None]
    mask = kept[:, :-1].repeat_interleave(size, 1)[:, :width] & visible
    # On the CPU: a GPU's sort puts NaN with a sign last.
    expected = index.candidate_entries(scores.float().cpu(), num_visible.cpu(), size, most)
    assert torch.equal(mask.cpu(), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "most"), [(8, 4), (8, 100), (3, 7), (1, 2)], ids=str)
def test_candidate_blocks(generator, device, kind, size, most):
    """Guards candidates: blocks count as their best, the newest stays, ties go to the lowest."""
    for width in (1, 100, 403):
        scores, num_visible = made(generator, device, kind, 5, width)
        assert_same_blocks(scores, num_visible, size, most)


def test_candidate_blocks_of_ruled_out_entries(device):
    """Guards blocks that are seen though all their scores are -inf: they rank last, not never."""
    scores = torch.full((2, 64), -INF, dtype=torch.bfloat16, device=device)
    scores[0, 40] = 1
    assert_same_blocks(scores, torch.tensor([60, 9], device=device), 8, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_candidate_blocks_of_many(generator, device, released, kind):
    """Guards the released size, where the blocks go through the sieve."""
    if not released:
        pytest.skip("too large for the interpreter")
    scores, num_visible = made(generator, device, kind, 16, 131_072)
    assert_same_blocks(scores, num_visible, 8, 2048)
