"""Which file holds which tensor: the index of a checkpoint folder, checked against its headers.

`survey` collects every fault as a CheckpointError without raising it (the inspection tool lists
them); `open_index` raises the most telling one. No weight is read, and torch is never imported.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepinfer.checkpoint.compare import compare, shorten
from deepinfer.checkpoint.formats import TensorSpec
from deepinfer.checkpoint.header import (
    FETCH_AGAIN,
    Location,
    open_file,
    parse_object,
    read_header,
    refuse_lfs_pointer,
)
from deepinfer.checkpoint.inventory import inventory
from deepinfer.config.model import ModelConfig
from deepinfer.errors import CheckpointError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
SUFFIX = ".safetensors"
PREFIX = "model."
# The draft module shares the backbone's embedding and head; a stored copy is not used (spec 13.1).
_UNUSED = re.compile(r"mtp\.\d+\.(embed|head)\.weight")


@dataclass(frozen=True, slots=True)
class CheckpointIndex:
    """Where every tensor lies, by released name; `specs` says what each is."""

    folder: Path
    locations: Mapping[str, Location]
    specs: Mapping[str, TensorSpec]
    warnings: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Payload of all tensors as they are stored here."""
        return sum(place.num_bytes for place in self.locations.values())


@dataclass(slots=True)
class Survey:
    """What was found in a folder: tensors under their released names, faults, remarks."""

    folder: Path
    weight_map: dict[str, str] = field(default_factory=dict)
    found: dict[str, Location] = field(default_factory=dict)
    problems: list[CheckpointError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def open_index(folder: Path, config: ModelConfig) -> CheckpointIndex:
    """Locate and check every tensor that `config` asks for.

    Raises CheckpointError naming the file or tensor, what was found, what was expected, and the
    way out.
    """
    specs = inventory(config)
    seen = survey(folder)
    problems = seen.problems or compare(seen.found, specs, folder).problems
    if problems:
        raise problems[0]
    return CheckpointIndex(folder, seen.found, specs, tuple(seen.warnings))


def survey(folder: Path) -> Survey:
    """Read the index and all headers of `folder`. Faults are collected, most telling first."""
    seen = Survey(folder)
    try:
        names = _list_folder(folder)
        weight_map, total_bytes = _read_weight_map(folder, names)
        seen.weight_map = _plain_names(weight_map, str(folder / INDEX_FILE))
    except CheckpointError as error:
        seen.problems.append(error)
        return seen
    shards = sorted(set(weight_map.values()))
    missing = [name for name in shards if not os.path.exists(folder / name)]
    if missing:
        seen.problems.append(_missing_shards(seen, missing, len(shards)))
    for shard in shards:
        if shard not in missing:
            _read_shard(seen, shard)
    _check_index(seen, missing)
    _remark(seen, sorted(set(names) - set(shards)), total_bytes)
    for name in [n for n in seen.found if _UNUSED.fullmatch(n)]:
        seen.warnings.append(f"{name} is ignored: the draft module shares the backbone's")
        del seen.found[name]
    return seen


def _list_folder(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(
            f"the folder cannot be read: {error.strerror}",
            where=str(folder),
            hint="give a folder that exists and that you may read",
        ) from None


def _read_weight_map(folder: Path, names: list[str]) -> tuple[dict[str, str], int | None]:
    """Tensor -> file name as the index says, or as the only file does; and the total it claims."""
    path = folder / INDEX_FILE
    if INDEX_FILE not in names:
        return _without_index(folder, names), None
    with open_file(path) as file:
        text = file.read()
    refuse_lfs_pointer(path, text)
    raw = parse_object(path, text)
    weight_map = raw.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError("holds no weight_map", where=str(path), hint=FETCH_AGAIN)
    for name, shard in weight_map.items():
        # A name with a path in it could point anywhere on this machine.
        plain = isinstance(shard, str) and shard.strip(". ") and not re.search(r"[/\\\x00]", shard)
        if not plain:
            raise CheckpointError(
                f"{name} lies in {shard!r}, expected the name of a file in the same folder",
                where=str(path),
                hint="an index of a published checkpoint has plain file names; fetch it again",
            )
    notes = raw.get("metadata")
    total = notes.get("total_size") if isinstance(notes, dict) else None
    return weight_map, total if isinstance(total, int) else None


def _without_index(folder: Path, names: list[str]) -> dict[str, str]:
    if SINGLE_FILE in names:
        return dict.fromkeys(read_header(folder / SINGLE_FILE), SINGLE_FILE)
    shards = [name for name in names if name.endswith(SUFFIX)]
    if shards:
        raise CheckpointError(
            f"the index is missing, though {len(shards)} weight files are here ({shorten(shards)})",
            where=str(folder / INDEX_FILE),
            hint="fetch the index too: only it says whether all files are here",
        )
    raise CheckpointError(
        f"neither {INDEX_FILE} nor {SINGLE_FILE} is here; found {shorten(names) or 'nothing'}",
        where=str(folder),
        hint="give the folder of the checkpoint itself; if this is it, the download has not begun",
    )


def _plain_names(names: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Keys without the optional `model.` prefix. Both forms of one name would leave two tensors."""
    plain: dict[str, Any] = {}
    for name, value in names.items():
        short = name.removeprefix(PREFIX)
        if short in plain:
            raise CheckpointError(
                f"holds both {short} and {PREFIX}{short}",
                where=where,
                hint="one of them is stale; fetch the checkpoint again",
            )
        plain[short] = value
    return plain


def _missing_shards(seen: Survey, missing: list[str], num_shards: int) -> CheckpointError:
    gone = set(missing)
    lost = [name for name, shard in seen.weight_map.items() if shard in gone]
    return CheckpointError(
        f"{len(missing)} of {num_shards} weight files are missing ({shorten(missing)}), "
        f"and with them {len(lost)} of {len(seen.weight_map)} tensors ({shorten(lost)})",
        where=str(seen.folder),
        hint="the download is most likely unfinished: resume it",
    )


def _read_shard(seen: Survey, shard: str) -> None:
    path = seen.folder / shard
    try:
        header = _plain_names(read_header(path), str(path))
    except CheckpointError as error:
        seen.problems.append(error)
        return
    for name, place in header.items():
        if name in seen.found:
            seen.problems.append(
                CheckpointError(
                    f"{name} lies in two files, {seen.found[name].path.name} and {shard}",
                    where=str(seen.folder),
                    hint="files of two checkpoints are mixed; fetch it into an empty folder",
                )
            )
        seen.found.setdefault(name, place)


def _check_index(seen: Survey, missing: list[str]) -> None:
    """The index and the headers say the same of every tensor whose file could be read."""
    readable = {place.path.name for place in seen.found.values()}
    wrong = [
        f"{name} should be in {shard} "
        + (f"but is in {seen.found[name].path.name}" if name in seen.found else "but is not")
        for name, shard in seen.weight_map.items()
        if shard in readable and (name not in seen.found or seen.found[name].path.name != shard)
    ]
    wrong += [
        f"{name} is in {place.path.name} but not in the index"
        for name, place in seen.found.items()
        if name not in seen.weight_map
    ]
    if wrong:
        seen.problems.append(
            CheckpointError(
                f"the index and the files disagree on {len(wrong)} tensors: {shorten(wrong)}",
                where=str(seen.folder / INDEX_FILE),
                hint="index and weight files are of different versions; fetch both again",
            )
        )


def _remark(seen: Survey, others: list[str], total_bytes: int | None) -> None:
    """What is odd but harmless: weight files nobody asked for, a wrong total."""
    extra = [name for name in others if name.endswith(SUFFIX)]
    if extra:
        seen.warnings.append(f"not in the index and ignored: {shorten(extra)}")
    found = sum(place.num_bytes for place in seen.found.values())
    if total_bytes is not None and total_bytes != found and not seen.problems:
        seen.warnings.append(f"the index promises {total_bytes:,} bytes, the files hold {found:,}")
