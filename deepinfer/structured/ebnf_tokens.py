"""The words of a grammar text: names, strings, character classes, counts and signs.

Knows the spelling of each. Does not know how they are put together.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from deepinfer.errors import RequestError
from deepinfer.structured import charset
from deepinfer.structured.charset import CharSet

MAX_LETTERS = 200_000

_SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_COUNT = re.compile(r"\{[ \t]*(\d{1,9})[ \t]*(?:(,)[ \t]*(\d{1,9})?[ \t]*)?\}", re.ASCII)
_SIGN = re.compile(r"::=|[|()*+?.]")
_LETTERS = {
    "n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b",
    "0": "\0",
}  # fmt: skip
_HEX = {"x": 2, "u": 4, "U": 8}
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ")


@dataclass(frozen=True)
class Token:
    """One word.

    kind: the sign itself, or "name", "text", "class", "count", "end". value: the name, or what the
    string says. chars: the class. low and high: the count. start: its place in the text.
    """

    kind: str
    start: int
    value: str = ""
    chars: CharSet = ()
    low: int = 0
    high: int | None = None


@dataclass(frozen=True)
class Source:
    """The text, and the field of the request that errors name."""

    text: str
    field: str

    def mistake(self, start: int, what: str, hint: str) -> RequestError:
        """The error for what is wrong at `start`, with line and column."""
        line = self.text.count("\n", 0, start) + 1
        column = start - (self.text.rfind("\n", 0, start) + 1) + 1
        return RequestError(f"line {line}, column {column}: {what}", field=self.field, hint=hint)


def tokens(source: Source) -> Iterator[Token]:
    """All words of the text, the last one of the kind "end". Raises RequestError for other text."""
    text = source.text
    if len(text) > MAX_LETTERS:
        what = f"the grammar has {len(text)} characters, more than {MAX_LETTERS}"
        raise RequestError(what, field=source.field, hint="write a shorter one")
    place = _skip_space(text, 0)
    while place < len(text):
        token, place = _token(source, place)
        yield token
        place = _skip_space(text, place)
    yield Token("end", len(text))


def _skip_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _token(source: Source, start: int) -> tuple[Token, int]:
    text = source.text
    if text[start] == '"':
        return _string(source, start)
    if text[start] == "[":
        return _class(source, start)
    if text.startswith("(=", start):
        what = "look-ahead, (= ... ), is not supported"
        raise source.mistake(start, what, "write what follows as a part of the rule")
    if found := _NAME.match(text, start):
        return Token("name", start, found.group()), found.end()
    if found := _SIGN.match(text, start):
        return Token(found.group(), start), found.end()
    if found := _COUNT.match(text, start):
        return _count(found), found.end()
    if text[start] == "{":
        hint = "write {2}, {2,} or {2,5}, with at most nine digits"
        raise source.mistake(start, "this is no count", hint)
    what = f"{text[start]!r} does not begin anything"
    hint = 'expected is a rule name, "text", [characters], ( ), |, ::=, *, +, ? or {2,5}'
    raise source.mistake(start, what, hint)


def _count(found: re.Match[str]) -> Token:
    low, comma, high = found.groups()
    at_most = int(high) if high else None
    return Token("count", found.start(), "", (), int(low), at_most if comma else int(low))


def _string(source: Source, start: int) -> tuple[Token, int]:
    letters: list[str] = []
    place = start + 1
    while source.text[place : place + 1] != '"':
        code, place = _character(source, place, start, '"')
        letters.append(chr(code))
    return Token("text", start, "".join(letters)), place + 1


def _class(source: Source, start: int) -> tuple[Token, int]:
    text = source.text
    place = start + 1
    is_negative = text[place : place + 1] == "^"
    place += is_negative
    ranges: list[tuple[int, int]] = []
    while text[place : place + 1] != "]":
        first_place = place
        low, place = _character(source, place, start, "]")
        high = low
        if text[place : place + 1] == "-" and text[place + 1 : place + 2] not in ("]", ""):
            high, place = _character(source, place + 1, start, "]")
        if high < low:
            what = "the range of characters is upside down"
            raise source.mistake(first_place, what, "put the smaller one first, as in [a-z]")
        ranges.append((low, high))
    if not ranges:
        hint = r"put characters into it; ] itself is written \]"
        raise source.mistake(start, "the character class is empty", hint)
    chars = charset.from_ranges(ranges)
    chars = charset.complement(chars) if is_negative else chars
    return Token("class", start, "", chars), place + 1


def _character(source: Source, place: int, start: int, end: str) -> tuple[int, int]:
    """(code point, where the next one begins) of a string or class that began at `start`."""
    letter = source.text[place : place + 1]
    if letter in ("", "\n", "\r"):
        hint = rf"close it with {end} on the same line; a line break in it is written \n"
        raise source.mistake(start, f"{end} is missing", hint)
    if letter != "\\":
        return _scalar(source, place, ord(letter)), place + 1
    kind = source.text[place + 1 : place + 2]
    if kind in _LETTERS:
        return ord(_LETTERS[kind]), place + 2
    if kind in _PUNCTUATION:
        return ord(kind), place + 2
    num_digits = _HEX.get(kind, 0)
    digits = source.text[place + 2 : place + 2 + num_digits]
    if num_digits and re.fullmatch(rf"[0-9A-Fa-f]{{{num_digits}}}", digits):
        return _scalar(source, place, int(digits, 16)), place + 2 + num_digits
    hint = r"there are \n \r \t \b \f \v \0 \xHH \uHHHH \UHHHHHHHH, and \ before punctuation"
    if kind in ("d", "w", "s", "D", "W", "S"):
        hint = "write the characters themselves, as in [0-9] or [A-Za-z0-9_]"
    raise source.mistake(place, f"there is no escape \\{kind}", hint)


def _scalar(source: Source, place: int, code: int) -> int:
    if code > charset.LAST or 0xD800 <= code <= 0xDFFF:
        hint = r"write the character itself, or \U0001f600 with its eight digits"
        raise source.mistake(place, f"U+{code:04X} is no character", hint)
    return code
