"""Reading JSON values into fields of known types, with texts that say what was wrong.

A reader is a function: it takes a JSON value and returns what the request is to hold, or raises
`Unreadable`. Readers are made from other readers, so that a whole request is described as data
(shape_chat.py, shape_responses.py, shape_messages.py). The texts are those of the released recipe
(spec recipe 9).

Knows values without fields of their own; records.py has the others. Knows nothing of any protocol.
"""

import math
import struct as binary
import unicodedata
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

from deepinfer.recipe.json_text import compact

Reader = Callable[[Any], Any]


class Unreadable(Exception):
    """A value that a reader does not take. `path`: names and indexes from the outside to it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.path: list[str | int] = []

    def within(self, step: str | int) -> "Unreadable":
        """The same, seen from one level further out."""
        self.path.insert(0, step)
        return self


def quoted(text: str) -> str:
    """A text in double quotes, with everything escaped that does not print by itself."""
    return '"' + "".join(map(_escaped, text)) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    # A combining mark would attach itself to the quote before it.
    if character.isprintable() and unicodedata.category(character) not in ("Mn", "Me"):
        return character
    return f"\\u{{{ord(character):x}}}"


def described(value: Any) -> str:
    """What a JSON value is, in the words of the errors."""
    return next(say(value) for kind, say in _DESCRIBED if isinstance(value, kind))


# bool before int: to Python the one is the other, too.
_DESCRIBED: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (NoneType, lambda _: "null"),
    (bool, lambda value: f"boolean `{compact(value)}`"),
    (int, lambda value: f"integer `{value}`"),
    (float, lambda value: f"floating point `{compact(value)}`"),
    (str, lambda value: f"string {quoted(value)}"),
    (list, lambda _: "sequence"),
    (dict, lambda _: "map"),
)


def wrong_type(value: Any, wanted: str) -> Unreadable:
    """The error for a value of another type than `wanted`."""
    return Unreadable(f"invalid type: {described(value)}, expected {wanted}")


def string(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise wrong_type(value, "a string")
    return value


def boolean(value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise wrong_type(value, "a boolean")
    return value


def anything(value: Any) -> Any:
    """Any JSON value, null included."""
    return value


def mapping(value: Any) -> dict[str, Any]:
    """An object with any keys."""
    if not isinstance(value, dict):
        raise wrong_type(value, "a map")
    return value


def single(value: float) -> float:
    """The nearest number of 32 bits, which is all that the recipe keeps of a sampling value."""
    try:
        number: float = binary.unpack("f", binary.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return number


def shortest_single(value: float) -> float:
    """The number with the fewest digits that `single` takes for the same."""
    return next(
        number
        for digits in range(1, 18)
        if single(number := float(f"{value:.{digits}g}")) == single(value)
    )


def f32(value: Any) -> float:
    """A number, rounded to 32 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(value, "f32")
    return single(value)


def integer(name: str, least: int, most: int) -> Reader:
    """A whole number between two bounds, both included. name: what errors call the type."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(value, name)
        if not least <= value <= most:
            raise Unreadable(f"invalid value: integer `{value}`, expected {name}")
        return value

    return read


u8 = integer("u8", 0, 2**8 - 1)
u32 = integer("u32", 0, 2**32 - 1)
u64 = integer("u64", 0, 2**64 - 1)
i64 = integer("i64", -(2**63), 2**63 - 1)


def read_at(step: str | int, read: Reader, value: Any) -> Any:
    """What `read` makes of the value; an error knows that the value stood at `step`."""
    try:
        return read(value)
    except Unreadable as error:
        raise error.within(step) from None


def sequence(read: Reader) -> Reader:
    """An array, each of its values read alike."""

    def read_all(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise wrong_type(value, "a sequence")
        return [read_at(index, read, one) for index, one in enumerate(value)]

    return read_all


def text_or(read_item: Reader, otherwise: str) -> Reader:
    """A string, or an array of values read alike. otherwise: what is said of anything else."""
    read_items = sequence(read_item)

    def read(value: Any) -> Any:
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return read_items(value)
        raise Unreadable(otherwise)

    return read


def unknown_variant(name: str, known: Sequence[str]) -> Unreadable:
    """The error for a name that is none of the known ones."""
    names = [f"`{one}`" for one in known]
    wanted = " or ".join(names) if len(names) < 3 else "one of " + ", ".join(names)
    return Unreadable(f"unknown variant `{name}`, expected {wanted}")


def one_of(names: str) -> Reader:
    """One of the names, which stand with spaces between. `{"name": null}` means the name, too."""
    known = names.split()

    def read(value: Any) -> str:
        content = None
        if isinstance(value, dict):
            if len(value) != 1:
                raise Unreadable("invalid value: map, expected map with a single key")
            ((value, content),) = value.items()
        if not isinstance(value, str):
            raise wrong_type(value, "string or map")
        if value not in known:
            raise unknown_variant(value, known)
        if content is not None:
            raise wrong_type(content, "unit")
        return value

    return read
