"""`deepinfer cache`: what lies in a folder of the disk tier, whether it is whole, and out with it.

Knows files of the tier; neither what a blob means nor any model. Safe beside engines that use the
folder: what they miss, they compute again.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deepinfer.cache.disk_file import BadFileError, read_file, remove_orphan
from deepinfer.cache.disk_folder import StoredFile, scan
from deepinfer.errors import ConfigError

Show = Callable[[str], None]


def main(what: str, folder: Path, *, show: Show) -> int:
    """list, check or clear a folder; 1 if a check found bad files. Raises ConfigError."""
    if not folder.is_dir():
        hint = "give the folder that was kv_disk_dir"
        raise ConfigError(f"{folder} is no folder", where="FOLDER", hint=hint)
    known = {"list": list_files, "check": check_files, "clear": clear_files}
    if what not in known:
        expected = f"expected one of {', '.join(known)}"
        raise ConfigError(f"found {what!r}, {expected}", where="WHAT", hint="correct it")
    return known[what](str(folder), show)


def list_files(folder: str, show: Show) -> int:
    """A line for each identity, a model in one format of the cache: files, bytes, last use."""
    groups: dict[str, list[StoredFile]] = defaultdict(list)
    for file in scan(folder):
        if not file.is_temporary:
            groups[_identity(file.path)].append(file)
    for identity, files in sorted(groups.items()):
        num_bytes = sum(file.num_bytes for file in files)
        age_s = max(0.0, time.time() - max(file.used_s for file in files))
        show(
            f"{identity[:12]}   {len(files):,} blocks   {num_bytes / 2**20:,.1f} MiB   "
            f"used {age_s / 3600:,.1f} h ago"
        )
    num_files = sum(map(len, groups.values()))
    show(f"{num_files:,} blocks of {len(groups)} models and formats")
    return 0


def check_files(folder: str, show: Show) -> int:
    """Read every file as an engine would; bad ones are removed, a line for each."""
    num_good = num_bad = 0
    for file in scan(folder):
        if file.is_temporary:
            continue
        key = bytes.fromhex(os.path.basename(file.path).removesuffix(".kv"))
        try:
            if read_file(file.path, bytes.fromhex(_identity(file.path)), key) is not None:
                num_good += 1
        except BadFileError as error:
            num_bad += 1
            show(f"removed {file.path}: {error}")
    show(f"{num_good:,} blocks are whole, {num_bad:,} were not and are gone")
    return 1 if num_bad else 0


def clear_files(folder: str, show: Show) -> int:
    """Remove all blocks, of every identity; nothing else in the folder."""
    num_files = num_bytes = 0
    for file in scan(folder):
        if file.is_temporary:
            remove_orphan(file.path)
            continue
        with suppress(FileNotFoundError):
            os.unlink(file.path)
            num_files, num_bytes = num_files + 1, num_bytes + file.num_bytes
    show(f"removed {num_files:,} blocks, {num_bytes / 2**20:,.1f} MiB")
    return 0


def _identity(path: str) -> str:
    return Path(path).parent.parent.name.removeprefix("kv-")
