"""A model argument -> a folder on disk: a folder, or the id of a repository on Hugging Face.

Nothing is downloaded that was not named, and nothing large without consent. Imports no torch.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub import errors as hub_errors
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import (
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from deepinfer.errors import ConfigError

# The files that a model consists of; a repository may hold much more.
FILES = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
]
# What the HTTP library of the installed huggingface_hub raises when there is no network; which
# library that is has changed more than once.
_HTTP_ERROR: type[Exception] = hub_errors.HTTPError  # type: ignore[attr-defined]
LARGE_BYTES = 5 * 2**30
# Each half starts and ends with a letter or digit; "..", "--" or great length mean a path.
_HALF = r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9])?"
_REPOSITORY_ID = re.compile(rf"(?!.*(?:--|\.\.)){_HALF}/{_HALF}", re.ASCII)


def find_model(
    model: str | Path, *, may_download_large: bool, report: Callable[[str], None]
) -> Path:
    """The folder of a model.

    A folder is taken as it is. "owner/name" is looked for in the local cache of huggingface_hub and
    downloaded if it is not complete there: with progress, resuming what an earlier try left, after
    a check of the disk, and beyond 5 GiB only with `may_download_large`. `report` gets one line
    before a download. Raises ConfigError.
    """
    model = str(model)
    folder = _expanded(model)
    if folder.is_dir():
        return folder
    if folder.exists() or not _REPOSITORY_ID.fullmatch(model):
        raise ConfigError(
            f"{model!r} is {'a file' if folder.exists() else 'no folder here'}",
            where="model",
            hint="give the folder that holds config.json, or a Hugging Face id such as owner/name",
        )
    try:
        cached = Path(snapshot_download(model, allow_patterns=FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        cached = None
    if cached is not None and _is_complete(cached):
        return cached
    return _download(model, may_download_large, report)


def _expanded(model: str) -> Path:
    """The path with ~ for the user's home, where there is such a user."""
    try:
        return Path(model).expanduser()
    except RuntimeError:
        return Path(model)


def _is_complete(folder: Path) -> bool:
    """Whether every file that a model needs is there: an interrupted download leaves some out."""
    listing = folder / "model.safetensors.index.json"
    try:
        shards = set(json.loads(listing.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        shards = {"model.safetensors"}
    return all((folder / name).exists() for name in ("config.json", "tokenizer.json", *shards))


def _download(model: str, may_download_large: bool, report: Callable[[str], None]) -> Path:
    try:
        info = HfApi().model_info(model, files_metadata=True)
        wanted = [f for f in info.siblings or [] if any(Path(f.rfilename).match(p) for p in FILES)]
        num_bytes = sum(f.size or 0 for f in wanted)
        _check_room(model, num_bytes, may_download_large)
        report(f"downloading {model}: {len(wanted)} files, {num_bytes / 1e9:.2f} GB")
        return Path(snapshot_download(model, allow_patterns=FILES))
    except RepositoryNotFoundError:
        raise ConfigError(
            f"Hugging Face has no model {model!r}, or it is private",
            where="model",
            hint="check the spelling; for a private model log in with `hf auth login`",
        ) from None
    except (_HTTP_ERROR, OSError) as error:
        raise ConfigError(
            f"{model!r} is not in the cache and could not be downloaded: {_first_line(error)}",
            where="model",
            hint="check the network, or give a folder that holds the model",
        ) from error


def _check_room(model: str, num_bytes: int, may_download_large: bool) -> None:
    if num_bytes > LARGE_BYTES and not may_download_large:
        raise ConfigError(
            f"{model!r} is a download of {num_bytes / 1e9:.0f} GB",
            where="model",
            hint="add --yes if that is what you want",
        )
    place = Path(HF_HUB_CACHE)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if num_bytes > free:
        raise ConfigError(
            f"{model!r} needs {num_bytes / 1e9:.1f} GB and {place} has {free / 1e9:.1f} GB free",
            where="model",
            hint="free some space, or set HF_HOME to a larger disk",
        )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
