"""What all commands have in common, and what single ones refuse."""

import pytest

from tests.unit.test_main import Patch, Run, run

__all__ = ["run"]  # a fixture


@pytest.mark.parametrize(
    "arguments", [("tiny", "x"), ("plan", "x"), ("inspect", "x"), ("selftest",), ("bench", "host")]
)
def test_no_command_ignores_the_environment(
    arguments: tuple[str, ...], run: Run, monkeypatch: Patch
) -> None:
    """A name in the environment is refused by one command and passed over by the next."""
    monkeypatch.setenv("DEEPINFER_FORCE_LOAD_BALANCE", "1")
    found = run(*arguments)
    assert found.code == 2
    assert "DEEPINFER_FORCE_LOAD_BALANCE" in found.err


def test_accelerator_of_a_selftest(run: Run, monkeypatch: Patch) -> None:
    """Who asks for a GPU by the environment is told that the CPU is fine."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("DEEPINFER_ACCELERATOR", "nvidia")
    found = run("selftest")
    assert found.code == 2
    assert "cuda" in found.err


def test_repeats_of_a_bench(run: Run) -> None:
    """A median of nothing ends in a trace."""
    found = run("bench", "steps", "--repeats", "0")
    assert found.code == 2
    assert "--repeats" in found.err
