"""The experts' product for many rows on Hopper against the one for few and against float64."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.triton import expert_product
from deepinfer.kernels.triton.device import is_hopper
from deepinfer.kernels.triton.expert_order import sort_pairs
from deepinfer.kernels.triton.expert_product import choose_tiling, grouped_product
from deepinfer.kernels.triton.expert_weights import ExpertWeights, pack_experts, unpack_expert

pytestmark = pytest.mark.gpu

LIMIT = 1.5
RAGGED = [0, 1, 127, 128, 129, 1000, 300, 64]


@pytest.fixture(autouse=True)
def _on_hopper(device: str) -> None:
    if device != "cuda" or not is_hopper(torch.device("cuda", torch.cuda.current_device())):
        pytest.skip("needs a GPU of compute capability 9.0")


class Work(NamedTuple):
    """Rows of both products, sorted."""

    packed: ExpertWeights
    x: Tensor
    hidden: Tensor
    common: tuple[Tensor, Tensor, Tensor, int, float]


def coded(shape, generator):
    *front, width = shape
    codes = torch.randint(-128, 128, (*front, width // 2), generator=generator, dtype=torch.int8)
    scales = torch.randint(118, 124, (*front, width // 32), generator=generator)
    return codes.cuda(), scales.to(torch.uint8).cuda()


def make(counts, sizes, topk, generator):
    """Experts of these sizes, of which each has so many pairs, and some pairs have none."""
    hidden, width = sizes
    shapes = (width, hidden), (width, hidden), (hidden, width)
    packed = pack_experts(*[coded((len(counts), *shape), generator) for shape in shapes])
    pairs = sum(counts)
    ids = torch.full((-(-(pairs + 5) // topk), topk), -1)
    ids.view(-1)[:pairs] = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    ids = ids.view(-1)[torch.randperm(ids.numel(), generator=generator)].view(ids.shape).cuda()
    x, rows = (
        torch.randn(count, size, generator=generator).bfloat16().cuda()
        for count, size in ((len(ids), hidden), (ids.numel(), width))
    )
    weights = torch.rand(ids.shape, generator=generator).cuda()
    return Work(packed, x, rows, (*sort_pairs(ids, len(counts), 128), weights, topk, LIMIT))


def both(work, monkeypatch, *, is_down, is_fp8=False):
    """What the two kernels write; what they leave is NaN."""
    packed, pairs = work.packed, len(work.hidden)
    found = []
    for many in (0, 10**9):
        monkeypatch.setattr(expert_product, "_MANY", many)
        size = packed.hidden if is_down else packed.width
        out = torch.full((pairs, size), torch.nan, device="cuda").bfloat16()
        if is_down:
            parts = work.hidden, packed.down, packed.down_scales
        else:
            parts = work.x, packed.gate_up, packed.gate_up_scales
        how = {"is_down": is_down, "is_fp8": is_fp8}
        grouped_product(*parts, out, work.common, choose_tiling(1000, 1), **how)
        found.append(out)
    return found


def is_same(one, other):
    """The same bits, whatever bits NaN has."""
    nan = one.isnan()
    return torch.equal(nan, other.isnan()) and torch.equal(one[~nan], other[~nan])


def expected(work, place, expert, is_down):
    """One row in float64, and where it goes; nothing rounded but gate and up."""
    order, _, weights, topk, limit = work.common
    pair = int(order[place])
    w1, w3, w2 = (part.double() for part in unpack_expert(work.packed, expert))
    if is_down:
        return pair, w2 @ work.hidden[place].double()
    row = work.x[pair // topk].double()
    gate, up = ((part @ row).bfloat16().double() for part in (w1, w3))
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return place, torch.nn.functional.silu(gate) * up * weights.view(-1)[pair].double()


@pytest.mark.parametrize(
    ("counts", "sizes", "topk"),
    [
        (RAGGED, (5120, 2304), 6),
        (RAGGED, (256, 128), 1),
        ([5, 0, 140], (384, 640), 3),  # an odd number of blocks, and channels that are padded
        ([3], (128, 128), 1),
        ([129] * 200, (256, 256), 8),  # several items for every program
    ],
    ids=str,
)
@pytest.mark.parametrize("is_down", [False, True], ids=["gate_up", "down"])
def test_same_bits(generator, monkeypatch, counts, sizes, topk, is_down):
    """Guards the kernel for many rows: the bits of the other, the same rows left alone, and of the
    first and last row of each expert the value."""
    work = make(counts, sizes, topk, generator)
    many, few = both(work, monkeypatch, is_down=is_down)
    assert is_same(many, few)
    assert int(many.isnan().any(-1).sum()) == len(many) - sum(counts)
    place = 0
    for expert, count in enumerate(counts):
        for one in {place, place + count - 1} if count else ():
            goal, value = expected(work, one, expert, is_down)
            error = float((many[goal].double() - value).norm() / value.norm())
            assert error < 8e-3, (expert, one, error)
        place += count


def test_quantised(generator, monkeypatch):
    """Guards act_quant: the same groups of channels as in the other kernel."""
    work = make([0, 200, 61], (256, 384), 2, generator)
    many, few = both(work, monkeypatch, is_down=False, is_fp8=True)
    assert is_same(many, few)
    plain, _ = both(work, monkeypatch, is_down=False)
    assert not is_same(many, plain)


@pytest.mark.parametrize("is_down", [False, True], ids=["gate_up", "down"])
def test_not_a_number_stays(generator, monkeypatch, is_down):
    """Guards a broken row: it is seen, and breaks no other of its tile."""
    work = make([130, 7], (256, 128), 1, generator)
    sound, _ = both(work, monkeypatch, is_down=is_down)
    if is_down:
        work.hidden[9, 3] = torch.nan
    else:
        work.x[work.common[0][9].long(), 3] = torch.nan
    many, few = both(work, monkeypatch, is_down=is_down)
    assert is_same(many, few)
    assert int((many.isnan() & ~sound.isnan()).any(-1).sum()) == 1


def test_again_and_again(generator, monkeypatch):
    """Guards waiting: a stage read too early or written too soon shows in some of many calls."""
    work = make([300, 20, 513, 128], (1280, 512), 4, generator)
    for is_down in (False, True):
        first, _ = both(work, monkeypatch, is_down=is_down)
        for _ in range(50):
            assert is_same(both(work, monkeypatch, is_down=is_down)[0], first)
