"""Times of GPU work: calls captured in a CUDA graph, replayed, by events. Knows no kernel.

Calls that read the same memory again would find it in the L2 cache, so a case has several calls
with inputs of their own, more than the cache holds together where that matters.
"""

import math
import statistics
from collections.abc import Callable, Sequence

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_LEAST_MS = 0.6  # of one replay: shorter ones measure the events
_REPLAYS = 9

Call = Callable[[], object]
Span = tuple[float, float]


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


def kernels_of(call: Call) -> list[tuple[str, Span]]:
    """What ran on the device for a call, in the profiler's order: name, start and end in
    microseconds."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        call()
        torch.cuda.synchronize()
    return [
        (event.name, (event.time_range.start, event.time_range.end))
        for event in seen.events()
        if event.device_type == DeviceType.CUDA
    ]


def own_times(spans: Sequence[Span]) -> list[float]:
    """Of each span how long it went on when all that started before it had ended: together as long
    as anything ran. Kernels start while others run, and some wait for these."""
    times, reached = [0.0] * len(spans), -math.inf
    for place in sorted(range(len(spans)), key=lambda one: spans[one]):
        start, end = spans[place]
        times[place], reached = max(0.0, end - max(start, reached)), max(reached, end)
    return times


def idle_share(spans: Sequence[Span]) -> float:
    """Of the time from the first start to the last end, what no span covers."""
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    return 1 - sum(own_times(spans)) / (last - first)
