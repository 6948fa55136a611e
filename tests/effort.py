"""A limit for what code may cost: for faults that turn seconds into minutes.

Seconds are no measure for that: a slow or a busy machine takes several times as many, and a limit
with room for it would say nothing on a fast one. So the limit is counted in what this machine, at
this moment, needs for a fixed piece of work.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def effort(most: float) -> Iterator[None]:
    """Fail where the body takes this process more CPU time than `most` million turns of a plain
    loop do (about 0.05 s each). The limits given are some five times what was seen."""
    before_s = _million_turns_s()
    start_s = time.process_time()
    yield
    taken_s = time.process_time() - start_s
    taken = taken_s / max(before_s, _million_turns_s())
    assert taken < most, f"took as long as {taken:.1f} million turns of a plain loop"


def _million_turns_s() -> float:
    start_s, last = time.process_time(), 0
    for turn in range(200_000):
        last = (last * 3 + turn) & 0xFFFF
    return 5 * (time.process_time() - start_s)
