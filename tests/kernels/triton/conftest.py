"""Kernels on a GPU, or, with TRITON_INTERPRET=1, by Triton's interpreter on the CPU."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")


@pytest.fixture(scope="session", autouse=True)
def products_know_no_place() -> Iterator[None]:
    """The interpreter's products are numpy's, whose bits depend on where in a tile a row lies, on
    some CPUs. In float64, rounded once, they do not: as on a GPU, a row's batch shows nowhere."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from triton.runtime import interpreter

    plain = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        if not all(one.data.dtype == np.float32 for one in (a, b, d)):
            return plain(self, a, b, d, *how)
        product = np.matmul(a.data, b.data, dtype=np.float64).astype(np.float32)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot
    yield
    interpreter.InterpreterBuilder.create_dot = plain


@pytest.fixture(scope="session")
def device() -> str:
    """Where the kernels run."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("no GPU; the interpreter wants TRITON_INTERPRET=1")
    return "cuda"


@pytest.fixture(scope="session")
def needs_gpu(device: str) -> None:
    """For what the interpreter would take hours for."""
    if device != "cuda":
        pytest.skip("needs a GPU")


@pytest.fixture(scope="session")
def released(device: str) -> bool:
    """Whether shapes of the released model can be afforded."""
    return device == "cuda"


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that torch hands out is NaN: what a kernel leaves unwritten shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """Fresh random numbers (CPU), seeded by the test's name."""
    return torch.Generator().manual_seed(sum(request.node.name.encode()))
