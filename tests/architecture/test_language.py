"""The project speaks of itself alone, and of no machine but the reader's."""

import re
from pathlib import Path

import pytest

from tests.architecture.tree import read, text_files

# What does not belong, and why.
PATTERNS = {
    r"(?<![\w.~-])/(work|root|home|tmp|Users)/": "a path of one machine",
    r"\bshared/(spec|golden)": "a path that a reader does not have",
    r"\b(model|runtime|recipe|gpu|bugs|asks|style)\.md\b": "a document that a reader does not have",
    r"\bDESIGN\b": "a document that a reader does not have",
    r"(?<!scope=\")\bsessions?\b(?!\")": "how it was made",
    r"\b(sub)?agents?\b": "how it was made",
    r"\b(Claude|Anthropic|ChatGPT|Copilot|OpenAI Codex)\b": "how it was made",
    r"\bco-authored-by\b": "how it was made",
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_language(pattern: str) -> None:
    """A remark meant for whoever was at work stays in the text that others read."""
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in text_files()
        if path != Path("tests/architecture/test_language.py")
        for number, line in enumerate(read(path).splitlines(), 1)
        if re.search(pattern, line, re.IGNORECASE if pattern.islower() else 0)
    ]
    assert not found, PATTERNS[pattern]
