"""Natural text for training: paragraphs of the packed files, split by their hash.

Knows training/data/text/ alone; SOURCES.md says what is in it and under which licence. Does not
know tokens.
"""

import lzma
from functools import cache
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Final

from deepinfer.tools.eval_examples import Split, split_of

TEXT_DIR: Final = Path(__file__).parent / "text"
# Paragraphs in a row share a fate, so that a held-out passage is long enough to be read.
_PASSAGE: Final = 8
# One passage in so many is enough to measure with; the rest is better learned.
_HELD_OUT_PART: Final = 24
HELD_OUT_CHARACTERS: Final = 120_000


@cache
def passages(split: Split) -> tuple[str, ...]:
    """All passages of a split: up to eight paragraphs in a row of one file, in order."""
    found = []
    for path in sorted(TEXT_DIR.glob("*.txt.xz")):
        text = lzma.decompress(path.read_bytes()).decode("utf-8")
        numbered = enumerate(part for part in text.split("\n\n") if part.strip())
        for _, group in groupby(numbered, lambda item: item[0] // _PASSAGE):
            passage = "\n\n".join(paragraph for _, paragraph in group)
            if split_of(passage, _HELD_OUT_PART) == split:
                found.append(passage)
    return tuple(found)


def draw_passage(rng: Random, split: Split) -> str:
    """A passage of the split from one of its paragraphs on: a short row must reach its end, too."""
    paragraphs = rng.choice(passages(split)).split("\n\n")
    return "\n\n".join(paragraphs[rng.randrange(len(paragraphs)) :])


def write_held_out(path: Path) -> None:
    """What `deepinfer eval` reads beside a model: held-out passages, mixed, to a bound."""
    drawn = list(passages("held_out"))
    Random("held-out text").shuffle(drawn)
    text = ""
    for passage in drawn:
        if len(text) + len(passage) > HELD_OUT_CHARACTERS:
            break
        text += passage + "\n\n"
    path.write_text(text, encoding="utf-8")
