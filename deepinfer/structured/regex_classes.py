"""What one escape or one [class] of a regular expression stands for.

Readers of regular expressions disagree about some of these sets, namely ECMA-262 (with its unicode
flag) and Python's `re`: what is ASCII to one in \\d and \\w is Unicode to the other, \\s differs in
rare spaces, and the dot leaves out four line ends or one. Every set has two forms, therefore: the
narrow one holds what belongs to it for both, the wide one what belongs to it for either. Knows no
repetition and no groups.
"""

import re
from dataclasses import dataclass
from functools import cache

from deepinfer.structured import charset
from deepinfer.structured.charset import CharSet

CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B}
HEX_DIGITS = {"x": 2, "u": 4}
ASCII_ALNUM = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
ASCII_SETS = {
    "d": charset.of("0123456789"),
    "w": charset.of("_" + "".join(sorted(ASCII_ALNUM))),
}
COMMON_SPACES = charset.union(
    charset.of("\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000"),
    charset.char_range(0x2000, 0x200A),
)
# To ECMA-262, and to Python.
SPACES = (
    charset.union(COMMON_SPACES, charset.of("\ufeff")),
    charset.union(COMMON_SPACES, charset.of("\x1c\x1d\x1e\x1f\x85")),
)
# What cannot be written as an automaton, or means nothing to one of the readers: (what, way out).
REFUSED = {
    "b": ("a word boundary", "say with a class which character stands there"),
    "B": ("a word boundary", "say with a class which character stands there"),
    "k": ("a back-reference", "repeat what it refers to, if that is always the same"),
    "p": ("a Unicode property", "list the characters in a class"),
    "P": ("a Unicode property", "list the characters in a class"),
    "A": ("the anchor \\A", "write ^"),
    "Z": ("the anchor \\Z", "write $"),
    "z": ("the anchor \\z", "write $"),
}


class RegexError(ValueError):
    """A regular expression is wrong, or asks for what is not supported.

    Attributes: `what` (the reason), `position` (of the character, from 0), `hint` (the way out).
    """

    def __init__(self, what: str, position: int, hint: str) -> None:
        self.what = what
        self.position = position
        self.hint = hint
        super().__init__(f"{what} at position {position}")

    def __reduce__(self) -> tuple[object, ...]:
        return RegexError, (self.what, self.position, self.hint)


@dataclass(frozen=True)
class Piece:
    """A part of a pattern that stands for one character.

    code: the code point, if it is that one character; `end`: position after it in the pattern.
    """

    chars: CharSet
    code: int | None
    end: int


@cache
def named(name: str, wide: bool) -> CharSet:
    """The set of a letter d, D, w, W, s, S, or of the dot."""
    if name.isupper():
        return charset.complement(named(name.lower(), not wide))
    if name in ASCII_SETS:  # Python's sets hold these and more
        return _python_matches(name) if wide else ASCII_SETS[name]
    if name == "s":
        return charset.union(*SPACES) if wide else charset.intersect(*SPACES)
    return charset.complement(charset.of("\n" if wide else "\n\r\u2028\u2029"))


def escape(pattern: str, start: int, *, wide: bool) -> Piece:
    """The escape whose backslash is at `start`. Raises RegexError."""
    if start + 1 == len(pattern):
        raise RegexError("a backslash with nothing after it", start, "write \\\\ for a backslash")
    letter, end = pattern[start + 1], start + 2
    if letter in "dDwWsS":
        return Piece(named(letter, wide), None, end)
    if letter in CONTROLS:
        return _one(CONTROLS[letter], start, end)
    if letter == "0" and not pattern[end : end + 1].isdecimal():
        return _one(0, start, end)
    if letter in HEX_DIGITS or letter == "c":
        return _coded(pattern, start)
    if letter in "0123456789":
        what = "an octal escape" if letter == "0" else "a back-reference"
        raise RegexError(f"\\{letter} is {what}, which is not supported", start, "write \\xHH")
    if letter in REFUSED:
        what, hint = REFUSED[letter]
        raise RegexError(f"\\{letter} is {what}, which is not supported", start, hint)
    if letter in ASCII_ALNUM:
        raise RegexError(f"\\{letter} is no escape", start, f"write {letter} without a backslash")
    return _one(ord(letter), start, end)


def bracket(pattern: str, start: int, *, wide: bool) -> Piece:
    """The class whose [ is at `start`. Raises RegexError."""
    place = start + 1
    negated = pattern.startswith("^", place)
    place += negated
    if pattern.startswith("]", place):
        what = "a class that begins with ] is read in two ways"
        raise RegexError(what, place, "write \\] for the bracket")
    sets = []
    while not pattern.startswith("]", place):
        # What a negated class leaves out is what the class would hold for the other form.
        first = _item(pattern, place, start, wide=wide != negated)
        last = first
        if pattern.startswith("-", first.end) and not pattern.startswith("]", first.end + 1):
            last = _item(pattern, first.end + 1, start, wide=wide)
            sets.append(_range(first, last, place))
        else:
            sets.append(first.chars)
        place = last.end
    chars = charset.union(*sets)
    return Piece(charset.complement(chars) if negated else chars, None, place + 1)


def literal(pattern: str, place: int) -> Piece:
    """The character at `place` as itself. Raises RegexError for a surrogate."""
    return _one(ord(pattern[place]), place, place + 1)


def _item(pattern: str, place: int, start: int, *, wide: bool) -> Piece:
    """One character or escape in a class that begins at `start`."""
    if place >= len(pattern):
        raise RegexError("a class that is not closed", start, "write ], or \\[ for the bracket")
    if pattern.startswith("\\b", place):
        return _one(0x08, place, place + 2)
    if pattern[place] == "\\":
        return escape(pattern, place, wide=wide)
    return literal(pattern, place)


def _range(first: Piece, last: Piece, place: int) -> CharSet:
    if first.code is None or last.code is None:
        what = "a range whose end is a set of characters"
        raise RegexError(what, place, "write \\- for the hyphen, or put it last in the class")
    if first.code > last.code:
        raise RegexError("a range whose ends are in the wrong order", place, "exchange them")
    return charset.char_range(first.code, last.code)


def _coded(pattern: str, start: int) -> Piece:
    """An escape that gives the character's number: \\xHH, \\uHHHH, \\u{H...} or \\cX."""
    found = re.compile(
        r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\u\{0*([0-9a-fA-F]{1,6})\}|\\c([a-zA-Z])"
    ).match(pattern, start)
    if found is None:
        what = f"an unfinished escape {pattern[start : start + 2]}"
        raise RegexError(what, start, "write \\xHH, \\uHHHH, \\u{H...} or \\cX")
    x, u, braced, control = found.groups()
    code = ord(control) % 32 if control else int(x or u or braced, 16)
    return _one(code, start, found.end())


def _one(code: int, start: int, end: int) -> Piece:
    chars = charset.char_range(code, code)
    if not chars or code > charset.LAST:
        what = f"U+{code:04X} is no character"
        raise RegexError(what, start, "write the character itself, or \\u{H...}")
    return Piece(chars, code, end)


def _python_matches(name: str) -> CharSet:
    """The characters that `re` takes for the letter, Unicode as this Python knows it."""
    everything = "".join(map(chr, range(charset.LAST + 1)))
    found = re.finditer(rf"\{name}+", everything)
    return charset.from_ranges((run.start(), run.end() - 1) for run in found)
