"""The files of this project, as git sees them. Knows nothing of what is in them."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT_SUFFIXES = {".py", ".md", ".toml", ".sh", ".txt", ".cpp", ""}


@cache
def project_files() -> tuple[Path, ...]:
    """Tracked files and those that could be added, relative to ROOT. Needs git and a clone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = sorted(filter(None, listed.stdout.split("\0")))
    return tuple(Path(name) for name in names if (ROOT / name).is_file())


def text_files() -> list[Path]:
    """What people wrote: code, documents and build files; neither the licence nor data."""
    return [
        path
        for path in project_files()
        if path.suffix in TEXT_SUFFIXES and path.name not in ("LICENSE", ".gitignore")
    ]


def python_files(*tops: str) -> list[Path]:
    """Python files below these folders."""
    return [path for path in project_files() if path.suffix == ".py" and path.parts[0] in tops]


def read(path: Path) -> str:
    """A file's text; `path` is relative to ROOT."""
    return (ROOT / path).read_text(encoding="utf-8")
