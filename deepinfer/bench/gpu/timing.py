"""Times of GPU work: calls captured in a CUDA graph, replayed, by events. Knows no kernel.

Calls that read the same memory again would find it in the L2 cache, so a case has several calls
with inputs of their own, more than the cache holds together where that matters.
"""

import statistics
from collections.abc import Callable, Sequence

import torch

_LEAST_MS = 0.6  # of one replay: shorter ones measure the events
_REPLAYS = 9

Call = Callable[[], object]


def microseconds(calls: Sequence[Call]) -> float:
    """The median time of one call. All of them run once before anything is timed."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for call in calls:
        call()
    end.record()
    torch.cuda.synchronize()
    # Of eager calls that is mostly the host's time: too few rounds, never too many.
    rounds = max(1, min(100, int(_LEAST_MS / max(start.elapsed_time(end), 1e-3))))
    if len(calls) * rounds < 20:
        rounds = -(-20 // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    return 1e3 * replay_ms(graph) / (rounds * len(calls))


def replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    """The median time of a captured graph."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(_REPLAYS):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return float(statistics.median(times))
