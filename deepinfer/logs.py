"""The log: one tree of loggers named "deepinfer", and the time that each stage of a start takes.

A program that only imports the package decides about its log itself; our own command line calls
`setup_logging`. Knows nothing of any other part.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ROOT = "deepinfer"
LEVELS = ("debug", "info", "warning", "error")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def setup_logging(level: str = "info") -> None:
    """Write our log lines of this level and above to stderr, and nowhere else.

    level: debug, info, warning or error. Calling again replaces the earlier set-up. Raises
    ValueError for another level.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%H:%M:%S"))
    logger = logging.getLogger(ROOT)
    logger.setLevel(level.upper())
    logger.handlers[:] = [handler]
    logger.propagate = False  # a handler of the root logger would write every line again


class Stages:
    """Times the stages of a start, so that a slow one is seen by name.

    >>> stages = Stages()
    >>> with stages("weights"):
    ...     pass
    >>> stages.log(logging.getLogger("deepinfer"))  # ready in 0.0 s: weights 0.0
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time what happens inside; a name met again adds up."""
        start = self._clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - start

    def log(self, logger: logging.Logger) -> None:
        """One line with all stages, in the order they began."""
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.seconds.items())
        logger.info("ready in %.1f s: %s", sum(self.seconds.values()), parts)
