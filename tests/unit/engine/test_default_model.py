"""The model of those who name none: the demo model if it is there, else the random toy."""

from pathlib import Path

import pytest

from deepinfer.checkpoint.tiny import write_tiny
from deepinfer.engine import default_model as module
from deepinfer.engine.default_model import default_model, demo_folder, toy_model


@pytest.fixture(autouse=True)
def empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is read from the home of the one who runs this, or written there."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")


def test_toy_is_written_once(tmp_path: Path) -> None:
    """Every start writes the toy again, or leaves its scaffold behind."""
    toy = toy_model()
    written = (toy / "config.json").stat().st_mtime_ns
    assert toy_model() == toy
    assert (toy / "config.json").stat().st_mtime_ns == written
    assert list(toy.parent.iterdir()) == [toy]


def test_toy_of_someone_faster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two programs start at once and one of them fails, or reads half a toy."""

    def write_twice(folder: Path) -> None:
        write_tiny(folder)
        write_tiny(tmp_path / "home" / ".cache" / "deepinfer" / f"toy-{module._TOY_VERSION}")

    monkeypatch.setattr(module, "write_tiny", write_twice)
    toy = toy_model()
    assert toy.name == f"toy-{module._TOY_VERSION}"
    assert (toy / "config.json").exists()


def test_toy_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A home that cannot be written to, as in many containers, ends the first try."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "home").write_text("a file where a folder should be")
    assert (toy_model() / "config.json").exists()


def test_demo_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The demo model is there, and the toy speaks; or an empty folder counts as one."""
    monkeypatch.setattr(module, "__file__", str(tmp_path / "a" / "b" / "c" / "default_model.py"))
    monkeypatch.chdir(tmp_path)
    demo = tmp_path / "models" / "demo"
    demo.mkdir(parents=True)
    assert demo_folder() is None
    (demo / "config.json").write_text("{}")
    assert demo_folder() == demo
    lines: list[str] = []
    assert default_model(lines.append) == demo
    assert lines == []
