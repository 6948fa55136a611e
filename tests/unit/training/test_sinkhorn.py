"""The Triton kernels of the hyper-connections, run by Triton's interpreter on a CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
PROGRAM = """
import torch
from training import sinkhorn as s

generator = torch.Generator().manual_seed(0)
logits, grad = (2 * torch.randn(70, 4, 4, generator=generator) for _ in range(2))
comb, sums = s._forward_torch(logits, 1e-6, 20)
found, found_sums = s._forward_gpu(logits, 1e-6, 20)
torch.testing.assert_close(found, comb)
torch.testing.assert_close(found_sums, sums)
torch.testing.assert_close(
    s._backward_gpu(grad, comb, sums, 1e-6), s._backward_torch(grad, comb, sums, 1e-6)
)
print("same")
"""


@pytest.mark.slow
@pytest.mark.sample
def test_triton_kernels_are_the_torch_walk():
    """A GPU computes other coefficients, or other gradients, than a CPU: a whole training run is
    spent before anyone sees it.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "same", done.stderr[-2000:]
