"""`deepinfer cache`."""

import os
from pathlib import Path

import pytest

from deepinfer.cache.disk_tier import DiskTier
from deepinfer.errors import ConfigError
from deepinfer.tools.cache import main

KEYS = [bytes([number]) * 32 for number in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three blobs of one identity, one of another, and a file that is nobody's."""
    for identity, keys in ((b"one", KEYS), (b"other", KEYS[:1])):
        tier = DiskTier(tmp_path, 2**20, identity)
        for key in keys:
            tier.put(key, key * 100)
        assert tier.flush(10)
        tier.close()
    (tmp_path / "notes.txt").write_text("mine")
    return tmp_path


def lines_of(what: str, folder: Path) -> tuple[int, list[str]]:
    lines: list[str] = []
    return main(what, folder, show=lines.append), lines


def test_list(folder: Path) -> None:
    """Files of several models are taken for one, or a stranger's file is counted."""
    code, lines = lines_of("list", folder)
    assert code == 0
    assert sorted(line.split("   ")[1] for line in lines[:-1]) == ["1 blocks", "3 blocks"]
    assert lines[-1] == "4 blocks of 2 models and formats"


def test_check_finds_one_flipped_bit(folder: Path) -> None:
    """A damaged file passes, or takes the whole ones along."""
    assert lines_of("check", folder) == (0, ["4 blocks are whole, 0 were not and are gone"])
    path = next(folder.rglob("*.kv"))
    damaged = bytearray(path.read_bytes())
    damaged[-5] ^= 4
    path.write_bytes(damaged)
    code, lines = lines_of("check", folder)
    assert code == 1
    assert str(path) in lines[0]
    assert lines[-1] == "3 blocks are whole, 1 were not and are gone"
    assert lines_of("check", folder)[0] == 0


def test_clear(folder: Path) -> None:
    """Something is left, or something goes that the tier did not write."""
    code, lines = lines_of("clear", folder)
    assert (code, lines) == (0, [f"removed 4 blocks, {4 * (152 + 3200) / 2**20:,.1f} MiB"])
    assert not list(folder.rglob("*.kv"))
    assert (folder / "notes.txt").read_text() == "mine"


def test_wrong_calls(folder: Path) -> None:
    """A folder that is not there is made, or counts as an empty one."""
    with pytest.raises(ConfigError, match="list, check, clear"):
        main("purge", folder, show=print)
    missing = folder / "none"
    with pytest.raises(ConfigError, match="is no folder"):
        main("list", missing, show=print)
    assert not os.path.exists(missing)
