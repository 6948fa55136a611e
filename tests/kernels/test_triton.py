"""The Triton kernels where there is no GPU: their own tests, run by Triton's interpreter.

In a process of their own: the interpreter is chosen when triton is imported.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
ROOT = Path(__file__).parents[2]
# Those that serve whole models are nothing for an interpreter.
SERVING = {"test_engine", "test_faults", "test_golden", "test_laws"}
# Gluon, which no interpreter knows, and nothing else.
GLUON = {"test_expert_hopper"}
# Half a minute each and more: the network is the kernels that others test, together.
LONG = {"test_attend", "test_network", "test_pick", "test_select"}
FILES = [
    file
    for file in sorted((Path(__file__).parent / "triton").glob("test_*.py"))
    if file.stem not in SERVING | GLUON
]
SHORT = [file for file in FILES if file.stem not in LONG]
# Each process imports torch and triton first, which takes as long as many a file.
GROUPS = [
    *(pytest.param(SHORT[n::3], marks=pytest.mark.sample, id=f"short {n}") for n in range(3)),
    *(pytest.param([file], id=file.stem) for file in FILES if file.stem in LONG),
]


@pytest.mark.slow
@pytest.mark.parametrize("files", GROUPS)
def test_interpreted(files: list[Path]) -> None:
    """A kernel computes something else than the reference: seen on a GPU only, which CI has not."""
    done = subprocess.run(
        [*PYTEST, "-m", "gpu", *map(str, files)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
