"""Checks of single options, by the option's name."""

import re
from collections.abc import Sequence
from pathlib import Path

from deepinfer.errors import ConfigError


def one_of(
    name: str, value: object, words: Sequence[str], hint: str = "correct the option"
) -> None:
    """Raise ConfigError unless `value` is one of the words."""
    if value not in words:
        raise ConfigError(
            f"found {value!r}, expected one of {', '.join(words)}", where=name, hint=hint
        )


def whole(
    name: str, value: object, low: int, high: int, hint: str = "leave it out for the default"
) -> int:
    """`value`, if it is a whole number in [low, high]; else ConfigError."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        expected = f"{low}" if low == high else f"a whole number from {low} to {high}"
        raise ConfigError(f"found {value!r}, expected {expected}", where=name, hint=hint)
    return value


def whole_or(default: int, name: str, value: object, low: int, high: int) -> int:
    """The default for None, else as `whole`."""
    return default if value is None else whole(name, value, low, high)


def share(name: str, value: object, whole_size: int) -> tuple[int, int]:
    """Text "i/n" -> (i, n), i below n, n a divisor of `whole_size`; None is all, (0, 1)."""
    if value is None:
        return 0, 1
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", value) if isinstance(value, str) else None
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 0 <= number < count or whole_size % count:
        raise ConfigError(
            f"found {value!r}, expected i/n, i from 0 to n - 1 and n a divisor of {whole_size}",
            where=name,
            hint="0/8 is the first of eight",
        )
    return number, count


def span(name: str, value: object, size: int) -> tuple[int, int]:
    """Text "a:b" -> (a, b), a below b and b at most `size`; None is all, (0, size)."""
    if value is None:
        return 0, size
    found = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})", value) if isinstance(value, str) else None
    first, end = map(int, found.groups()) if found else (0, 0)
    if not first < end <= size:
        raise ConfigError(
            f"found {value!r}, expected a:b, a below b and b at most {size}",
            where=name,
            hint=f"0:{size} is all of them",
        )
    return first, end


def yes_or_no(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is true, false or None."""
    if not isinstance(value, bool | None):
        raise ConfigError(
            f"found {value!r}, expected true or false",
            where=name,
            hint="leave it out for the default",
        )


def check_disk(folder: object, num_bytes: object) -> None:
    """Raise ConfigError for anything but a folder and its size, or neither."""
    if not isinstance(folder, str | Path | None):
        raise ConfigError(
            f"found {folder!r}, expected a folder",
            where="kv_disk_dir",
            hint="leave it out for no disk tier",
        )
    size = whole("kv_disk_bytes", num_bytes, 0, 2**60)
    if (folder is None) == (size == 0):
        return
    missing, given = ("kv_disk_dir", size) if folder is None else ("kv_disk_bytes", folder)
    raise ConfigError(
        f"found nothing beside {given}, expected both or neither",
        where=missing,
        hint="the disk tier needs both kv_disk_dir and kv_disk_bytes",
    )
