"""Dense products with an order of summation of their own, and SwiGLU (spec 8, 14.5)."""

import pytest
import torch

from deepinfer.kernels.reference import moe as reference
from deepinfer.kernels.triton import linear

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]


def error_of(actual, expected):
    """Largest error over the root mean square of a row."""
    if not actual.numel():
        return 0.0
    scale = expected.square().mean(-1, keepdim=True).sqrt()
    return ((actual.double() - expected) / scale).abs().max().item()


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
