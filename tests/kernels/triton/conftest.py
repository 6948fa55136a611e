"""Kernels on a GPU, or, with TRITON_INTERPRET=1, by Triton's interpreter on the CPU."""

import os

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


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """Fresh random numbers (CPU), seeded by the test's name."""
    return torch.Generator().manual_seed(sum(request.node.name.encode()))
