"""Two branches of a layer at once, in a CUDA graph.

Kernels of few rows leave most of the device idle, and wait for memory more than they read it. A
second stream costs the host more than that brings, but a graph is recorded once.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


def beside(branch: Callable[[], T]) -> Callable[[], T]:
    """Start a branch; the function that it returns waits for it and gives what it made.

    Its kernels come behind all that the stream has so far. What they read must be kept until then.
    Outside of a recording it runs when it is waited for.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return branch
    main = torch.cuda.current_stream()
    side = _side_stream(main.device)
    side.wait_stream(main)
    # Its memory goes back to the side stream alone, which the next branch lets wait for all that
    # the main one does with this one's result.
    with torch.cuda.stream(side):
        result = branch()

    def join() -> T:
        main.wait_stream(side)
        return result

    return join


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
