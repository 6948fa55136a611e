"""The two fused kernels of a hyper-connection against float64 and the reference (spec 4)."""

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.reference import hyper as reference
from deepinfer.kernels.triton import hyper, hyper_pieces
from deepinfer.kernels.values import HyperWeights

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

EPS, NORM_EPS = 1e-6, 1e-20
_NAMES = ("pre", "post", "comb")
# Few widths: each is another compilation. 136 is a group of four chunks, and a piece of a chunk;
# 256, like 5,120, is whole groups, for which Hopper has a kernel of its own.
SIZE = 136
TOYS = [(1, 4, SIZE), (3, 4, SIZE), (17, 4, SIZE), (65, 2, 50), (7, 2, 256), (67, 4, 256)]
RELEASED = [(rows, 4, 5120) for rows in (1, 3, 8, 9, 17, 200, 1024)]


def dtypes(device: str) -> list[torch.dtype]:
    """Triton's interpreter cuts bf16 off instead of rounding it: float32 shows the sums there."""
    return [torch.bfloat16] if device == "cuda" else [torch.float32, torch.bfloat16]


def within(actual: Tensor, expected: Tensor, dtype: torch.dtype, device: str) -> float:
    """The largest error, in units of the magnitude, after asserting that the dtype explains it."""
    # Streams, their sum and its norm are rounded in turn: 2**-8 each, more where a sum cancels.
    bf16 = 2**-6
    error = (actual.double() - expected).abs() / expected.abs().clamp_min(expected.abs().mean())
    worst = error.max().item()
    assert worst <= (1e-5 if dtype == torch.float32 else bf16), worst
    return worst


class Case:
    """Random inputs of one call."""

    def __init__(self, generator, device, dtype, rows, streams, size):
        def normal(*shape):
            return torch.randn(shape, generator=generator).to(device)

        count = streams * (streams + 2)
        self.streams = (normal(rows, streams, size) * 3).to(dtype)
        self.pre = torch.rand((rows, streams), generator=generator).to(device)
        comb = torch.rand((rows, streams, streams), generator=generator).to(device)
        self.write = (normal(rows, size).to(dtype), self.pre.flip(1) * 2, comb)
        fn = normal(count, streams * size) * (streams * size) ** -0.5
        self.mix = (fn, torch.tensor([0.7, 1.3, 2.0]).to(device), normal(count))
        # Only where there is a kernel that takes it: float32 and other widths have none.
        self.prepared = hyper.prepared(fn, streams) if dtype == torch.bfloat16 else fn
        self.norm_weight = normal(size)

    def enter(self, rows=slice(None), write=True):
        return hyper.hyper_enter(
            self.streams[rows],
            self.pre[rows],
            tuple(part[rows] for part in self.write) if write else None,
            HyperWeights(self.prepared, *self.mix[1:], NORM_EPS, EPS, 20),
            self.norm_weight,
        )


def mixed(streams: Tensor, mix: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """pre, post, comb in float64."""
    count = streams.shape[1]
    fn, scale, base = (part.double() for part in mix)
    flat = streams.double().flatten(1)
    m = flat @ fn.T * (flat.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt()
    pre = torch.sigmoid(m[:, :count] * scale[0] + base[:count]) + EPS
    post = 2 * torch.sigmoid(m[:, count : 2 * count] * scale[1] + base[count : 2 * count])
    comb = (m[:, 2 * count :] * scale[2] + base[2 * count :]).unflatten(-1, (count, count))
    comb = comb.softmax(-1) + EPS
    comb = comb / (comb.sum(-2, keepdim=True) + EPS)
    for _ in range(19):
        comb = comb / (comb.sum(-1, keepdim=True) + EPS)
        comb = comb / (comb.sum(-2, keepdim=True) + EPS)
    return pre, post, comb


def normed(streams: Tensor, pre: Tensor, weight: Tensor) -> Tensor:
    """The sublayer's input in float64, with the one rounding before the norm."""
    x = (pre.double()[..., None] * streams.double()).sum(1).to(streams.dtype).double()
    return x * (x.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt() * weight.double()


def check(case: Case, write: bool, device: str) -> None:
    dtype = case.streams.dtype
    entered = case.enter(write=write)
    if write:
        y, post, comb = (part.double() for part in case.write)
        carried = torch.einsum("tab,tad->tbd", comb, case.streams.double())
        expected = post[..., None] * y[:, None] + carried
        within(entered.streams, expected, dtype, device)
        theirs = reference.hyper_expand(case.write[0], case.streams, *case.write[1:])
        within(entered.streams, theirs.double(), dtype, device)
    else:
        assert entered.streams.data_ptr() == case.streams.data_ptr()
    error = within(entered.u, normed(entered.streams, case.pre, case.norm_weight), dtype, device)
    exact = mixed(entered.streams, case.mix)
    theirs = reference.hyper_mix(
        entered.streams, *case.mix, norm_eps=NORM_EPS, eps=EPS, num_iters=20
    )
    for name, ours, wide, other in zip(_NAMES, entered[2:], exact, theirs, strict=True):
        ours_off = (ours.double() - wide).abs().max().item()
        theirs_off = (other.double() - wide).abs().max().item()
        print(f"{name} relerr {ours_off:.2e}, reference {theirs_off:.2e}; u {error:.1e}")
        assert ours_off <= 5e-6, name


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("shape", TOYS)
def test_enter(generator, device, shape, write):
    """Guards every output against float64, at ragged edges; the coefficients not in TF32."""
    for dtype in dtypes(device):
        check(Case(generator, device, dtype, *shape), write, device)


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("shape", RELEASED)
def test_enter_as_released(generator, device, released, shape, write):
    """Guards the same in the shapes that run."""
    if not released:
        pytest.skip("too slow here")
    check(Case(generator, device, torch.bfloat16, *shape), write, device)


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_batches(generator, device, released):
    """Guards batch invariance: a row alone, in a pair and among all gives the same bits."""
    rows, size = (1030, 5120) if released else (70, SIZE)
    case = Case(generator, device, torch.bfloat16, rows, 4, size)
    whole = case.enter()
    for part in (slice(0, 1), slice(rows - 1, rows), slice(63, 65), slice(1, 70)):
        assert same(case.enter(part), [x[part] for x in whole]), part


def test_folds(generator, device, released, monkeypatch):
    """Guards the order of additions: whether a program adds one chunk or a group shows nowhere."""
    rows, size = (130, 5120) if released else (3, SIZE)
    case = Case(generator, device, torch.bfloat16, rows, 4, size)
    monkeypatch.setattr(hyper, "_ENOUGH_PROGRAMS", 1)
    folded = case.enter()
    monkeypatch.setattr(hyper, "_ENOUGH_PROGRAMS", 1 << 30)
    assert same(case.enter(), folded)


def test_weight_as_it_is(generator, device, released):
    """Guards callers that prepare nothing: the same bits."""
    rows, size = (70, 5120) if released else (3, 256)
    case = Case(generator, device, torch.bfloat16, rows, 4, size)
    prepared = case.enter()
    case.prepared = case.mix[0]
    assert same(case.enter(), prepared)


@pytest.mark.parametrize("num_streams", [2, 4])
def test_pieces_add_up(generator, num_streams):
    """Guards exactness: what is cut adds up to the weight, and what fills a tile is nothing."""
    count, size = num_streams * (num_streams + 2), 256
    fn = torch.randn((count, num_streams * size), generator=generator)
    pieces = hyper_pieces.cut(fn, num_streams).double()
    # chunk, tile, stream, product, row, thread, place, half, term
    pieces = pieces.unflatten(2, (num_streams, 2, 8, 4, 2, 2, 2))
    # As the tensor core counts: rows of a tile are (half, row), a chunk's columns in their order.
    pieces = pieces.permute(1, 7, 4, 2, 0, 5, 3, 6, 8).reshape(-1, num_streams * size)
    assert torch.equal(pieces[: 3 * count].unflatten(0, (3, count)).sum(0), fn.double())
    assert not pieces[3 * count :].any()


def test_exit_and_write(generator, device, released):
    """Guards the other two entrances to the first kernel: they agree with the whole."""
    case = Case(generator, device, torch.bfloat16, 5, 4, 5120 if released else SIZE)
    for write in (case.write, None):
        entered = case.enter(write=write is not None)
        left = hyper.hyper_exit(case.streams, case.pre, write, case.norm_weight, NORM_EPS)
        assert torch.equal(left, entered.u)
    assert torch.equal(hyper.hyper_write(case.streams, case.write), case.enter().streams)


def test_strides(generator, device, released):
    """Guards the first layer: its streams are one embedding, expanded with stride 0. And rows
    that lie nowhere in particular."""
    size = 5120 if released else SIZE
    case = Case(generator, device, torch.bfloat16, 5, 4, size)
    odd = case.streams.new_empty((5, 4, size + 3))[:, :, 3:]
    odd.copy_(case.streams)
    for streams in (case.streams[:, :1].expand(-1, 4, -1), odd):
        case.streams = streams
        entered = case.enter()
        case.streams = streams.contiguous()
        assert same(entered, case.enter())


def test_nothing(generator, device):
    """Guards steps without rows: no launch, right shapes."""
    case = Case(generator, device, torch.bfloat16, 0, 4, SIZE)
    entered = case.enter()
    assert [x.shape for x in entered] == [(0, 4, SIZE), (0, SIZE), (0, 4), (0, 4), (0, 4, 4)]
    assert hyper.hyper_write(case.streams, case.write).shape == (0, 4, SIZE)
    left = hyper.hyper_exit(case.streams, case.pre, None, case.norm_weight, NORM_EPS)
    assert left.shape == (0, SIZE)


def test_silent_streams(generator, device, released):
    """Guards the epsilon: streams of zeros give finite coefficients and u = 0."""
    case = Case(generator, device, torch.bfloat16, 2, 4, 5120 if released else SIZE)
    case.streams.zero_()
    entered = case.enter(write=False)
    assert all(part.isfinite().all() for part in entered)
    assert not entered.u.any()


def test_not_a_number(generator, device, released):
    """Guards against masks that hide faults: a NaN spoils all of its own row, and no other row."""
    case = Case(generator, device, torch.bfloat16, 3, 4, 5120 if released else SIZE)
    case.streams[1, 2, 5] = torch.nan
    for part in case.enter()[1:]:
        spoilt = part.isnan().flatten(1)
        assert spoilt[1].all() and not spoilt[::2].any()


def test_other_counts(generator, device):
    """Guards against a silent wrong answer for three streams."""
    case = Case(generator, device, torch.bfloat16, 2, 3, 64)
    with pytest.raises(ValueError, match="3 streams"):
        case.enter()
