"""Start-up curves of step times on disk, so that a restart need not measure again (spec 11.5).

A folder holds one file a curve: `<key>.<32 hex digits at random>.<unix seconds>`, JSON, a list of
[rows, ms]. It is a cache: a file system that fails is a line in the log, never an error; a torn
file, or one that somebody else put there, is passed over. Several engines may use one folder.
"""

import hashlib
import json
import logging
import math
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deepinfer.scheduler.step_time import Curve

logger = logging.getLogger(__name__)

_NAME = re.compile(r"([0-9a-f]{64})\.[0-9a-f]{32}\.([0-9]{1,11})(\.tmp)?")
# Only these are ours to remove, whatever their end looks like.
_OURS = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{32}(\..*)?", re.DOTALL)
_KEPT_S = 2 * 3600  # beyond its time to live a file stays for those who are just reading it
_MAX_BYTES = 1 << 20


class _Entry(NamedTuple):
    """A file of the folder whose name is as ours; key is "" if its end is not."""

    path: Path
    key: str
    written_s: int
    unfinished: bool


def curve_key(
    model: str,
    sizes: Sequence[int],
    parallel_sizes: Mapping[str, int],
    ground: Mapping[str, str | int],
) -> str:
    """SHA-256, in hex, of what a curve depends on.

    model: its folder. sizes: those measured. parallel_sizes: of data, context and experts. ground:
    what else makes steps fast or slow (device, dtype, threads), so that a folder may be shared.
    """
    facts = {
        "time_unit": "ms",
        "model": model,
        "batch_sizes": list(sizes),
        "parallel_sizes": dict(parallel_sizes),
        "ground": dict(ground),
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_curve(
    folder: Path, key: str, sizes: Sequence[int], *, ttl_s: float, now_s: float
) -> Curve | None:
    """The newest valid curve of the key that is at most `ttl_s` seconds old, or None.

    sizes: those it must have, and no others. now_s: unix seconds.
    """
    fresh = [
        entry
        for entry in _entries(folder)
        if entry.key == key and not entry.unfinished and 0 <= now_s - entry.written_s <= ttl_s
    ]
    for entry in sorted(fresh, key=lambda entry: entry.written_s, reverse=True):
        curve = _read(entry.path)
        if curve is not None and sorted(curve) == sorted(sizes):
            return curve
    return None


def write_curve(folder: Path, key: str, curve: Curve, *, now_s: float) -> None:
    """Add a curve; whoever reads meanwhile sees all of it or nothing. Makes the folder."""
    path = folder / f"{key}.{uuid.uuid4().hex}.{int(now_s)}"
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump([[size, ms] for size, ms in sorted(curve.items())], file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        logger.warning("the curve of step times is not kept: %s", error)
        _remove(unfinished)


def remove_stale(folder: Path, *, ttl_s: float, now_s: float) -> None:
    """Remove files of ours that are of no use: hours over their time, or with a malformed name.

    Two hours over, and as far ahead: a clock may have been wrong. Files that others named stay.
    """
    for entry in _entries(folder):
        if not entry.key or abs(now_s - entry.written_s) > ttl_s + _KEPT_S:
            _remove(entry.path)


def _entries(folder: Path) -> Iterator[_Entry]:
    try:
        with os.scandir(folder) as found:
            names = [item.name for item in found if item.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return  # nobody has written yet
    except OSError as error:
        logger.warning("no curves of step times to be had: %s", error)
        return
    for name in sorted(names):
        if parts := _NAME.fullmatch(name):
            key, written, unfinished = parts.groups()
            yield _Entry(folder / name, key, int(written), unfinished is not None)
        elif _OURS.fullmatch(name):
            yield _Entry(folder / name, "", 0, True)


def _read(path: Path) -> Curve | None:
    """The curve in a file, None if it is not one."""
    try:
        with path.open("rb") as file:
            pairs = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):  # ValueError: of JSON and of UTF-8
        return None
    if not isinstance(pairs, list) or not all(map(_is_point, pairs)):
        return None
    return {size: float(ms) for size, ms in pairs}


def _is_point(pair: object) -> bool:
    """A [rows, ms] that a step may have. (To JSON, true and NaN are values like others.)"""
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    size, ms = pair
    return (
        type(size) is int
        and size >= 1
        and type(ms) in (int, float)
        and 0 < ms <= 1e9
        and math.isfinite(ms)
    )


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("a stale curve of step times stays: %s", error)
