"""`deepinfer selftest`: it passes where all is well, and does not where something is broken."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.errors import ConfigError
from deepinfer.kernels.backends import load_kernels
from deepinfer.tools import selftest as module
from deepinfer.tools.selftest import main, selftest

Op = Callable[..., Any]


def shifted(op: Op) -> Op:
    """The op with a result that is off by a thousandth."""

    def wrong(*arguments: Any, **options: Any) -> Tensor:
        return op(*arguments, **options) * 1.001

    return wrong


def half_nan(op: Op) -> Op:
    """The op with a NaN in its result."""

    def wrong(*arguments: Any, **options: Any) -> Tensor:
        result = op(*arguments, **options).clone()
        result.view(-1)[0] = torch.nan
        return result

    return wrong


def test_all_is_well(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A healthy machine is called broken, or a check is left out."""
    assert main(tiny_dir, "cpu") == 0
    out, err = capsys.readouterr()
    *lines, summary = out.splitlines()
    assert len(lines) == 10
    assert all(line.startswith("ok ") for line in lines)
    assert summary.startswith("10 checks, 0 failed")
    for name in ("cache formats", "logits of 100", "single tokens", "greedy", "draft block"):
        assert name in out
    assert err == ""


@pytest.mark.parametrize(
    ("op", "damage", "name"),
    [
        ("linear_float32", shifted, "logits of 100 tokens"),
        ("linear_float32", half_nan, "logits of 100 tokens"),
        ("round_trip_window", shifted, "cache formats FP8, MXFP4, NVFP4"),
        ("round_trip_entry", half_nan, "cache formats FP8, MXFP4, NVFP4"),
    ],
)
def test_a_broken_op_is_found(
    op: str,
    damage: Callable[[Op], Op],
    name: str,
    tiny_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A check cannot fail: a wrong sum, a NaN or a wrong rounding passes."""
    kernels = load_kernels()
    broken = replace(kernels, **{op: damage(getattr(kernels, op))})
    monkeypatch.setattr(module, "load_kernels", lambda: broken)
    monkeypatch.setattr(module, "_LENGTHS", (100,))
    assert main(tiny_dir, "cpu") == 1
    out = capsys.readouterr().out
    failed = [line for line in out.splitlines() if line.startswith("FAIL")]
    assert any(name in line for line in failed)
    assert f"{len(failed)} failed" in out


def test_a_broken_choice_is_found(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong tokens of a greedy continuation or of a draft block pass."""
    monkeypatch.setattr(module, "greedy", lambda logits: logits.argmin(-1))
    monkeypatch.setattr(module, "_LENGTHS", ())
    failed = {check.name for check in selftest(tiny_dir) if not check.passed}
    assert failed == {"greedy continuation", "draft block"}


def test_a_toy_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a model there is nothing to test with, or files stay behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(module, "_run_all", lambda folder, device: [folder, device])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder, device = selftest(None)
    assert device == "cpu"
    assert list(tmp_path.iterdir()) == []
    assert Path(folder).parent == tmp_path


@pytest.mark.parametrize("device", ["cuda", "npu", "gpu", ""])
def test_device_that_is_not_there(
    device: str, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N11: a missing device ends in a trace from inside torch."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as caught:
        main(tiny_dir, device)
    assert "device" in caught.value.where


def test_folder_without_a_model(tmp_path: Path) -> None:
    """O05: a wrong folder ends in a trace, or counts as a failed check."""
    with pytest.raises(ConfigError):
        main(tmp_path, "cpu")
