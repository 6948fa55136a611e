"""`deepinfer tiny`: a new folder gets the toy, an old one is never written to."""

from pathlib import Path

import pytest

from deepinfer.errors import ConfigError
from deepinfer.tools.tiny import main


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_writes_the_toy(tiny_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes another toy than the tests use, or does not say where."""
    folder = tmp_path / "new" / "toy"
    assert main(folder, 0) == 0
    assert content(folder) == content(tiny_dir)
    out, err = capsys.readouterr()
    assert str(folder) in out
    assert f"--model {folder}" in out
    assert err == ""


def test_seeds(tmp_path: Path) -> None:
    """The seed is ignored, or an empty folder refused."""
    (tmp_path / "a").mkdir()
    for name, seed in (("a", 5), ("b", 5), ("c", 2**31 - 1)):
        main(tmp_path / name, seed)
    assert content(tmp_path / "a") == content(tmp_path / "b") != content(tmp_path / "c")


@pytest.mark.parametrize("seed", [-1, 2**31, 10**30])
def test_wrong_seeds(seed: int, tmp_path: Path) -> None:
    """A seed that is cut to fewer bits gives the toy of another seed."""
    with pytest.raises(ConfigError) as caught:
        main(tmp_path / "toy", seed)
    assert caught.value.where == "--seed"
    assert not (tmp_path / "toy").exists()


@pytest.mark.parametrize("name", [".", "file"])
def test_nothing_is_overwritten(name: str, tmp_path: Path) -> None:
    """A real checkpoint is replaced by a toy."""
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError, match="FOLDER"):
        main(tmp_path / name, 0)
    assert content(tmp_path) == {"file": b"precious"}
