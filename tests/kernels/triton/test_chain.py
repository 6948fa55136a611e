"""Kernels that start before the one ahead has ended: who may, and that none reads too soon."""

import importlib
import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.reference.quant import round_trip_fp8_blocks
from deepinfer.kernels.triton import chain
from deepinfer.kernels.triton.cache_rows import rms_norm
from deepinfer.kernels.triton.linear import swiglu
from deepinfer.kernels.triton.linear_fp8 import linear_fp8
from deepinfer.kernels.triton.packed_fp8 import pack_fp8

pytestmark = pytest.mark.gpu

CHAINED = [
    ("attend_kernels", "attend_kernel"),
    ("attend_kernels", "combine_kernel"),
    ("cache_rows", "_encode_kernel"),
    ("cache_rows", "_norm_kernel"),
    ("expert_hopper", "experts_product"),
    ("expert_order", "_count"),
    ("expert_order", "_place"),
    ("expert_product", "_product"),
    ("experts", "_sum"),
    ("latents", "_latents_kernel"),
    ("linear_fp8", "add_kernel"),
    ("linear_fp8_hopper", "product"),
    ("linear_kernels", "swiglu"),
    ("route", "_route"),
    ("route", "product_part"),
]


@pytest.mark.parametrize("module, name", CHAINED)
def test_waits(module, name):
    """Guards the rule that every program waits: on the kernel's outermost level, before it stores,
    and before any return.
    """
    kernel = getattr(importlib.import_module(f"deepinfer.kernels.triton.{module}"), name)
    source = inspect.getsource(kernel.fn)
    lines = source[source.index("):  # fmt" if "):  # fmt" in source else "\n):") :].splitlines()
    (start,) = (
        i
        for i, line in enumerate(lines)
        if line in ("    chain.start(CHAINED)", "    chain.wait(CHAINED)")
    )
    assert not any("tl.store" in line or "return" in line for line in lines[:start])


def test_off_elsewhere():
    """Guards the interpreter and other devices: they know nothing of it."""
    assert chain.launch(torch.device("cpu")) == {"CHAINED": False}


def network(generator, device) -> Callable[[Tensor], Tensor]:
    """24 rounds of two products, a curve and a norm, each reading what the one before has written
    just now; weights of sizes that run, four of them in turn.
    """
    shapes = (2304, 5120), (5120, 4608)
    weights = [
        pack_fp8(
            round_trip_fp8_blocks(torch.randn(out, size, generator=generator).to(device)).bfloat16()
        )
        for _ in range(2)
        for size, out in shapes
    ]
    scale = torch.ones(5120, device=device)

    def run(x: Tensor) -> Tensor:
        for i in range(24):
            down, up = weights[i % 2 * 2 : i % 2 * 2 + 2]
            x = rms_norm(linear_fp8(x, down), scale, 1e-6)
            x = swiglu(linear_fp8(x, up), None, 10.0)
        return x

    return run


@pytest.mark.parametrize("num_rows", [1, 8, 32, 64, 128])
def test_order(generator, device, needs_gpu, monkeypatch, num_rows):
    """Guards the order of reads and writes: the same bits as of kernels that start one after the
    other, launched one by one and as a graph, many times over.
    """
    run = network(generator, device)
    inputs = [torch.randn(num_rows, 2304, generator=generator).bfloat16() for _ in range(8)]
    inputs = [x.to(device) for x in inputs]
    monkeypatch.setattr(chain, "launch", lambda _: {"CHAINED": False})
    expected = [run(x) for x in inputs]
    monkeypatch.undo()
    assert chain.launch(expected[0].device)["CHAINED"] == (
        torch.cuda.get_device_capability() == (9, 0)
    )
    assert all(e.isfinite().all() and e.any() for e in expected)
    held = inputs[0].clone()
    assert torch.equal(run(held), expected[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(held)
    for _ in range(20):
        for x, bits in zip(inputs, expected, strict=True):
            assert torch.equal(run(x), bits)
            held.copy_(x)
            graph.replay()
            assert torch.equal(found, bits)
