"""Matrix products: shapes, what is rounded where, and which inputs are quantised (spec 14.1)."""

import pytest
import torch

from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.reference.quant import round_trip_fp8
from tests.laws.networks import golden_source, run_whole

KERNELS = load_kernels()
QUANTISED = load_kernels(act_quant="fp8")


@pytest.mark.parametrize("op", ["linear", "linear_float32", "linear_quantised"])
def test_linear(op):
    """Guards the orientation: a weight's rows are outputs."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 2, 64), torch.randn(5, 64)
    expected = torch.zeros(3, 2, 5)
    for i in range(3):
        for j in range(2):
            for out in range(5):
                expected[i, j, out] = sum(x[i, j] * weight[out])
    actual = getattr(KERNELS, op)(x, weight)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_linear_float32_is_not_rounded():
    """Guards head, router and pair compressor: bf16 in, float32 out with all its bits."""
    torch.manual_seed(1)
    x, weight = torch.randn(4, 32).bfloat16(), torch.randn(6, 32).bfloat16()
    actual = KERNELS.linear_float32(x, weight)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, x.float() @ weight.float().T)
    assert not torch.equal(actual, actual.bfloat16().float())


def test_grouped_linear():
    """Guards which rows of the weight belong to which group."""
    torch.manual_seed(2)
    x, weight = torch.randn(4, 3, 8), torch.randn(3 * 2, 8)
    expected = torch.cat([x[:, g] @ weight[2 * g : 2 * g + 2].T for g in range(3)], 1)
    torch.testing.assert_close(KERNELS.grouped_linear(x, weight), expected)


@pytest.mark.parametrize("num_inputs", [16, 96, 640, 2048])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_alone_has_the_same_bits(dtype, num_inputs):
    """Guards batching: libraries sum in another order when there are few rows."""
    torch.manual_seed(4)
    rows, weight = (torch.randn(n, num_inputs, dtype=dtype) for n in (150, 48))
    together = KERNELS.linear(rows, weight)
    for first, last in ((0, 1), (149, 150), (3, 5), (10, 17), (0, 33), (40, 150)):
        assert torch.equal(KERNELS.linear(rows[first:last], weight), together[first:last])
    grouped = KERNELS.grouped_linear(rows.unflatten(1, (2, -1)), weight[:, : num_inputs // 2])
    alone = KERNELS.grouped_linear(rows[7:8].unflatten(1, (2, -1)), weight[:, : num_inputs // 2])
    assert torch.equal(alone, grouped[7:8])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_quantised(dtype):
    """Guards act_quant: exactly the rounded rows times the weight, bit for bit."""
    torch.manual_seed(3)
    x, weight = torch.randn(6, 64, dtype=dtype), torch.randn(5, 64, dtype=dtype)
    expected = KERNELS.linear(round_trip_fp8(x), weight)
    assert torch.equal(QUANTISED.linear_quantised(x, weight), expected)
    assert not torch.equal(expected, KERNELS.linear(x, weight))


def test_what_act_quant_leaves_alone():
    """Guards plain weights: only linears that the release stores in FP8 or FP4 are affected."""
    touched = {"linear_quantised", "experts"}
    for op in vars(KERNELS):
        assert (getattr(QUANTISED, op) != getattr(KERNELS, op)) == (op in touched), op


def test_network_with_act_quant():
    """Guards the wiring: the network runs with it, near the exact one and not the same."""
    source = golden_source("a")
    token_ids = torch.arange(3, 33)[None]
    exact = run_whole(source.network(), token_ids)
    rounded = run_whole(source.network(kernels=QUANTISED), token_ids)
    difference = (rounded - exact).abs()
    assert 1e-3 < difference.median() < 0.3
    assert (rounded.argmax(-1) == exact.argmax(-1)).float().mean() > 0.7


def test_unknown_backend():
    """Guards against a typo in a backend's name that would silently give another."""
    with pytest.raises(KeyError):
        load_kernels("referense")
