"""Curves on disk: found again, never torn, never in the way."""

import json
import logging
import os
from pathlib import Path

import pytest

from deepinfer.scheduler.step_time import Curve
from deepinfer.scheduler.step_time_cache import curve_key, read_curve, remove_stale, write_curve

SIZES = [1, 2, 4]
CURVE: Curve = {1: 1.5, 2: 2.0, 4: 3.25}
OTHER: Curve = {1: 9.0, 2: 9.5, 4: 9.75}
PARALLEL = {"data": 1, "context": 1, "expert": 1}
GROUND: dict[str, str | int] = {"device": "cpu", "threads": 2}
KEY = curve_key("model", SIZES, PARALLEL, GROUND)
TTL_S, KEPT_S = 3600, 2 * 3600
NOW = 1_800_000_000.75


def read(folder: Path, now_s: float = NOW, key: str = KEY) -> Curve | None:
    return read_curve(folder, key, SIZES, ttl_s=TTL_S, now_s=now_s)


def put(folder: Path, name: str, content: object = None) -> Path:
    path = folder / name
    path.write_text(json.dumps([[1, 5.0], [2, 5.0], [4, 5.0]] if content is None else content))
    return path


def name_of(written_s: float, key: str = KEY, random: str = "0" * 32, end: str = "") -> str:
    return f"{key}.{random}.{int(written_s)}{end}"


def test_there_and_back(tmp_path: Path) -> None:
    """Every start measures, though the folder was given; a folder to be made is refused."""
    folder = tmp_path / "not" / "yet"
    assert read(folder) is None
    write_curve(folder, KEY, CURVE, now_s=NOW)
    assert read(folder) == CURVE
    assert read(folder, key=curve_key("another", SIZES, PARALLEL, GROUND)) is None
    (path,) = folder.iterdir()
    key, random, written = path.name.split(".")
    assert (key, len(random), written) == (KEY, 32, str(int(NOW)))
    assert json.loads(path.read_text()) == [[1, 1.5], [2, 2.0], [4, 3.25]]


@pytest.mark.parametrize(
    "other",
    [
        ("models", SIZES, PARALLEL, GROUND),
        ("model", [1, 2, 8], PARALLEL, GROUND),
        ("model", SIZES, PARALLEL | {"expert": 8}, GROUND),
        ("model", SIZES, PARALLEL, GROUND | {"threads": 4}),
    ],
)
def test_keys(other: tuple) -> None:
    """One configuration takes the times of another for its own."""
    assert curve_key(*other) != KEY
    assert len(KEY) == 64


def test_order_of_names_is_no_difference() -> None:
    """The same configuration, written down in another order, is measured again."""
    swapped = dict(reversed(PARALLEL.items()))
    assert curve_key("model", SIZES, swapped, GROUND) == KEY


def test_newest_wins(tmp_path: Path) -> None:
    """An older curve is used, whichever name the folder lists first."""
    for age, curve in ((50, OTHER), (10, CURVE), (90, OTHER)):
        write_curve(tmp_path, KEY, curve, now_s=NOW - age)
    assert read(tmp_path) == CURVE


def test_time_to_live(tmp_path: Path) -> None:
    """A curve of last week's machine is used, or one that a wrong clock put in the future."""
    write_curve(tmp_path, KEY, CURVE, now_s=NOW)
    assert read(tmp_path, NOW + TTL_S - 1) == CURVE
    assert read(tmp_path, NOW + TTL_S + 1) is None
    assert read(tmp_path, NOW - 60) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[[1, 1.5], [2, 2.0], [4,",
        "{}",
        "null",
        "[1, 2]",
        "[[1, 1.5], [2, 2.0]]",
        "[[1, 1.5], [2, 2.0], [4, 3.0], [8, 4.0]]",
        "[[1, 1.5], [2, 2.0], [4, -3.0]]",
        "[[1, 1.5], [2, 2.0], [4, 0]]",
        "[[1, 1.5], [2, 2.0], [4, NaN]]",
        "[[1, 1.5], [2, 2.0], [4, Infinity]]",
        "[[1, 1.5], [2, 2.0], [4, 1e400]]",
        "[[1, 1.5], [2, 2.0], [4, true]]",
        "[[true, 1.5], [2, 2.0], [4, 3.0]]",
        '[["1", 1.5], [2, 2.0], [4, 3.0]]',
        "[[0, 1.5], [2, 2.0], [4, 3.0]]",
        "[" * 100_000,
        "\udcff",
    ],
)
def test_torn_and_foreign_content(tmp_path: Path, content: str) -> None:
    """A file that is none stops the engine, gives it absurd times, or hides a good one."""
    path = tmp_path / name_of(NOW)
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert read(tmp_path) is None
    write_curve(tmp_path, KEY, CURVE, now_s=NOW - 5)
    assert read(tmp_path) == CURVE


def test_unfinished_is_not_read(tmp_path: Path) -> None:
    """Half a curve that somebody is writing is read, or removed from under them."""
    path = put(tmp_path, name_of(NOW, end=".tmp"))
    assert read(tmp_path) is None
    remove_stale(tmp_path, ttl_s=TTL_S, now_s=NOW)
    assert path.exists()


def test_stale_files_go_others_stay(tmp_path: Path) -> None:
    """The folder grows for ever, or somebody's files vanish because they lie beside ours."""
    gone_s = TTL_S + KEPT_S + 2
    gone = [
        put(tmp_path, name_of(NOW - gone_s)),
        put(tmp_path, name_of(NOW + gone_s)),
        put(tmp_path, name_of(NOW - gone_s, end=".tmp")),
        put(tmp_path, name_of(NOW - gone_s, key="a" * 64)),
        put(tmp_path, f"{KEY}.{'0' * 32}.soon"),
        put(tmp_path, f"{KEY}.{'1' * 32}"),
    ]
    stay = [
        put(tmp_path, name_of(NOW - TTL_S - 10)),  # of no use, but perhaps just being read
        put(tmp_path, name_of(NOW)),
        put(tmp_path, "notes.txt"),
        put(tmp_path, "a" * 64),
        put(tmp_path, f"{'b' * 64}.json"),
    ]
    (tmp_path / name_of(NOW - gone_s, random="f" * 32)).mkdir()
    remove_stale(tmp_path, ttl_s=TTL_S, now_s=NOW)
    assert not [path.name for path in gone if path.exists()]
    assert all(path.exists() for path in stay)
    assert (tmp_path / name_of(NOW - gone_s, random="f" * 32)).is_dir()


def test_malformed_names_go_however_long_files_live(tmp_path: Path) -> None:
    """With a long time to live, files that can never be read stay for good."""
    path = put(tmp_path, f"{KEY}.{'0' * 32}.soon")
    remove_stale(tmp_path, ttl_s=1e12, now_s=NOW)
    assert not path.exists()


def test_no_folder_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An engine does not start because its cache is a file, or a disk is full."""
    caplog.set_level(logging.WARNING, "deepinfer")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    assert read(blocked) is None
    write_curve(blocked, KEY, CURVE, now_s=NOW)
    write_curve(blocked / "below", KEY, CURVE, now_s=NOW)
    remove_stale(blocked, ttl_s=TTL_S, now_s=NOW)
    assert blocked.read_text() == "a file"


def test_a_write_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves half a curve behind, under a name that counts or not."""

    def full(descriptor: int) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    write_curve(tmp_path, KEY, CURVE, now_s=NOW)
    assert list(tmp_path.iterdir()) == []


def test_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads at the wrong moment gets half a curve: it has its name before its content."""
    seen: list[list[str]] = []
    synced = os.fsync

    def spy(descriptor: int) -> None:
        synced(descriptor)
        seen.append([path.suffix for path in tmp_path.iterdir()])
        assert read(tmp_path) is None

    monkeypatch.setattr(os, "fsync", spy)
    write_curve(tmp_path, KEY, CURVE, now_s=NOW)
    assert seen == [[".tmp"]]
    assert read(tmp_path) == CURVE
