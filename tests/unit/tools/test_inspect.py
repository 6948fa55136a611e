"""The inspection tool: a verdict that can be trusted, and a report of whatever is there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.checkpoint.inventory import inventory
from deepinfer.config.model import ModelConfig
from deepinfer.tools.inspect import GROUPS, inspect, main
from tests.conftest import RELEASED
from tests.shards import INDEX, Stored, clone, repack

SINK = "layers.0.attn.attn_sink"


def test_complete(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards against a fault reported where there is none."""
    assert main(tiny_dir) == 0
    out = capsys.readouterr().out
    assert out.endswith("verdict: complete\n")
    assert "fault" not in out
    assert "<-" not in out
    assert "model-00004-of-00004.safetensors" in out


def test_every_tensor_has_a_group(released_config: ModelConfig) -> None:
    """Guards against tensors that no line of the table counts, and lines that count none."""
    names = list(inventory(released_config))
    counts = {group: 0 for group, _ in GROUPS}
    for name in names:
        first = next(group for group, pattern in GROUPS if re.fullmatch(pattern, name))
        counts[first] += 1
    assert sum(counts.values()) == 96_085
    assert counts["routed experts"] == 40 * 384 * 6
    assert counts["draft module"] == 3 * (30 + 128 * 6) + 7
    assert counts["hyper-connections"] == 40 * 6
    assert counts["vision"] == 259 + 4 + 3
    assert counts["norms"] == 81
    assert counts["embedding and head"] == 2


def test_incomplete(tiny_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """N10: two files gone and one cut short: all of it is reported, in one run."""
    folder = clone(tiny_dir, tmp_path)
    first, *others = sorted(folder.glob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-1])
    for path in others[1:]:
        path.unlink()
    assert main(folder) == 1
    out = capsys.readouterr().out
    assert "2 of 4 weight files are missing" in out
    assert "truncated" in out
    assert others[0].name in out
    assert "and 7" in out  # more missing tensors than are shown
    assert out.endswith("verdict: NOT complete\n")


def test_differences_are_listed(
    tiny_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """N08: missing, unknown and different tensors, each under its heading."""
    folder = clone(tiny_dir, tmp_path)

    def edit(tensors: dict[str, Stored]) -> None:
        del tensors["norm.weight"]
        tensors["layers.0.extra"] = Stored("F32", (1,), bytes(4))
        tensors[SINK] = Stored("BF16", (4,), bytes(8))

    repack(folder, edit)
    report = inspect(folder)
    assert report.comparison.missing == ("norm.weight",)
    assert report.comparison.unknown == ("layers.0.extra",)
    assert report.comparison.mismatched == (SINK,)
    assert main(folder) == 1
    out = capsys.readouterr().out
    for heading, name in (("missing", "norm.weight"), ("unknown", "layers.0.extra")):
        assert f"{heading}: 1\n  {name}" in out
    assert f"different: 1\n  {SINK}" in out


def test_wrong_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """N10: no config.json is a verdict, not a trace."""
    assert main(tmp_path) == 1
    assert "no config.json" in capsys.readouterr().out


def test_no_weights(tiny_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """N10: config.json alone: a download that has hardly begun."""
    (tmp_path / "config.json").write_bytes((tiny_dir / "config.json").read_bytes())
    assert main(tmp_path) == 1
    out = capsys.readouterr().out
    assert "missing: 1052" in out
    assert "download has not begun" in out


def test_released_size_without_torch(released_dir: Path, tmp_path: Path) -> None:
    """Guards against a tool that needs torch, or minutes, to say that a download is unfinished."""
    for path in released_dir.iterdir():
        if path.name != "model-7.safetensors":
            (tmp_path / path.name).symlink_to(path)
    code = (
        "import sys; from pathlib import Path; from deepinfer.tools.inspect import main;"
        "status = main(Path(sys.argv[1])); print('torch' in sys.modules, status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
        cwd=RELEASED.parents[1],
    )
    *report, last = done.stdout.splitlines()
    assert last == "False 1"
    assert report[-1] == "verdict: NOT complete"
    assert f"missing: {96_085 // 8:d}" in report


def test_index_of_another_model(tiny_dir: Path, tmp_path: Path) -> None:
    """Guards against a verdict from the index alone: its files are what counts."""
    folder = clone(tiny_dir, tmp_path)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["ghost"] = next(iter(index["weight_map"].values()))
    (folder / INDEX).write_text(json.dumps(index))
    assert any("ghost" in problem.what for problem in inspect(folder).problems)
