"""Where the time of a step goes: by the ops of the model, and by the ops of torch.

The first table counts whole ops of the KernelSet, which do not contain each other; what is left is
indices, stores and glue. The second is torch's own profiler, which slows small ops down.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch.profiler import ProfilerActivity, profile

from deepinfer.bench.steps import Case, Step, make_step
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.model.network import Network

_NUM_SHOWN = 15
REST = "all else"


@dataclass
class OpTimes:
    """What the timed ops of a KernelSet have taken together: seconds and calls by name."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        """Forget all."""
        self.seconds.clear()
        self.calls.clear()


@dataclass(frozen=True, slots=True)
class OpShare:
    """One op in one step."""

    name: str
    num_calls: float
    total_ms: float


def timed_kernels(kernels: KernelSet) -> tuple[KernelSet, OpTimes]:
    """The same ops, each of which adds the time it takes to the OpTimes."""
    times = OpTimes()

    def timed(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = op(*args, **options)
            times.seconds[name] += time.perf_counter() - start
            times.calls[name] += 1
            return result

        return run

    names = [f.name for f in fields(kernels) if f.name != "name"]
    ops: dict[str, Any] = {name: timed(name, getattr(kernels, name)) for name in names}
    return replace(kernels, **ops), times


def profile_ops(network: Network, times: OpTimes, case: Case, num_repeats: int) -> list[OpShare]:
    """Shares of one step, the largest first. `network` must use the ops of `times`.

    REST is what the step takes outside them.
    """
    step = make_step(network, case)
    step()
    times.clear()
    start = time.perf_counter()
    for _ in range(num_repeats):
        step()
    rest = time.perf_counter() - start - sum(times.seconds.values())
    shares = [
        OpShare(name, times.calls[name] / num_repeats, 1000 * seconds / num_repeats)
        for name, seconds in times.seconds.items()
    ]
    shares.append(OpShare(REST, 1, 1000 * rest / num_repeats))
    return sorted(shares, key=lambda share: -share.total_ms)


def profile_torch(step: Step, num_repeats: int) -> list[OpShare]:
    """The ops of torch in one step by the time spent in them alone, the largest first."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(num_repeats):
            step()
    found = [
        OpShare(
            event.key, event.count / num_repeats, event.self_cpu_time_total / 1000 / num_repeats
        )
        for event in profiler.key_averages()
    ]
    return sorted(found, key=lambda share: -share.total_ms)


def share_lines(title: str, shares: list[OpShare]) -> Iterator[str]:
    """A table of the largest shares."""
    total = sum(share.total_ms for share in shares)
    yield f"{title}: {total:.1f} ms"
    yield f"  {'op':32}{'calls':>8}{'ms':>10}{'share':>8}{'us a call':>11}"
    shown, small = shares[:_NUM_SHOWN], shares[_NUM_SHOWN:]
    if small:
        # Summed up, so that the column adds up to the total.
        num_calls = sum(share.num_calls for share in small)
        total_ms = sum(share.total_ms for share in small)
        shown = [*shown, OpShare(f"the other {len(small)}", num_calls, total_ms)]
    for share in shown:
        yield (
            f"  {share.name:32}{share.num_calls:>8.0f}{share.total_ms:>10.2f}"
            f"{100 * share.total_ms / total:>7.1f}%{1000 * share.total_ms / share.num_calls:>11.1f}"
        )
