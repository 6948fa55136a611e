"""Checks of single configuration values.

A check is data: what is expected, in words, and a function that accepts a value or not. Knows
nothing of files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from deepinfer.errors import ConfigError

REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Check:
    """`expected` in words; `accept(value)` tells whether it is so; `convert` makes it final."""

    expected: str
    accept: Callable[[Any], bool]
    convert: Callable[[Any], Any] = lambda value: value

    def __call__(self, value: object, where: str) -> Any:
        """The value in its final form. Raises ConfigError naming `where`."""
        if not self.accept(value):
            raise ConfigError(
                f"found {shown(value)}, expected {self.expected}",
                where=where,
                hint="correct the value, or take config.json from the checkpoint's own repository",
            )
        return self.convert(value)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a configuration: its name, its check, and the value it has when absent."""

    name: str
    check: Check
    default: object = REQUIRED


def shown(value: object) -> str:
    """`value` as a short text for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return isfinite(value)
    except OverflowError:
        return False  # a whole number beyond every float


def exactly(wanted: object) -> Check:
    """The value itself; 0 and 0.0 are the same, 0 and false are not."""
    same_kind = bool if isinstance(wanted, bool) else (int, float, str, list)
    return Check(
        shown(wanted),
        lambda v: (
            v == wanted
            and isinstance(v, same_kind)
            and isinstance(v, bool) == isinstance(wanted, bool)
        ),
    )


def one_of(*wanted: str) -> Check:
    """One of the given words."""
    return Check(
        "one of " + ", ".join(map(repr, wanted)), lambda v: isinstance(v, str) and v in wanted
    )


def boolean() -> Check:
    """true or false."""
    return Check("true or false", lambda v: isinstance(v, bool))


def mapping() -> Check:
    """An object with keys."""
    return Check("an object", lambda v: isinstance(v, dict))


def integer(low: int, high: int = 2**53, *, multiple_of: int = 1) -> Check:
    """A whole number in [low, high] that `multiple_of` divides."""
    words = f"a whole number of at least {low}"
    if high < 2**53:
        words += f" and at most {high}"
    if multiple_of > 1:
        words += f" that is a multiple of {multiple_of}"
    return Check(words, lambda v: _is_int(v) and low <= v <= high and v % multiple_of == 0)


def number(low: float, high: float = float("inf"), *, above: bool = False) -> Check:
    """A finite number in [low, high], or in (low, high] with `above`."""
    words = f"a finite number {'above' if above else 'of at least'} {low:g}"
    if isfinite(high):
        words += f" and at most {high:g}"
    return Check(
        words,
        lambda v: _is_number(v) and (v > low if above else v >= low) and v <= high,
        float,
    )


def integers() -> Check:
    """A list of whole numbers of at least 0."""
    return Check(
        "a list of whole numbers of at least 0",
        lambda v: isinstance(v, list) and all(_is_int(x) and x >= 0 for x in v),
        tuple,
    )


def nullable(check: Check) -> Check:
    """null, or what `check` accepts."""
    return Check(
        f"null or {check.expected}",
        lambda v: v is None or check.accept(v),
        lambda v: None if v is None else check.convert(v),
    )
