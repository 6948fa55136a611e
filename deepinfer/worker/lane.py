"""The lane to a device: calls that run one after another while the host goes on.

A worker on a thread of its own, or on the caller's. Knows order, results that are fetched later,
and faults. Does not know what a call does.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

import torch

from deepinfer.step import DraftPlan, Drafts, SamplePlan, StepPlan, StepResult
from deepinfer.worker.blobs import load, start_save
from deepinfer.worker.faults import named_faults
from deepinfer.worker.worker import Worker

T = TypeVar("T")


class Pending(Generic[T]):
    """A result on its way."""

    def __init__(self, call: "Future[tuple[Callable[[], T], Callable[[], float]]]") -> None:
        self._call = call

    def result(self) -> T:
        """Wait for it. Raises what the call, or one before it, raised."""
        wait, _ = self._call.result()
        # A device that works on its own fails where its results are waited for.
        with named_faults("a step"):
            return wait()

    @property
    def taken_s(self) -> float:
        """Seconds that the device was at the call, of one whose result is there, or that of a call
        behind it."""
        return self._call.result()[1]()


class LaneError(RuntimeError):
    """A call was not made because one before it failed."""


class Lane:
    """Calls of one worker, in the order in which they were made.

    After a call that failed, all later ones fail with `LaneError`, until `lose_step`.
    """

    def __init__(self, worker: Worker, *, is_threaded: bool = False) -> None:
        """is_threaded: calls return at once, and a thread makes them."""
        self.worker = worker
        self._has_failed = False
        self._thread: ThreadPoolExecutor | None = None
        if is_threaded:
            # How many threads torch uses is a property of the thread that calls it.
            self._thread = ThreadPoolExecutor(
                1, "deepinfer-device", torch.set_num_threads, (torch.get_num_threads(),)
            )

    @property
    def is_threaded(self) -> bool:
        """The host goes on while calls are made."""
        return self._thread is not None

    def launch(self, plan: StepPlan) -> Pending[None]:
        """`Worker.launch`."""
        return self._call(partial(self._launch, plan))

    def sample(self, plan: SamplePlan) -> Pending[StepResult]:
        """`Worker.start_sample`."""
        return self._call(partial(self.worker.start_sample, plan))

    def save(self, block_ids: Sequence[int]) -> Pending[list[bytes]]:
        """`blobs.start_save`: the blocks as they are after the calls before."""
        return self._call(partial(start_save, self.worker.pools, block_ids))

    def load(self, block_ids: Sequence[int], blobs: Sequence[bytes]) -> Pending[None]:
        """`blobs.load`, before the calls behind."""
        return self._call(partial(self._load, block_ids, blobs))

    def draft(self, plan: DraftPlan) -> Pending[Drafts]:
        """`Worker.start_draft`."""
        return self._call(partial(self.worker.start_draft, plan))

    def lose_step(self) -> None:
        """Let no later call follow one that was asked for before; nothing waits for these."""
        if self._thread is not None:
            self._thread.submit(self._lose)
        else:
            self._lose()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()

    def _lose(self) -> None:
        self._has_failed = False
        self.worker.lose_step()

    def _launch(self, plan: StepPlan) -> Callable[[], None]:
        self.worker.launch(plan)
        return lambda: None

    def _load(self, block_ids: Sequence[int], blobs: Sequence[bytes]) -> Callable[[], None]:
        load(self.worker.pools, block_ids, blobs)
        return lambda: None

    def _call(self, function: Callable[[], Callable[[], T]]) -> Pending[T]:
        if self._thread is not None:
            return Pending(self._thread.submit(self._timed, function))
        done: Future[tuple[Callable[[], T], Callable[[], float]]] = Future()
        done.set_result(self._timed(function))
        return Pending(done)

    def _timed(
        self, function: Callable[[], Callable[[], T]]
    ) -> tuple[Callable[[], T], Callable[[], float]]:
        if self._has_failed:
            raise LaneError("a call before this one failed")
        try:
            with named_faults("a step"):
                stop = _start_clock(self.worker.device)
                return function(), stop()
        except BaseException:
            self._has_failed = True
            raise


def _start_clock(device: str) -> Callable[[], Callable[[], float]]:
    """A function that stops it, and gives one for the seconds between. A device that works on its
    own is timed by events in its queue: the host is long gone when it comes there."""
    if device == "cpu":
        start = time.perf_counter()

        def stop() -> Callable[[], float]:
            taken = time.perf_counter() - start
            return lambda: taken

        return stop
    first, last = (torch.Event(device, enable_timing=True) for _ in range(2))
    first.record()

    def stop_queue() -> Callable[[], float]:
        last.record()

        def taken_s() -> float:
            last.synchronize()
            return float(first.elapsed_time(last)) / 1000

        return taken_s

    return stop_queue
