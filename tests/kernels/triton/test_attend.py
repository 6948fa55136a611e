"""Attention over packed rows against the reference ops and float64 (spec 7.6)."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.reference import attend as reference
from deepinfer.kernels.reference import norm_rope
from deepinfer.kernels.triton.attend import attend
from deepinfer.kernels.values import Rotary
from tests.kernels.triton.packed import decode, encode

pytestmark = pytest.mark.gpu

# heads, channels, pairs, window list, entry list
TOYS = [(3, 32, 4, 5, 0), (4, 64, 8, 70, 3), (8, 128, 16, 133, 70), (17, 64, 32, 0, 130)]
RELEASED = (64, 512, 32, 128, 512)


class Case(NamedTuple):
    """Inputs of `attend`, on the CPU."""

    query: Tensor
    rotary: Rotary
    sink: Tensor
    window: Tensor
    window_index: Tensor
    entries: Tensor
    entry_index: Tensor

    def to(self, device: str) -> "Case":
        turn = Rotary(*(x.to(device) for x in self.rotary))
        return Case(self.query.to(device), turn, *(x.to(device) for x in self[2:]))

    def rows(self, rows: slice) -> "Case":
        """Some of the rows, the same stores."""
        return self._replace(
            query=self.query[rows],
            rotary=Rotary(*(x[rows] for x in self.rotary)),
            window_index=self.window_index[rows],
            entry_index=self.entry_index[rows],
        )

    def run(self, **options: bool) -> Tensor:
        scale = self.query.shape[2] ** -0.5
        return attend(self.query, self.rotary, self.sink, scale, *self[3:], **options)


def store_of(generator: torch.Generator, rows: int, channels: int, is_fp4: bool) -> Tensor:
    size = 2.0 ** torch.randint(-3, 3, (rows, channels // 16), generator=generator)
    x = torch.randn(rows, channels, generator=generator) * size.repeat_interleave(16, 1)
    return encode(x.bfloat16().float(), is_fp4)


def make(generator: torch.Generator, rows: int, shape: tuple[int, ...], is_fp4: bool) -> Case:
    heads, channels, pairs, window, entries = shape
    turn = torch.rand(rows, pairs, generator=generator) * 1000
    stored = 4 * max(window, entries) + 3
    window_index = torch.randint(-1, stored, (rows, window), generator=generator)
    entry_index = torch.randint(0, stored, (rows, entries), generator=generator).sort(1).values
    lengths = torch.randint(0, entries + 1, (rows, 1), generator=generator)
    entry_index[torch.arange(entries) >= lengths] = -1
    if rows > 1:
        entry_index[0, :] = -1
    return Case(
        torch.randn(rows, heads, channels, generator=generator).bfloat16(),
        Rotary(turn.cos(), turn.sin()),
        torch.randn(heads, generator=generator),
        store_of(generator, stored, channels, False),
        window_index,
        store_of(generator, stored, channels, is_fp4),
        entry_index,
    )


def expected(case: Case, dtype: torch.dtype) -> Tensor:
    """The reference ops in float64, rounded to bf16 where the ops hand over, or all in bf16."""
    channels = case.query.shape[2]
    query = norm_rope.rotate(case.query, *case.rotary).to(dtype)
    window, entries = (decode(x, channels).to(dtype) for x in (case.window, case.entries))
    lists = (window, case.window_index, entries, case.entry_index)
    if dtype == torch.float64:
        mixed = torch.stack([exact(query, case, *lists, row) for row in range(len(query))])
    else:
        mixed = reference.attend(query, case.sink, channels**-0.5, *lists)
    return norm_rope.rotate(mixed.bfloat16(), *case.rotary.inverse())


def exact(query, case, window, window_index, entries, entry_index, row) -> Tensor:
    keys = [
        store[i[row][i[row] >= 0]] for store, i in ((window, window_index), (entries, entry_index))
    ]
    keys = torch.cat(keys)
    logits = query[row] @ keys.T * query.shape[2] ** -0.5
    logits = torch.cat([logits, case.sink.double()[:, None]], 1)
    return logits.softmax(1)[:, :-1] @ keys


def check(case: Case, device: str, **options: bool) -> Tensor:
    found = case.to(device).run(**options).cpu()
    assert found.dtype == torch.bfloat16 and found.shape == case.query.shape
    assert found.isfinite().all()
    true, usual = expected(case, torch.float64).double(), expected(case, torch.bfloat16).double()
    relative = (found - true).norm() / true.norm().clamp_min(1e-30)
    print(f"relerr {relative:.2e}")
    assert relative < 5e-3
    torch.testing.assert_close(found.double(), usual, rtol=2**-6, atol=float(true.abs().max()) / 64)
    return found


@pytest.mark.parametrize("is_fp4", [True, False])
@pytest.mark.parametrize("shape", TOYS)
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_toys(rows, shape, is_fp4, device, generator):
    """Guards both formats, ragged lists, gaps, rows without entries, shared out or not."""
    case = make(generator, rows, shape, is_fp4)
    found = check(case, device)
    alone = check(case, device, is_invariant=True)
    if rows > 16:
        assert torch.equal(found, alone)


@pytest.mark.parametrize("is_fp4", [True, False])
@pytest.mark.parametrize("rows", [1, 4, 17, 150])
@pytest.mark.parametrize("window", [128, 133])
def test_released(rows, window, is_fp4, device, released, generator):
    """Guards the shapes that run: 64 heads, 512 channels, tensor cores."""
    if not released:
        pytest.skip("too large for the interpreter")
    shape = (*RELEASED[:3], window, RELEASED[4])
    check(make(generator, rows, shape, is_fp4), device)


def test_full_lists(device, released, generator):
    """Guards long lists without a single -1, and int32 lists."""
    shape = RELEASED if released else (4, 64, 8, 64, 128)
    case = make(generator, 2, shape, True)
    full = [torch.randint(0, 100, i.shape, generator=generator).int() for i in case[4::2]]
    check(case._replace(window_index=full[0], entry_index=full[1]), device)


def test_a_row_met_twice_counts_twice(device, generator):
    """Guards spec 7.6: a row in both lists, or twice in one, is two summands."""
    case = make(generator, 2, (4, 64, 8, 6, 6), False)
    lists = torch.tensor([[3, 3, 1, -1, -1, -1]] * 2)
    check(case._replace(entries=case.window, window_index=lists, entry_index=lists), device)


@pytest.mark.parametrize("rows", [3, 17])
def test_nothing_to_attend_to(rows, device, generator):
    """Guards rows without a key: 0, not NaN. Lists may also have no width, stores no rows."""
    case = make(generator, rows, (4, 64, 8, 5, 5), True)
    for width in (0, 70):
        nothing = torch.full((rows, width), -1)
        empty = case._replace(
            window_index=nothing, entry_index=nothing, entries=case.entries[:0]
        ).to(device)
        assert (empty.run() == 0).all()


def test_without_entries(device, generator):
    """Guards window layers: no store of entries at all is an empty list."""
    case = make(generator, 3, (4, 64, 8, 70, 5), True).to(device)
    few = attend(*case[:3], 0.125, *case[3:5])
    assert torch.equal(few, case._replace(entry_index=case.entry_index[:, :0]).run())
    assert attend(*case.rows(slice(0, 0))[:3], 0.125, *case.rows(slice(0, 0))[3:]).shape[0] == 0


@pytest.mark.parametrize("rows", [3, 17])
def test_rows_that_nobody_lists_do_not_matter(rows, device, generator):
    """Guards reused memory: bytes that decode to NaN, row 0 among them, reach no output."""
    case = make(generator, rows, (4, 64, 8, 70, 9), True)
    lists = [torch.where(i == 0, 1, i) for i in (case.window_index, case.entry_index)]
    case = case._replace(window_index=lists[0], entry_index=lists[1])
    clean = case.to(device).run()
    for store, listed in ((case.window, lists[0]), (case.entries, lists[1])):
        store[~torch.isin(torch.arange(len(store)), listed)] = 0xFF
        assert (store[0] == 0xFF).all()
    assert torch.equal(case.to(device).run(), clean)


def test_nan_stays_visible(device, generator):
    """Guards against an upset row that looks like a number: its scale code says NaN."""
    case = make(generator, 2, (4, 64, 8, 5, 5), True)
    case.window_index[:], case.entry_index[:] = 1, 1
    case.window_index[1], case.entry_index[1] = 2, 2
    for name in ("window", "entries"):
        upset = getattr(case, name).clone()
        upset[1, -1] = 0xFF if name == "window" else 0x7F
        found = case._replace(**{name: upset}).to(device).run()
        assert found[0].isnan().any()
        assert found[1].isfinite().all()


@pytest.mark.parametrize("sink", [-300.0, 0.0, 300.0])
def test_large_logits(sink, device, generator):
    """Guards against overflow: exp of the raw logits is infinite, and so is exp of the sink."""
    case = make(generator, 3, (4, 64, 8, 70, 70), True)
    case = case._replace(query=case.query * 100, sink=torch.full((4,), sink))
    found, true = case.to(device).run().cpu(), expected(case, torch.float64)
    torch.testing.assert_close(found, true, rtol=2**-6, atol=2**-5)


def test_extreme_scales(device, generator):
    """Guards the decoder's factors: groups far below and above 1 still mix exactly enough."""
    case = make(generator, 2, (4, 64, 8, 5, 5), True)
    power = 2.0 ** torch.tensor([-20.0, 0.0, 7.0, -8.0]).repeat_interleave(16)
    x = (torch.randn(23, 64, generator=generator) * power).bfloat16().float()
    stores = [encode(x, is_fp4) for is_fp4 in (False, True)]
    check(case._replace(window=stores[0], entries=stores[1]), device)


@pytest.mark.parametrize("is_fp4", [True, False])
def test_a_row_does_not_depend_on_its_batch(is_fp4, device, released, generator):
    """Guards batch invariance: rows alone, in pairs and all together have the same bits."""
    case = make(generator, 17, RELEASED if released else (4, 64, 8, 70, 70), is_fp4).to(device)
    everything, few = case.run(is_invariant=True), case.rows(slice(0, 3)).run()
    for row in range(3):
        assert torch.equal(case.rows(slice(row, row + 1)).run()[0], few[row])
    for start, stop in ((0, 1), (4, 5), (16, 17), (0, 2), (7, 9)):
        rows = slice(start, stop)
        assert torch.equal(case.rows(rows).run(is_invariant=True), everything[rows])


def test_unknown_width(device, generator):
    """Guards a store of another layout: its bytes would be read as numbers."""
    case = make(generator, 1, (4, 64, 8, 5, 5), True).to(device)
    with pytest.raises(ValueError, match="36 and 36 bytes"):
        case._replace(window=case.entries).run()
