"""One word per thing: docs/words.md says which, and which others are not used."""

import re
from pathlib import Path

import pytest

from tests.architecture.tree import read, text_files

WORDS = Path("docs/words.md")
# They quote the names that others chose.
EXEMPT = {WORDS, Path("docs/environment.md"), Path("deepinfer/config/env_names.py")}


def banned_words() -> list[tuple[str, str]]:
    """(banned word, word to use) pairs of the second table of docs/words.md."""
    table = read(WORDS).split("## Words we do not use", 1)[1]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", table, re.MULTILINE)[1:]
    return [(word.strip(), use) for words, use in rows for word in words.split(",")]


def found_in(text: str, word: str) -> list[str]:
    """Lines with the word by itself: not in a longer name, not in a tensor's (`mtp.0.norm`)."""
    pattern = re.compile(rf"\b{re.escape(word)}s?\b(?!\\*\.\S)", re.IGNORECASE)
    return [line.strip() for line in text.splitlines() if pattern.search(line)]


def test_the_table_is_read() -> None:
    """The table changes its shape, nothing is found in it, and all words pass."""
    words = [word for word, _ in banned_words()]
    assert {"MTP", "nextn", "DFlash"} <= set(words)
    assert found_in("the mtp layers", "MTP")
    assert found_in("This is MTP.", "MTP")
    assert found_in("two dflashs or one DFlash", "DFlash")
    assert not found_in('"mtp.0.norm" r"mtp\\.{i}" f"mtp.{i}." num_nextn_predict', "MTP")


@pytest.mark.parametrize(("word", "use"), banned_words())
def test_banned_word(word: str, use: str) -> None:
    """A thing gets a second name, and readers look for a second thing."""
    own_test = Path("tests/architecture/test_words.py")
    found = {
        path.as_posix(): lines
        for path in text_files()
        if path not in EXEMPT | {own_test} and (lines := found_in(read(path), word))
    }
    assert not found, f"say {use}"
