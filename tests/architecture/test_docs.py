"""What the documents say about the tree is so."""

import re
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, project_files, python_files, read

DOCUMENTS = [path for path in project_files() if path.suffix == ".md"]
FOLDER = re.compile(r"^\*\*`([\w/.-]+/)`\*\*")
FILE = re.compile(r"^- `([\w.-]+)`: \S")


def by_path(path: Path) -> str:
    return path.as_posix()


def listed_files() -> list[str]:
    """Paths that README.md lists: a folder's line, then a line for each file in it."""
    folder, files = "", []
    for line in read(Path("README.md")).splitlines():
        if match := FOLDER.match(line):
            folder = match[1]
        elif match := FILE.match(line):
            files.append(folder + match[1])
    return files


def test_readme_lists_every_file() -> None:
    """A file nobody can place; a line about a file that is gone."""
    code = [
        path.as_posix()
        for path in python_files("deepinfer", "examples")
        if path.name != "__init__.py" or read(path).strip()
    ]
    assert sorted(listed_files()) == sorted(code)


@pytest.mark.parametrize("path", DOCUMENTS, ids=by_path)
def test_links_lead_somewhere(path: Path) -> None:
    """A link breaks when a file moves."""
    targets = re.findall(r"\]\(([^)#\s]+)", read(path))
    local = [target for target in targets if not target.startswith(("https://", "http://"))]
    assert not [target for target in local if not (ROOT / path.parent / target).exists()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=by_path)
def test_named_files_exist(path: Path) -> None:
    """A document sends its reader to a file that moved."""
    named = re.findall(r"`((?:deepinfer|tests|docs|examples)/[\w/.-]+)", read(path))
    assert not [name for name in named if not (ROOT / name.rstrip(".")).exists()]


def test_every_document_is_reachable() -> None:
    """A page that no other page links to is never read."""
    text = "\n".join(read(path) for path in DOCUMENTS)
    pages = [path for path in DOCUMENTS if path.parts[0] == "docs"]
    assert not [page for page in pages if not re.search(rf"\]\((docs/)?{page.name}", text)]
