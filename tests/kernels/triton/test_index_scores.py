"""Index scores from packed keys against the reference and against float64 (spec 7.4, 7.5, 14.3)."""

import re

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from deepinfer.kernels.reference import index, quant
from deepinfer.kernels.triton import index_keys
from deepinfer.kernels.triton.index_scores import index_scores, index_scores_of
from deepinfer.kernels.values import EntryView

pytestmark = pytest.mark.gpu
INF = float("inf")


def packed_keys(keys: Tensor) -> Tensor:
    """float32 [*, 128] -> uint8 [*, 68]: what the cache holds."""
    codes, scales = quant.encode_fp4(keys)
    return torch.cat((codes.view(torch.uint8), scales), 1)


def unpacked_keys(packed: Tensor) -> Tensor:
    """The inverse, float32."""
    return quant.decode_fp4(packed[:, :64], quant.decode_ue8m0(packed[:, 64:]))


class Case:
    """Sequences with some rows each, their keys in shuffled blocks of one store."""

    def __init__(self, generator, device, counts, num_blocks, per_block, heads=32):
        def normal(*shape):
            return torch.randn(*shape, generator=generator)

        num_rows, self.counts, self.device = sum(counts), counts, device
        query = quant.round_trip_mxfp4(normal(num_rows, heads, 128) * 3)
        self.query = query.to(device, torch.bfloat16)
        self.weights = normal(num_rows, heads).to(device, torch.bfloat16)
        order = torch.randperm(len(counts) * num_blocks + 1, generator=generator)
        # Channel groups of very different size: a wrong scale shows.
        spread = torch.exp2(torch.randint(-6, 7, (len(order) * per_block, 4), generator=generator))
        keys = normal(len(order) * per_block, 128) * spread.repeat_interleave(32, 1)
        self.keys = packed_keys(keys).to(device)
        num_entries = num_blocks * per_block
        sees = torch.randint(0, num_entries + 1, (num_rows,), generator=generator)
        sees[0] = num_entries
        self.places = EntryView(
            order[: len(counts) * num_blocks].view(len(counts), num_blocks).to(device),
            per_block,
            torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(device),
            sees.to(device),
            (),
        )

    def groups(self, most: int = 8) -> tuple[Tensor, ...]:
        """Short sequences together, padded with -1; others alone, `most` and all."""
        first = [sum(self.counts[:i]) for i in range(len(self.counts))]
        short = [i for i, count in enumerate(self.counts) if count <= most]
        width = max((self.counts[i] for i in short), default=0)
        rows = [[first[i] + k if k < self.counts[i] else -1 for k in range(width)] for i in short]
        long = [
            torch.arange(first[i], first[i] + count)[None]
            for i, count in enumerate(self.counts)
            if count > most
        ]
        made = ([torch.tensor(rows)] if rows else []) + long
        return tuple(rows.to(self.device) for rows in made)

    def table(self) -> Tensor:
        entry = torch.arange(self.places.num_entries, device=self.device)
        blocks = self.places.blocks[:, entry // self.places.per_block]
        return blocks * self.places.per_block + entry % self.places.per_block

    def visible(self) -> Tensor:
        entry = torch.arange(self.places.num_entries, device=self.device)
        return entry < self.places.num_visible[:, None]

    def scores(self, groups=None) -> Tensor:
        groups = self.groups() if groups is None else groups
        view = self.places._replace(groups=groups)
        return index_scores(self.query, self.weights, self.keys, view)

    def expected(self, dtype: torch.dtype) -> Tensor:
        """The reference op's scores in bfloat16, or the formula in float64; -inf where unseen."""
        store = unpacked_keys(self.keys)
        table = self.table()[self.places.sequence_ids]
        if dtype == torch.bfloat16:
            query, weights = self.query[:, None], self.weights[:, None]
            scores = index.index_scores(query, weights, store.bfloat16(), table)[:, 0]
        else:
            scores = torch.stack(
                [
                    (torch.relu(q.double() @ store[rows].double().T) * w.double()[:, None]).sum(0)
                    for q, w, rows in zip(self.query, self.weights, table, strict=True)
                ]
            )
        return scores.masked_fill(~self.visible(), -INF)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Equal but for one more or less in bfloat16's last place: heads are added in another order."""
    assert torch.equal(actual == -INF, expected == -INF)
    seen = expected != -INF
    actual, expected = actual[seen].double(), expected[seen].double()
    size = expected.abs().max().item() if len(expected) else 0.0
    torch.testing.assert_close(actual, expected, rtol=2**-7, atol=size * 1e-5)


SHAPES = [  # rows of each sequence, blocks, entries of a block, heads
    ((1,), 1, 37, 32),
    ((1, 3, 2), 3, 64, 32),
    ((4, 17), 1, 130, 8),
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
    assert_close(actual, case.expected(torch.bfloat16))
    exact, seen = case.expected(torch.float64), case.visible()
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


@pytest.mark.parametrize("power", [-72, -40, 0, 2, 30, 61])
def test_scales_are_exact(generator, device, power):
    """Guards the range of scales: all of one key's channels, 0.5 to 6, at far powers of two."""
    case = Case(generator, device, (1,), 1, 64, heads=16)
    case.keys[:, 64:] = 127 + power
    case.weights.fill_(2.0**-power)
    assert_close(case.scores(), case.expected(torch.float64).bfloat16())


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


@pytest.mark.parametrize("block_size", [8, 3])
@pytest.mark.parametrize("width", [1, 20])
def test_scores_of_candidates(generator, device, block_size, width):
    """Guards candidates: each place of a row's list has the score that its entry has among all."""
    case = Case(generator, device, (3, 1, 17), 2, 64)
    total = case.places.num_entries // block_size
    listed = torch.full((21, width), -1, dtype=torch.int32)
    for row in range(21):
        count = int(torch.randint(0, width + 1, (), generator=generator))
        chosen = torch.randperm(total, generator=generator)[:count].sort().values
        listed[row, : len(chosen)] = chosen
    listed = listed.to(device)
    actual = index_scores_of(case.query, case.weights, case.keys, case.places, listed, block_size)
    entry = (listed[:, :, None] * block_size + torch.arange(block_size, device=device)).flatten(1)
    is_listed = (listed >= 0).repeat_interleave(block_size, 1)
    expected = case.scores().gather(1, entry.clamp_min(0).long()).masked_fill(~is_listed, -INF)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("nibble", range(4))
def test_assembly(nibble):
    """Guards what the interpreter cannot run: the assembly's steps make e2m1 times a scale."""
    text = getattr(index_keys, f"_UNPACK_{nibble}").value
    shift, mask, spread, keep = (
        int(re.search(pattern + r" t, (?:t|\$1), (\w+);", text)[1], 0)
        for pattern in ("shr.b32", "and.b32", "mul.lo.u32", r"0x\w+;\s+and.b32")
    )
    code = torch.arange(1 << 16)
    word = code | (code * 40503 & 0xFFFF) << 16
    raw = ((word >> shift & mask) * spread) & 0xFFFFFFFF & keep
    for scale in (55, 127, 129, 188):
        power = (scale + 66) << 7  # `index_keys._factor`
        for half in (0, 16):
            pair = torch.stack((raw >> half & 0xFFFF, torch.full_like(raw, power)))
            value, factor = (pair << 16).int().view(torch.float32).double()
            expected = quant.fp4_value(word >> (half + 4 * nibble) & 15).double()
            assert torch.equal(value * factor, expected * 2.0 ** (scale - 127 - 60))
