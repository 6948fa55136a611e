"""Kernels on a GPU, or, with TRITON_INTERPRET=1, by Triton's interpreter on the CPU."""

import os
from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton")


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


@pytest.fixture(scope="session")
def assert_same(device: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """The same bits, whatever the batch. The interpreter's products are a library's, whose bits
    depend on where in a tile a row lies, on some CPUs: there, nearly the same."""

    def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
        if device == "cuda":
            assert torch.equal(actual, expected)
        else:
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)

    return check


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """Fresh random numbers (CPU), seeded by the test's name."""
    return torch.Generator().manual_seed(sum(request.node.name.encode()))
