"""Tensors found in the files against those the configuration asks for. Pure; no torch, no files."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepinfer.checkpoint.formats import TensorSpec
from deepinfer.checkpoint.header import Location
from deepinfer.errors import CheckpointError

_FOLDED_NORM = re.compile(r".*\.hc_[a-z]+_norm\.weight")
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Comparison:
    """Names that are missing, unknown or different, and the same as errors, most telling first."""

    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    mismatched: tuple[str, ...]
    problems: tuple[CheckpointError, ...]


def compare(
    found: Mapping[str, Location], specs: Mapping[str, TensorSpec], folder: Path
) -> Comparison:
    """Compare names, shapes and storage types. Raises nothing: errors are returned."""
    missing = tuple(name for name in specs if name not in found)
    unknown = tuple(name for name in found if name not in specs)
    mismatched = tuple(
        name for name, spec in specs.items() if name in found and not _fits(found[name], spec)
    )
    problems = (
        *_folded_norms(unknown, folder),
        *_mismatches(mismatched, found, specs),
        *_missing_scales(missing, found, specs, folder),
        *_missing(missing, specs, folder),
        *_unknown(unknown, folder),
    )
    return Comparison(missing, unknown, mismatched, problems)


def _fits(place: Location, spec: TensorSpec) -> bool:
    return place.shape == spec.shape and place.dtype in spec.format.dtypes


def _folded_norms(unknown: tuple[str, ...], folder: Path) -> list[CheckpointError]:
    """A separate gain would have to be multiplied into hc_*_fn; left out, every layer is wrong."""
    names = [name for name in unknown if _FOLDED_NORM.fullmatch(name)]
    if not names:
        return []
    return [
        CheckpointError(
            f"holds {names[0]} ({len(names)} of this kind): in the released format "
            "this norm's gain is already part of hc_*_fn",
            where=str(folder),
            hint="convert the checkpoint: multiply the gain into hc_*_fn and drop the norm",
        )
    ]


def _mismatches(
    names: tuple[str, ...], found: Mapping[str, Location], specs: Mapping[str, TensorSpec]
) -> list[CheckpointError]:
    return [_mismatch(name, found[name], specs[name], len(names)) for name in names[:SHOWN]]


def _mismatch(name: str, place: Location, spec: TensorSpec, num_wrong: int) -> CheckpointError:
    more = f" ({num_wrong} tensors differ in all)" if num_wrong > 1 else ""
    wanted = " or ".join(spec.format.dtypes)
    return CheckpointError(
        f"{name} is {place.dtype} {list(place.shape)}, "
        f"expected {wanted} {list(spec.shape)}, {spec.format.words}{more}",
        where=str(place.path),
        hint="config.json and the weights are not of one checkpoint"
        if place.shape != spec.shape
        else "the weights were converted to another format; use the released ones",
    )


def _missing_scales(
    missing: tuple[str, ...],
    found: Mapping[str, Location],
    specs: Mapping[str, TensorSpec],
    folder: Path,
) -> list[CheckpointError]:
    """A weight is there but its scales are not. Scale 1 would be a guess, and a wrong one."""
    orphans = [name for name in missing if specs[name].is_scale and specs[name].partner in found]
    if not orphans:
        return []
    first = orphans[0]
    return [
        CheckpointError(
            f"{specs[first].partner} has no scales: neither {first} nor model.{first} is in any "
            f"file ({len(orphans)} weights lack theirs)",
            where=str(folder),
            hint="the scales are never guessed; fetch the released checkpoint",
        )
    ]


def _missing(
    names: tuple[str, ...], specs: Mapping[str, TensorSpec], folder: Path
) -> list[CheckpointError]:
    if not names:
        return []
    return [
        CheckpointError(
            f"{len(names)} of {len(specs)} tensors are in no file: {shorten(names)}",
            where=str(folder),
            hint="the files that are listed are all here, so the index is of another or an older "
            "checkpoint than config.json, or of one saved in part",
        )
    ]


def _unknown(names: tuple[str, ...], folder: Path) -> list[CheckpointError]:
    if not names:
        return []
    return [
        CheckpointError(
            f"{len(names)} tensors are unknown to this model: {shorten(names)}",
            where=str(folder),
            hint="a tensor that is not understood could change the arithmetic; "
            "use the released checkpoint, or config.json that belongs to this one",
        )
    ]


def shorten(names: tuple[str, ...] | list[str], limit: int = SHOWN) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
