"""What goes wrong with a GPU ends in an error that says so, soon, and never in a wait for ever.

Each in a process of its own: some faults are for the whole process.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("needs_gpu")]

DEMO = Path(__file__).parents[3] / "models" / "demo"
_LOAD = f"""
from deepinfer.entrypoints.llm import LLM
from deepinfer.errors import DeepInferError
import torch
try:
    llm = LLM({str(DEMO)!r}, device="cuda", max_num_seqs=16, max_model_len=1024)
"""
_END = """
except DeepInferError as error:
    print(type(error).__name__, error)
else:
    print("no error")
"""
# A driver that is older than what torch was built for.
_OLD_DRIVER = """
#include <stddef.h>
int cuInit(unsigned flags) { return 35; }
int cuDriverGetVersion(int *version) { *version = 11000; return 0; }
"""


def run(program: str, **variables: str) -> str:
    """What it prints. Raises if it takes longer than any start."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    print(done.stdout, done.stderr[-800:])
    return done.stdout


def test_no_gpu() -> None:
    """A GPU that is asked for and not there ends in torch's own words, after loading."""
    said = run(_LOAD + _END, CUDA_VISIBLE_DEVICES="")
    assert "ConfigError" in said and "cuda" in said and "GPU" in said


def test_old_driver(tmp_path: Path) -> None:
    """A driver too old for this torch is not named as what is wrong."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "driver.c").write_text(_OLD_DRIVER)
    library = tmp_path / "libcuda.so.1"
    made = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library]
    subprocess.run([*made, tmp_path / "driver.c"], check=True)
    said = run(_LOAD + _END, LD_PRELOAD=str(library), LD_LIBRARY_PATH=str(tmp_path))
    assert "ConfigError" in said and "driver" in said


def test_no_room_for_weights() -> None:
    """Weights that cannot fit are read for minutes, and then end in the middle."""
    hold = """
import torch
held = torch.empty(torch.cuda.mem_get_info()[0] - 2**24, dtype=torch.uint8, device="cuda")
"""
    said = run(hold + _LOAD + _END)
    assert "ConfigError" in said or "DeviceError" in said
    assert "weights" in said


def test_no_room_in_a_step() -> None:
    """A step that needs more than is free kills the process, or what comes after it."""
    inside = """
    worker, launch = llm._requests.model.engine.worker, llm._requests.model.engine.worker.launch
    def greedy(plan):
        torch.empty(2**45, dtype=torch.uint8, device="cuda")
    worker.launch = greedy
    try:
        print(llm.generate(["one"])[0].error)
    except DeepInferError as error:
        print("step:", type(error).__name__, error)
    worker.launch = launch
    print("after:", llm.generate(["one"])[0].error)
"""
    said = run(_LOAD + inside + _END)
    assert "no memory left" in said
    assert "after: None" in said


def test_lost_device() -> None:
    """A device that fails in a step: the caller waits for ever, or gets an answer that is none."""
    inside = """
    worker = llm._requests.model.engine.worker
    def broken(plan):
        torch.zeros(1, device="cuda")[torch.tensor([10**6], device="cuda")]
        torch.cuda.synchronize()
    worker.launch = broken
    for _ in range(2):
        try:
            print("answer:", llm.generate(["one"])[0].error)
        except DeepInferError as error:
            print("step:", type(error).__name__, error)
"""
    said = run(_LOAD + inside + _END)
    assert "the device failed" in said
    assert "answer: None" not in said
