"""Dense products with an order of summation of their own, and SwiGLU (spec 8, 14.5)."""

from collections.abc import Iterator

import pytest
import torch

from deepinfer.kernels.reference import moe as reference
from deepinfer.kernels.reference.quant import decode_fp8, decode_ue8m0
from deepinfer.kernels.triton import linear

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Memory that torch hands out is NaN: what a kernel leaves unwritten shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def error_of(actual, expected):
    """Largest error over the root mean square of a row."""
    if not actual.numel():
        return 0.0
    scale = expected.square().mean(-1, keepdim=True).sqrt()
    return ((actual.double() - expected) / scale).abs().max().item()


def coded(generator, device, num_inputs, num_outputs):
    """e4m3 codes, UE8M0 scales, and the weight in float64."""
    shape = num_outputs, num_inputs
    codes = (torch.randn(shape, generator=generator) * 60).to(torch.float8_e4m3fn)
    blocks = -(-num_outputs // 32), -(-num_inputs // 32)
    scales = torch.randint(114, 120, blocks, generator=generator).to(torch.uint8)
    weight = decode_fp8(codes.to(torch.float32), decode_ue8m0(scales)).double()
    return codes.view(torch.uint8).to(device), scales.to(device), weight.to(device)


GEMV_TOYS = [(64, 32), (32, 1), (160, 96), (96, 40), (1280, 70), (50, 65)]
GEMV_RELEASED = [(1280, 32768), (8192, 5120), (5120, 4608)]


def gemv_case(generator, device, num_rows, shape):
    # The interpreter cuts bf16 off instead of rounding it: float32 shows the sums there.
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x = torch.randn((num_rows, shape[0]), generator=generator).to(device).to(torch.bfloat16)
    return x.to(dtype), *coded(generator, device, *shape)


def check_gemv(generator, device, num_rows, shape):
    x, codes, scales, weight = gemv_case(generator, device, num_rows, shape)
    actual = linear.gemv_fp8(x, codes, scales)
    assert actual.shape == (num_rows, shape[1]) and actual.dtype == x.dtype
    error = error_of(actual, x.double() @ weight.T)
    print(f"relerr {error:.2e}")
    # The largest of a row is four times its mean square and more, where half a step of bf16 is
    # 2**-6; the float32 sum adds a little.
    assert error <= (1.01 * 2**-6 if device == "cuda" else 1e-5)


@pytest.mark.parametrize("shape", GEMV_TOYS)
def test_gemv(generator, device, shape):
    """Guards scales of every block, ragged edges, splits of the inputs and their sum."""
    for num_rows in (0, 1, 3, 16):
        check_gemv(generator, device, num_rows, shape)


@pytest.mark.parametrize("shape", GEMV_RELEASED)
def test_gemv_as_released(generator, device, released, shape):
    """Guards the same in the shapes that run."""
    if not released:
        pytest.skip("too slow here")
    for num_rows in (1, 5, 16):
        check_gemv(generator, device, num_rows, shape)


def test_gemv_batches(generator, device, released):
    """Guards batch invariance, and the limit of rows."""
    for shape in [(1280, 70), *(GEMV_RELEASED if released else ())]:
        x, codes, scales, _ = gemv_case(generator, device, 16, shape)
        whole = linear.gemv_fp8(x, codes, scales)
        for part in (slice(0, 1), slice(15, 16), slice(3, 5)):
            assert torch.equal(linear.gemv_fp8(x[part], codes, scales), whole[part])
    with pytest.raises(ValueError, match="17 rows"):
        linear.gemv_fp8(torch.cat((x, x[:1])), codes, scales)


def test_gemv_splits():
    """Guards the choice of splits: they cover the inputs and know nothing of rows."""
    for num_inputs, num_outputs in GEMV_TOYS + GEMV_RELEASED:
        splits, steps = linear._gemv_splits(num_inputs, num_outputs)
        assert (splits - 1) * steps * 128 < num_inputs <= splits * steps * 128
    assert linear._gemv_splits(1280, 32768)[0] == 1


PRODUCTS = [(0, 1, 64, 40), (1, 1, 64, 40), (3, 2, 100, 70), (17, 1, 192, 130), (70, 3, 64, 5)]
PRODUCTS_RELEASED = [(1, 1, 1280, 32768), (130, 8, 4096, 1024), (1024, 1, 5120, 1280)]


def check_product(generator, device, shape, out_dtype):
    num_rows, groups, num_inputs, num_outputs = shape
    x = torch.randn((num_rows, groups, num_inputs), generator=generator)
    weight = torch.randn((groups * num_outputs, num_inputs), generator=generator)
    x, weight = (t.to(device).to(torch.bfloat16) for t in (x, weight))
    actual = linear.grouped_invariant(x, weight, out_dtype)
    parts = weight.double().unflatten(0, (groups, num_outputs))
    expected = torch.einsum("tgi,goi->tgo", x.double(), parts).flatten(1)
    assert actual.shape == expected.shape and actual.dtype == out_dtype
    error = error_of(actual, expected)
    print(f"relerr {error:.2e}")
    # bf16 is rounded, or cut off here, at some times the mean square; tensor cores cut off what
    # does not fit into the sum so far.
    wide = 1e-4 if device == "cuda" else 3e-6
    assert error <= (2**-5 if out_dtype == torch.bfloat16 else wide)
    if groups == 1:
        assert torch.equal(linear.linear_invariant(x[:, 0], weight, out_dtype), actual)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", PRODUCTS)
def test_product(generator, device, shape, out_dtype):
    """Guards the tiled product, grouped or not, against float64, at ragged edges."""
    check_product(generator, device, shape, out_dtype)


@pytest.mark.parametrize("shape", PRODUCTS_RELEASED)
def test_product_as_released(generator, device, released, shape):
    """Guards the same in shapes that run."""
    if not released:
        pytest.skip("too slow here")
    check_product(generator, device, shape, torch.float32)


def test_product_batches(generator, device, released):
    """Guards batch invariance, also where another number of rows takes another tile."""
    sizes = [(70, 100, 70), *([(1024, 1280, 32768), (300, 8192, 5120)] if released else ())]
    for num_rows, num_inputs, num_outputs in sizes:
        x = torch.randn((num_rows, num_inputs), generator=generator).to(device)
        weight = torch.randn((num_outputs, num_inputs), generator=generator).to(device)
        x, weight = x.to(torch.bfloat16), weight.to(torch.bfloat16)
        whole = linear.linear_invariant(x, weight, torch.float32)
        for part in (slice(0, 1), slice(num_rows - 1, num_rows), slice(3, 5), slice(1, 70)):
            rows = linear.linear_invariant(x[part], weight, torch.float32)
            assert torch.equal(rows, whole[part]), part


def test_tiles_agree(generator, device, released, monkeypatch):
    """Guards the assumption behind the choice of tiles: all of them give the same bits."""
    if not released:
        pytest.skip("the interpreter's products know no tiles")
    x = torch.randn((200, 1280), generator=generator).cuda().to(torch.bfloat16)
    weight = torch.randn((1000, 1280), generator=generator).cuda().to(torch.bfloat16)
    results = []
    for tile in linear._TILES:
        monkeypatch.setattr(linear, "_tile", lambda *_, tile=tile: tile)
        results.append(linear.linear_invariant(x, weight, torch.float32))
    assert all(torch.equal(results[0], result) for result in results)


def test_swiglu(generator, device):
    """Guards both forms against the reference and float64, with and without routing weights."""
    for num_rows, size in ((0, 8), (1, 40), (3, 1030), (17, 64)):
        both = (torch.randn((num_rows, 2 * size), generator=generator) * 8).to(device)
        weights = torch.rand((num_rows, 1), generator=generator).to(device)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        both = both.to(torch.bfloat16).to(dtype)
        gate, up = both.chunk(2, -1)
        for weight in (None, weights):
            actual = linear.swiglu(gate, up, 10.0, weight)
            assert torch.equal(linear.swiglu(both, None, 10.0, weight), actual)
            a, b = gate.double().clamp(max=10), up.double().clamp(-10, 10)
            exact = a * torch.sigmoid(a) * b * (1.0 if weight is None else weight)
            bound = 1e-5 if dtype == torch.float32 else 2**-8
            torch.testing.assert_close(actual.double(), exact, rtol=bound, atol=1e-6)
            theirs = reference.swiglu(gate, up, 10.0, weight)
            torch.testing.assert_close(actual, theirs, rtol=2 * bound, atol=1e-6)


def test_swiglu_not_a_number(device):
    """Guards the clamps: a NaN goes through them."""
    rows = torch.ones((3, 8), device=device, dtype=torch.bfloat16)
    broken = rows.clone()
    broken[1, 2] = torch.nan
    for gate, up in ((rows, broken), (broken, rows)):
        result = linear.swiglu(gate, up, 10.0)
        assert result[1, 2].isnan() and result.isfinite().sum() == 23
