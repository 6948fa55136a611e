"""examples/offline_inference.py as a reader would start it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(tiny_dir: Path, accelerator: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": "1",
        "DEEPINFER_HF_MODEL_DIR": str(tiny_dir),
        "DEEPINFER_ACCELERATOR": accelerator,
    }
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "offline_inference.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def test_on_the_cpu(tiny_dir: Path) -> None:
    """The first program that a user tries does not run, or runs another model than it was told."""
    found = run(tiny_dir, "cpu")
    assert found.returncode == 0, found.stderr
    assert "RANDOM TOY" not in found.stderr
    first, *rest = re.split(r"^(?=perplexity|')", found.stdout, flags=re.MULTILINE)[1:]
    told = re.fullmatch(r"perplexity of examples/text.txt: ([\d.]+) over (\d+) tokens\n", first)
    assert told is not None
    # A random network of 512 tokens knows nothing: worse than a fair die, and finite.
    assert 512 < float(told[1]) < 1e6
    assert int(told[2]) > 300
    assert [line.split(" -> ")[0] for line in rest] == [
        "'The old bridge'",
        "'Every morning the baker'",
        "'Two and two'",
    ]


def test_ascend_that_is_not_there(tiny_dir: Path) -> None:
    """N11: an accelerator that is not there falls back to the CPU, or ends in a page of trace."""
    found = run(tiny_dir, "ascend")
    assert found.returncode != 0
    assert found.stdout == ""
    assert "device: npu was asked for" in found.stderr
    assert "torch_npu" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("option", ["--ep", "--dp", "--cp"])
def test_more_ranks_than_there_are(option: str, tiny_dir: Path) -> None:
    """Ranks that do not exist are promised in silence."""
    found = run(tiny_dir, "cpu", option, "2")
    assert found.returncode == 1
    assert "parallel_size" in found.stderr
    assert "Traceback" not in found.stderr


def test_structured_output_is_checked(tiny_dir: Path) -> None:
    """The check passes whatever the answers are, or fails and says it was fine."""
    found = run(tiny_dir, "cpu", "--check_structured_output")
    assert found.returncode == 0, found.stderr
    shown = [line.split(": ")[0] for line in found.stdout.splitlines()[-3:]]
    assert shown == ["regex", "JSON", "EBNF"]
    assert "FAILED" not in found.stderr


@pytest.mark.slow
def test_perplexity_above_its_bound(tiny_dir: Path) -> None:
    """A model that fell apart passes the check."""
    found = run(tiny_dir, "cpu", "--check_structured_output", "--max_perplexity", "2")
    assert found.returncode == 1
    assert "FAILED perplexity" in found.stderr
