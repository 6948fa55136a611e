"""`deepinfer tiny`: writes the random toy checkpoint."""

from pathlib import Path

from deepinfer.checkpoint.tiny import write_tiny
from deepinfer.errors import ConfigError

_NUM_SEEDS = 2**31


def main(folder: Path, seed: int) -> int:
    """Write the toy into `folder`, which must be new or empty. Raises ConfigError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} exists and is not an empty folder",
            where="FOLDER",
            hint="name a new folder; nothing is overwritten",
        )
    if not 0 <= seed < _NUM_SEEDS:
        raise ConfigError(
            f"found {seed}, expected 0 to {_NUM_SEEDS - 1}", where="--seed", hint="choose another"
        )
    write_tiny(folder, seed=seed)
    num_bytes = sum(file.stat().st_size for file in folder.iterdir())
    print(f"wrote a random toy of {num_bytes / 1e6:.1f} MB to {folder}")
    print(f'try: deepinfer generate "Hello" --model {folder} --max-tokens 32')
    return 0
