"""The routed experts on packed FP4 weights against the reference and against float64."""

import pytest
import torch

from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.reference.quant import decode_fp4, decode_ue8m0, round_trip_fp8
from deepinfer.kernels.triton.expert_order import sort_pairs
from deepinfer.kernels.triton.expert_product import choose_tiling, grouped_product
from deepinfer.kernels.triton.expert_weights import (
    ROWS,
    empty_experts,
    pack_expert,
    pack_experts,
    unpack_expert,
)
from deepinfer.kernels.triton.experts import experts, round_rows

pytestmark = pytest.mark.gpu

LIMIT = 1.5
BF16_HALF = 2.0**-8  # half of the widest gap between neighbours of bfloat16


def coded(shape, generator, device, low=118, high=124):
    """Random codes of every value, and scales, of matrices [..., out, in]."""
    *front, width = shape
    codes = torch.randint(-128, 128, (*front, width // 2), generator=generator, dtype=torch.int8)
    scales = torch.randint(low, high, (*front, width // 32), generator=generator).to(torch.uint8)
    return codes.to(device), scales.to(device)


def decoded(matrix):
    return decode_fp4(matrix[0], decode_ue8m0(matrix[1]))


class Model:
    """Experts in three forms: as stored, decoded, packed."""

    def __init__(self, num_experts, hidden, width, generator, device):
        self.stored = [
            coded((num_experts, *shape), generator, device)
            for shape in ((width, hidden), (width, hidden), (hidden, width))
        ]
        self.packed = pack_experts(*self.stored)
        self.device, self.hidden, self.generator = device, hidden, generator
        self.num_experts, self.decoded = num_experts, {}

    def matrices(self, dtype):
        if dtype not in self.decoded:
            self.decoded[dtype] = [decoded(m).to(dtype) for m in self.stored]
        return self.decoded[dtype]

    def rows(self, num_rows, topk):
        """x, ids, weights; the experts of a row are different and ascend."""
        g = self.generator
        x = torch.randn(num_rows, self.hidden, generator=g).bfloat16()
        noise = torch.rand(num_rows, self.num_experts, generator=g)
        ids = noise.argsort(-1)[:, :topk].sort(-1).values
        weights = torch.rand(num_rows, topk, generator=g)
        return x.to(self.device), ids.to(self.device), weights.to(self.device)


def exact(x, ids, weights, matrices, rounding=lambda t: t):
    """The definition in float64, one row and one expert at a time; nothing rounded but the input
    of w2.
    """
    w1, w3, w2 = matrices
    out = torch.zeros(len(x), w2.shape[1], dtype=torch.float64, device=x.device)
    for row in range(len(x)):
        for choice, expert in enumerate(ids[row].tolist()):
            if not 0 <= expert < len(w1):
                continue
            gate = (w1[expert] @ x[row].double()).clamp(max=LIMIT)
            up = (w3[expert] @ x[row].double()).clamp(-LIMIT, LIMIT)
            hidden = torch.nn.functional.silu(gate) * up * weights[row, choice].double()
            out[row] += w2[expert] @ rounding(hidden)
    return out


def relative(actual, expected):
    return float((actual.double() - expected).norm() / expected.norm())


def check(model, x, ids, weights, act_quant="off", sample=None):
    """Against the reference on every row, against float64 on some."""
    actual = experts(x, ids, weights, model.packed, LIMIT, act_quant=act_quant)
    assert actual.dtype == torch.bfloat16 and actual.shape == x.shape
    assert actual.isfinite().all()
    present = (ids >= 0) & (ids < model.num_experts)
    reference = load_kernels(act_quant=act_quant).experts(
        x,
        torch.where(present, ids, 0).long(),
        weights * present,
        *model.matrices(torch.bfloat16),
        LIMIT,
    )
    error = relative(actual, reference.double())
    print(f"against the reference: relerr {error:.2e}")
    assert error < (2e-2 if act_quant == "fp8" else 4e-3)
    some = slice(sample)
    is_fp8 = act_quant == "fp8"
    rounding = (lambda t: round_trip_fp8(t.bfloat16()).double()) if is_fp8 else (lambda t: t)
    rows = round_trip_fp8(x[some]) if is_fp8 else x[some]
    expected = exact(rows, ids[some], weights[some], model.matrices(torch.float64), rounding)
    error = relative(actual[some], expected)
    print(f"against float64: relerr {error:.2e}")
    assert error < (2e-2 if is_fp8 else 5e-3)
    return actual


@pytest.mark.parametrize("size", [(32, 32), (160, 96), (256, 128)], ids=str)
def test_packing_loses_nothing(device, generator, size):
    """Guards the places of the bits: every code and scale comes back, padded sizes too."""
    hidden, width = size
    model = Model(2, hidden, width, generator, device)
    for expert in range(2):
        for whole, part in zip(
            model.matrices(torch.float32), unpack_expert(model.packed, expert), strict=True
        ):
            assert torch.equal(whole[expert], part)
    assert model.packed.down.shape == (2, -(-width // 128), ROWS, 16)


def test_packing_one_expert(device, generator):
    """Guards loading one by one: an expert touches no other."""
    model = Model(3, 64, 32, generator, device)
    into = empty_experts(3, 64, 32, device)
    for expert in (2, 0):
        pack_expert(
            into, expert, *[(codes[expert], scales[expert]) for codes, scales in model.stored]
        )
    assert not any(part.any() for part in unpack_expert(into, 1))
    for expert in (0, 2):
        both = zip(unpack_expert(into, expert), unpack_expert(model.packed, expert), strict=True)
        assert all(torch.equal(*pair) for pair in both)


@pytest.mark.parametrize("code", [0, 86, 168, 255])
def test_scale_out_of_range(device, generator, code):
    """Guards the range that is exact: a scale beyond it is named, except of a group of zeros."""
    w1, w3, w2 = (coded((32, 32), generator, device) for _ in range(3))
    w2[1][5] = code
    w2[0][5] = 0x08 - 0x80  # zeros, some negative
    into = empty_experts(1, 32, 32, device)
    pack_expert(into, 0, w1, w3, w2)
    w2[0][5, 3] = 0x10
    with pytest.raises(ValueError, match=f"scale code {code} "):
        pack_expert(into, 0, w1, w3, w2)


def test_size_of_an_expert(device):
    """Guards groups of scales that would straddle two rows."""
    with pytest.raises(ValueError, match="multiples of 32"):
        empty_experts(1, 64, 48, device)


def identity_tiles(width, rows, device):
    """All of `width` rows belong to expert 1: order, and tiles of `rows`."""
    ids = torch.ones(width, 1, dtype=torch.int64, device=device)
    return *sort_pairs(ids, 2, rows), torch.ones(width, 1, device=device), 1, LIMIT


@pytest.mark.parametrize("scale", [87, 120, 166])
def test_every_code_is_exact(device, generator, scale):
    """Guards the unpacking: each code times each scale is a bfloat16, and comes out bit for bit."""
    hidden, width = 96, 160
    stored = [
        coded((2, *shape), generator, device, scale, scale + 2)
        for shape in ((width, hidden), (width, hidden), (hidden, width))
    ]
    packed = pack_experts(*stored)
    rows = torch.eye(width, device=device).bfloat16()
    out = torch.full((width, hidden), torch.nan, device=device).bfloat16()
    common = identity_tiles(width, 64, device)
    grouped_product(
        rows, packed.down, packed.down_scales, out, common, choose_tiling(50, 1), is_down=True
    )
    assert torch.equal(out.float().T, decoded(stored[2])[1])


def test_round_rows(device, generator):
    """Guards act_quant: the bits of the reference, also for tiny groups, zeros and ties."""
    x = torch.randn(33, 96, generator=generator) * torch.logspace(-7, 4, 33)[:, None]
    x[3] = 0
    x[4] = 448 * 2.0**-3
    x[5] = torch.arange(96) / 32  # ties of e4m3
    x = x.bfloat16().to(device)
    assert torch.equal(round_rows(x), round_trip_fp8(x))


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (5, 6, 6), (10, 6, 8), (17, 6, 48), (43, 3, 5), (700, 1, 200)], ids=str
)
@pytest.mark.parametrize("rows", [16, 128])
@pytest.mark.parametrize("first", [0, 7])
def test_order(device, generator, shape, rows, first):
    """Guards the schedule: sorted, stable, every present pair in one tile of its own expert."""
    num_rows, topk, num_experts = shape
    ids = torch.randint(-1, num_experts + 1, (num_rows, topk), generator=generator).to(device)
    order, tiles = sort_pairs(ids + first, num_experts, rows, first)
    flat = torch.where((ids < 0) | (ids >= num_experts), num_experts, ids).flatten()
    assert torch.equal(order.long(), flat.argsort(stable=True))
    count, *entries = tiles.tolist()
    covered = []
    for tile in range(count):
        expert, first, end = entries[3 * tile : 3 * tile + 3]
        assert 0 < end - first <= rows
        assert (flat[order[first:end].long()] == expert).all()
        covered += range(first, end)
    assert covered == list(range(int((flat < num_experts).sum())))


def test_order_when_crowded(device):
    """Guards the size of the grid: all pairs at one expert, or one pair at each."""
    _, tiles = sort_pairs(torch.full((150, 2), 3, device=device), 4, 16)
    assert int(tiles[0]) == 19 <= len(tiles) // 3
    _, tiles = sort_pairs(torch.arange(150, device=device)[:, None], 150, 16)
    assert int(tiles[0]) == 150 == len(tiles) // 3


@pytest.mark.parametrize("num_rows", [1, 3, 17, 100])
def test_experts(device, generator, num_rows):
    """Guards the whole op: ragged sizes, every tile size, several tiles of an expert."""
    model = Model(4, 160, 96, generator, device)
    check(model, *model.rows(num_rows, 2))


def test_quantised_experts(device, generator):
    """Guards act_quant: x and what w2 gets are rounded to FP8 in groups of 32."""
    model = Model(3, 96, 160, generator, device)
    rows = model.rows(9, 2)
    quantised = check(model, *rows, act_quant="fp8")
    assert not torch.equal(quantised, experts(*rows, model.packed, LIMIT))


def test_absent_experts(device, generator):
    """Guards expert parallelism: an expert that is elsewhere adds nothing, whatever its number."""
    model = Model(3, 64, 32, generator, device)
    x, ids, weights = model.rows(20, 3)
    for absent in (-1, 3, 300):
        some = torch.where(torch.rand(ids.shape, generator=generator).to(device) < 0.5, absent, ids)
        some[7] = absent
        actual = check(model, x, some, weights)
        assert not actual[7].any()


@pytest.mark.parametrize("num_shares", [2, 6])
def test_shares_of_experts(device, generator, num_shares):
    """Guards the number of the first expert: a share has the bits that ids told from 0 give it, and
    all of them add what the whole adds."""
    model = Model(6, 64, 32, generator, device)
    x, ids, weights = model.rows(50, 3)  # more pairs than one program sorts
    ids[4, 0], total, held = -1, torch.zeros(50, 64, device=device), 6 // num_shares
    for first in range(0, 6, held):
        part = pack_experts(
            *[(m[0][first : first + held], m[1][first : first + held]) for m in model.stored]
        )
        local = torch.where((ids >= first) & (ids < first + held), ids - first, -1)
        mine = experts(x, ids, weights, part, LIMIT, first=first)
        assert torch.equal(mine, experts(x, local, weights, part, LIMIT))
        total += mine.float()
    error = relative(total, experts(x, ids, weights, model.packed, LIMIT).double())
    print(f"relerr {error:.2e}")
    assert error < 5e-3  # a rounding to bfloat16 for each share


@pytest.mark.parametrize("num_rows", [1, 17])
def test_shared_expert(device, generator, num_rows):
    """Guards what is added beside the routed sum: after that was rounded, and rounded once more."""
    model = Model(3, 160, 32, generator, device)
    x, ids, weights = model.rows(num_rows, 2)
    shared = torch.randn(num_rows, 2 * 160, generator=generator).bfloat16().to(device)[:, ::2]
    found = experts(x, ids, weights, model.packed, LIMIT, 0, lambda: shared)
    assert torch.equal(found, experts(x, ids, weights, model.packed, LIMIT) + shared)


def test_experts_without_rows(device, generator):
    """Guards a step in which a part of the batch is empty."""
    model = Model(2, 64, 32, generator, device)
    assert experts(*model.rows(0, 2), model.packed, LIMIT).shape == (0, 64)


def test_not_a_number_stays(device, generator):
    """Guards the clamps: a broken row is seen, and breaks no other."""
    model = Model(2, 64, 32, generator, device)
    x, ids, weights = model.rows(5, 2)
    sound = experts(x, ids, weights, model.packed, LIMIT)
    x[2, 3] = torch.nan
    broken = experts(x, ids, weights, model.packed, LIMIT)
    assert broken[2].isnan().all()
    others = [0, 1, 3, 4]
    assert torch.equal(broken[others], sound[others])


@pytest.mark.parametrize("act_quant", ["off", "fp8"])
def test_same_bits_in_any_batch(device, generator, released, act_quant):
    """Guards batch invariance: rows alone, in pairs, all together, and in tiles of every size."""
    model = Model(2, 256, 128, generator, device)
    x, ids, weights = model.rows(90 if released else 30, 2)

    def run(part):
        return experts(x[part], ids[part], weights[part], model.packed, LIMIT, act_quant=act_quant)

    together = run(slice(None))
    for first in range(0, 30, 10):
        assert torch.equal(run(slice(first, first + 1)), together[first : first + 1])
        assert torch.equal(run(slice(first, first + 2)), together[first : first + 2])
    assert torch.equal(run(slice(0, 17)), together[:17])


def test_released_shapes(device, generator, released):
    """Guards the released sizes: whole tiles, many of them, offsets of gigabytes, every tiling."""
    if not released:
        pytest.skip("hours in the interpreter")
    model = Model(48, 5120, 2304, generator, device)
    for rows_per_expert in (1, 8, 32, 64, 128):
        check(model, *model.rows(rows_per_expert * 48 // 6, 6), sample=3)
    check(model, *model.rows(64, 6), act_quant="fp8", sample=3)
