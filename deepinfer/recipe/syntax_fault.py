"""What is wrong with a text that is not JSON, and where, in the words of the released recipe.

Runs only when json_text.py has refused a text, so it is written for the reader and not for speed.
Knows the grammar of JSON. Makes no values.
"""

import re
from typing import NoReturn

from deepinfer.recipe.json_text import MAX_DEPTH

_BLANKS = re.compile(rb"[ \t\n\r]*")
_WORDS = {ord("n"): b"null", ord("t"): b"true", ord("f"): b"false"}
_CLOSING = {ord("{"): ord("}"), ord("["): ord("]")}
_WHOLE = {ord("{"): "an object", ord("["): "a list"}
_DIGITS = re.compile(rb"[0-9]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_HIGH, _LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)


class _Fault(Exception):
    """A text, and how many bytes had been taken when it was found."""

    def __init__(self, text: str, taken: int) -> None:
        super().__init__(text)
        self.text = text
        self.taken = taken


def syntax_fault(data: bytes) -> str:
    """The first fault, with its line and column (in bytes, from 1; the last byte taken).

    Text that has no fault gives "no fault": the caller knows that there is one.
    """
    try:
        _document(data)
    except _Fault as fault:
        before = data[: fault.taken]
        line = before.count(b"\n") + 1
        column = fault.taken - (before.rfind(b"\n") + 1)
        return f"{fault.text} at line {line} column {column}"
    return "no fault"


def _document(data: bytes) -> None:
    """One value and nothing behind it. `opened` holds the brackets around the place in hand."""
    opened: list[int] = []
    at = _value(data, 0, opened)
    while opened:
        bracket = opened[-1]
        at = _blanks(data, at)
        byte = _byte(data, at, f"EOF while parsing {_WHOLE[bracket]}")
        if byte == _CLOSING[bracket]:
            opened.pop()
            at += 1
        elif byte == ord(","):
            at = _blanks(data, at + 1)
            if _byte(data, at, "EOF while parsing a value") == _CLOSING[bracket]:
                raise _Fault("trailing comma", at + 1)
            at = _member(data, at, opened)
        else:
            raise _Fault(f"expected `,` or `{chr(_CLOSING[bracket])}`", at + 1)
    at = _blanks(data, at)
    if at < len(data):
        raise _Fault("trailing characters", at + 1)


def _member(data: bytes, at: int, opened: list[int]) -> int:
    """A value, after its key in an object; where it ends, or where its first bracket does."""
    if opened[-1] == ord("{"):
        if data[at] != ord('"'):
            raise _Fault("key must be a string", at + 1)
        at = _blanks(data, _string(data, at + 1))
        if _byte(data, at, "EOF while parsing an object") != ord(":"):
            raise _Fault("expected `:`", at + 1)
        at += 1
    return _value(data, at, opened)


def _value(data: bytes, at: int, opened: list[int]) -> int:
    """A value; of an array or object, only up to the end of its first member."""
    at = _blanks(data, at)
    byte = _byte(data, at, "EOF while parsing a value")
    if byte == ord('"'):
        return _string(data, at + 1)
    if byte == ord("-") or chr(byte).isdigit():
        return _number(data, at)
    if byte in _WORDS:
        return _word(data, at, _WORDS[byte])
    if byte not in _CLOSING:
        raise _Fault("expected value", at + 1)
    if len(opened) == MAX_DEPTH:
        raise _Fault("recursion limit exceeded", at + 1)
    at = _blanks(data, at + 1)
    if _byte(data, at, f"EOF while parsing {_WHOLE[byte]}") == _CLOSING[byte]:
        return at + 1
    opened.append(byte)
    return _member(data, at, opened)


def _word(data: bytes, at: int, word: bytes) -> int:
    for offset, letter in enumerate(word):
        if _byte(data, at + offset, "EOF while parsing a value") != letter:
            raise _Fault("expected ident", at + offset + 1)
    return at + len(word)


def _number(data: bytes, start: int) -> int:
    at = start + (data[start] == ord("-"))
    first = _digits(data, at)
    if data[at] == ord("0") and first > at + 1:
        raise _Fault("invalid number", at + 2)
    at = first
    if data[at : at + 1] == b".":
        at = _digits(data, at + 1)
    if data[at : at + 1] in (b"e", b"E"):
        at += 1 + (data[at + 1 : at + 2] in (b"+", b"-"))
        at = _digits(data, at)
    if abs(float(data[start:at])) == float("inf"):
        raise _Fault("number out of range", at)
    return at


def _digits(data: bytes, at: int) -> int:
    """The end of the digits, of which there must be one."""
    _byte(data, at, "EOF while parsing a value")
    match = _DIGITS.match(data, at)
    assert match is not None
    if match.end() == at:
        raise _Fault("invalid number", at + 1)
    return match.end()


def _string(data: bytes, start: int) -> int:
    """The end of the string that begins at `start`, behind its quote."""
    at = start
    while True:
        match = _PLAIN.match(data, at)
        assert match is not None
        at = match.end()
        byte = _byte(data, at, "EOF while parsing a string")
        at += 1
        if byte == ord('"'):
            break
        if byte != ord("\\"):
            raise _Fault("control character (\\u0000-\\u001F) found while parsing a string", at)
        at = _escape(data, at)
    try:
        data[start : at - 1].decode()
    except UnicodeDecodeError:
        raise _Fault("invalid unicode code point", at) from None
    return at


def _escape(data: bytes, at: int) -> int:
    byte = _byte(data, at, "EOF while parsing a string")
    if byte != ord("u"):
        if byte not in b'"\\/bfnrt':
            raise _Fault("invalid escape", at + 1)
        return at + 1
    code, at = _hex(data, at + 1)
    if code in _LOW:
        _lone(at)
    if code in _HIGH:
        for wanted in b"\\u":
            if _byte(data, at, "EOF while parsing a string") != wanted:
                raise _Fault("unexpected end of hex escape", at + 1)
            at += 1
        code, at = _hex(data, at)
        if code not in _LOW:
            _lone(at)
    return at


def _hex(data: bytes, at: int) -> tuple[int, int]:
    digits = data[at : at + 4]
    if len(digits) < 4:
        raise _Fault("EOF while parsing a string", len(data))
    if not re.fullmatch(rb"[0-9a-fA-F]{4}", digits):
        raise _Fault("invalid escape", at + 4)
    return int(digits, 16), at + 4


def _lone(at: int) -> NoReturn:
    raise _Fault("lone leading surrogate in hex escape", at)


def _blanks(data: bytes, at: int) -> int:
    match = _BLANKS.match(data, at)
    assert match is not None
    return match.end()


def _byte(data: bytes, at: int, at_end: str) -> int:
    """The byte there; `at_end` is the fault if there is none."""
    if at >= len(data):
        raise _Fault(at_end, len(data))
    return data[at]
