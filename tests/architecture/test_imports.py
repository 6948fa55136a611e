"""The host world starts fast and without torch. (import-linter checks the layers.)"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, python_files

FORBIDDEN = ("torch", "triton", "xgrammar", "transformers")
HOST = (
    *("config", "tokenizer", "recipe", "structured", "cache", "scheduler", "front"),
    *("errors", "logs", "so_args", "sampling_params", "outputs", "step", "messages"),
)
# Torch-free as well, though in layers of the device world: checking a checkpoint must be cheap.
ALSO_FREE = (
    *("checkpoint.inventory", "checkpoint.index", "checkpoint.compare", "checkpoint.source"),
    "tools.inspect",
)
IMPORT_S = 0.3

REPORT = """
import json, sys, time
start = time.perf_counter()
import {modules}
taken = time.perf_counter() - start
print(json.dumps([taken, sorted(name for name in {forbidden} if name in sys.modules)]))
"""


def fresh_import(modules: str) -> tuple[float, list[str]]:
    """(seconds, forbidden modules that came along) of an import in a new process."""
    program = REPORT.format(modules=modules, forbidden=FORBIDDEN)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds, found = json.loads(done.stdout)
    return seconds, found


def host_modules() -> list[str]:
    """Dotted names of every module of the host world."""
    names = [
        ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for path in python_files("deepinfer")
    ]
    prefixes = tuple(f"deepinfer.{name}" for name in HOST)
    return [name for name in names if name.startswith(prefixes)]


def test_import_is_cheap() -> None:
    """`import deepinfer` takes seconds because something imports torch at the top."""
    runs = [fresh_import("deepinfer") for _ in range(3)]
    assert all(found == [] for _, found in runs)
    assert min(seconds for seconds, _ in runs) < IMPORT_S


def test_host_world_has_no_torch() -> None:
    """A server, a scheduler or a look into a checkpoint waits for torch, or needs it installed."""
    modules = [*host_modules(), *(f"deepinfer.{name}" for name in ALSO_FREE)]
    assert len(modules) > len(HOST)
    _, found = fresh_import(", ".join(modules))
    assert found == []


@pytest.mark.parametrize("name", HOST)
def test_host_list_is_of_this_tree(name: str) -> None:
    """A package is renamed, and its check goes on about nothing."""
    package = ROOT / "deepinfer" / name
    assert package.is_dir() or Path(f"{package}.py").is_file()
