"""What runs when no model is named: the demo model that ships with the project, or a random toy."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from deepinfer.checkpoint.tiny import write_tiny

# Raise this when the toy's bytes change: an older one in a user's cache is then left alone.
_TOY_VERSION = 1


def demo_folder() -> Path | None:
    """The demo model that ships with the project: in the working folder or in the source tree."""
    source_tree = Path(__file__).parents[2]
    places = (root / "models" / "demo" for root in (Path.cwd(), source_tree))
    return next((place for place in places if (place / "config.json").exists()), None)


def default_model(report: Callable[[str], None]) -> Path:
    """The demo model; without one the random toy, said loudly."""
    demo = demo_folder()
    if demo is not None:
        return demo
    report(
        "NO MODEL GIVEN: this is a RANDOM TOY in the released format, made on the spot. "
        "Its text is noise by design; it shows that every part runs."
    )
    return toy_model()


def toy_model() -> Path:
    """The toy checkpoint in the user's cache; written there first if it is missing."""
    cache = Path.home() / ".cache" / "deepinfer"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        cache = Path(tempfile.mkdtemp(prefix="deepinfer-"))
    toy = cache / f"toy-{_TOY_VERSION}"
    if not toy.exists():
        # Written aside and renamed, so that a toy that exists is a whole one.
        fresh = Path(tempfile.mkdtemp(prefix="toy-", dir=cache))
        write_tiny(fresh)
        try:
            fresh.rename(toy)
        except OSError:
            # Someone else was faster; theirs is the same to the byte.
            return toy if toy.exists() else fresh
    return toy
