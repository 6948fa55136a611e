"""Makes training/data/text/*.txt.xz from packages of Debian and PyPI; SOURCES.md says which.

Needed only to make the files again: they are in the repository. Knows where each package keeps its
text. Does not know what the text is used for.

    python -m training.data.gather FOLDER    # where the packages were unpacked
"""

import argparse
import lzma
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TEXT_DIR: Final = Path(__file__).parent / "text"
_AUSTEN = "r-cran-janeaustenr/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
_ALICE = "brotli/tests/testdata/alice29.txt"
_POEMS = "fortunes-zh/usr/share/games/fortunes"
# A character string in R's file format: flags of a CHARSXP in ASCII or UTF-8, then its length.
_R_STRING = re.compile(rb"\x00\x04\x00\x09(.{4})|\x00\x00\x80\x09(.{4})", re.DOTALL)
# The first line of each novel that is taken, and the name of its file.
NOVELS: Final = {
    "EMMA": "emma",
    "MANSFIELD PARK": "mansfield_park",
    "NORTHANGER ABBEY": "northanger_abbey",
    "PERSUASION": "persuasion",
    "PRIDE AND PREJUDICE": "pride_and_prejudice",
    "SENSE AND SENSIBILITY": "sense_and_sensibility",
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def paragraphs_of_lines(lines: list[str]) -> str:
    """Lines wrapped to a page -> paragraphs of one line each, with an empty line between them."""
    parts = re.split(r"\n\s*\n", "\n".join(line.strip() for line in lines))
    return "\n\n".join(flat for part in parts if (flat := " ".join(part.split()))) + "\n"


def r_strings(block: bytes) -> Iterator[str]:
    """The character strings in one object of R, in order."""
    at = 0
    while (found := _R_STRING.search(block, at)) is not None:
        (length,) = struct.unpack(">i", found[1] or found[2])
        at = found.end() + max(length, 0)
        yield block[found.end() : at].decode("utf-8")


def austen(path: Path) -> Iterator[tuple[str, str]]:
    """(file name, text) of each novel in `NOVELS`. Objects are lengths followed by zlib streams."""
    rest = path.read_bytes()
    while len(rest) > 4:
        stream = zlib.decompressobj()
        block = stream.decompress(rest[4:]) + stream.flush()
        rest = stream.unused_data
        lines = list(r_strings(block))
        title = next((line.strip().upper() for line in lines if line.strip()), "")
        if title in NOVELS and len(lines) > 1000:
            yield NOVELS[title], paragraphs_of_lines(lines)


def alice(path: Path) -> str:
    """The story without the remarks of whoever typed it."""
    text = path.read_text(encoding="latin-1").replace("`", "'")
    return paragraphs_of_lines(text[text.index("CHAPTER I") :].split("\n"))


def poems(folder: Path) -> str:
    """Poems of the Tang and Song: title, author, lines."""
    text = "".join((folder / name).read_text("utf-8") for name in ("tang300", "song100"))
    found = [_COLOUR.sub("", part).strip() for part in text.split("\n%")]
    return "\n\n".join(part for part in found if part) + "\n"


def write(name: str, text: str) -> None:
    """One file, packed. The same text gives the same bytes."""
    packed = lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME)
    (TEXT_DIR / f"{name}.txt.xz").write_bytes(packed)
    print(f"{name}: {len(packed)} bytes")  # noqa: T201  (a program of its own)


def main() -> None:
    """Read the packages, write the files."""
    parser = argparse.ArgumentParser(description="Make the files of training/data/text again.")
    parser.add_argument("folder", type=Path, help="where the packages of SOURCES.md lie unpacked")
    folder = parser.parse_args().folder
    TEXT_DIR.mkdir(exist_ok=True)
    for name, text in austen(folder / _AUSTEN):
        write(name, text)
    write("alice_in_wonderland", alice(folder / _ALICE))
    write("tang_and_song_poems", poems(folder / _POEMS))


if __name__ == "__main__":
    main()
