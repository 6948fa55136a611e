"""Small enough to read, and light enough to travel."""

import ast
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, project_files, python_files, read

FILE_LINES = 250
LONG_FILE_LINES = 350  # formulas, and tests that list many cases
LONG_FOLDERS = ("deepinfer/kernels", "deepinfer/oracle", "tests")
FUNCTION_LINES = 60
COLUMNS = 100
REPOSITORY_BYTES = 50_000_000
GOLDEN_BYTES = 15_000_000

# Files that may be longer than their folder allows, and why.
LONGER = {
    "deepinfer/oracle/model.py": (800, "the whole model in one file, to be read from the top"),
    "deepinfer/__main__.py": (430, "nearly all of it is the options' names and help"),
}

CODE = python_files("deepinfer", "examples", "tests")


def by_path(path: Path) -> str:
    return path.as_posix()


def ordinary_lines(path: Path) -> int:
    return LONG_FILE_LINES if path.as_posix().startswith(LONG_FOLDERS) else FILE_LINES


@pytest.mark.parametrize("path", CODE, ids=by_path)
def test_file_length(path: Path) -> None:
    """A file grows until nobody reads it whole."""
    limit, _ = LONGER.get(path.as_posix(), (ordinary_lines(path), ""))
    num_lines = len(read(path).splitlines())
    assert num_lines <= limit


@pytest.mark.parametrize("name", LONGER)
def test_exceptions_are_still_needed(name: str) -> None:
    """An exception outlives its file, or its need."""
    path = Path(name)
    num_lines = len(read(path).splitlines())
    assert num_lines > ordinary_lines(path)


@pytest.mark.parametrize("path", CODE, ids=by_path)
def test_function_length(path: Path) -> None:
    """A body does not fit on a screen. The signature of a command may list many options."""
    long = {
        node.name: size
        for node in ast.walk(ast.parse(read(path)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or 0) - node.body[0].lineno + 1) > FUNCTION_LINES
    }
    assert not long


def test_columns() -> None:
    """A line needs a wide screen; ruff looks at Python alone, and passes over lines of one word."""
    build_files = [Path(name) for name in ("Makefile", "pyproject.toml", "build.sh", ".ci/run")]
    long = [
        f"{path}:{number}"
        for path in [*CODE, *build_files]
        for number, line in enumerate(read(path).splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert not long


def test_repository_is_light() -> None:
    """Weights or recordings pile up until a clone takes minutes."""
    sizes = {path: (ROOT / path).stat().st_size for path in project_files()}
    golden = sum(size for path, size in sizes.items() if path.parts[:2] == ("tests", "golden"))
    assert sum(sizes.values()) < REPOSITORY_BYTES
    assert golden <= GOLDEN_BYTES


def test_the_demo_model_stays_small() -> None:
    """The demo model outgrows its room, or a shard what a repository's host takes."""
    sizes = {file.name: file.stat().st_size for file in (ROOT / "models" / "demo").iterdir()}
    assert sum(sizes.values()) <= 20_000_000
    shards = {name: size for name, size in sizes.items() if name.endswith(".safetensors")}
    assert shards
    assert max(shards.values()) <= 8_000_000


def test_no_file_of_odds_and_ends() -> None:
    """A file named after nothing collects what nobody placed."""
    vague = {"utils", "util", "common", "misc", "helpers", "helper"}
    assert not [path for path in CODE if vague & {path.stem, *path.parts}]
