"""A worker for tests of the lane that notes what it does, and can be held or made to fail."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from deepinfer.worker.lane import Lane, Pending


class Fault(RuntimeError):
    """Something broke."""


class Stub:
    """In a worker's place. made: what it did, in order. gate: nothing is done before it is set.

    A plan is a number, and so is its result; one in `bad` fails with the exception there.
    """

    device = "cpu"

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.threads: set[int] = set()
        self.num_threads: set[int] = set()
        self.bad: dict[int, BaseException] = {}
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()

    def launch(self, plan: int) -> None:
        self._make("launch", plan)

    def start_sample(self, plan: int) -> Callable[[], int]:
        return self._make("sample", plan)

    def start_draft(self, plan: int) -> Callable[[], int]:
        return self._make("draft", plan)

    def lose_step(self) -> None:
        self.made.append("lose")

    def _make(self, name: str, plan: int) -> Callable[[], int]:
        self.begun.set()
        assert self.gate.wait(60)
        self.threads.add(threading.get_ident())
        self.num_threads.add(torch.get_num_threads())
        self.made.append((name, plan))
        if plan in self.bad:
            raise self.bad[plan]
        return lambda: 100 + plan


def lane_of(stub: Any, *, is_threaded: bool) -> Lane:
    return Lane(stub, is_threaded=is_threaded)


def ask(lane: Any, plan: int) -> Pending[Any]:
    """A launch, a sample or a draft, in turn."""
    return (lane.launch, lane.sample, lane.draft)[plan % 3](plan)


def result_of(plan: int) -> int | None:
    return 100 + plan if plan % 3 else None


def made_of(*plans: int) -> list[tuple[str, int]]:
    return [(("launch", "sample", "draft")[plan % 3], plan) for plan in plans]
