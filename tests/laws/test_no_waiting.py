"""The host never waits for a step before it needs the step's result (of one that is under way).

The device is held by a gate: it makes a call only when it is let. What the host asks for meanwhile
shows how far it gets. That the device's own code does not wait, see `test_no_waiting_on_device`.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deepinfer.engine.engine import Engine
from deepinfer.messages import Delta
from deepinfer.sampling_params import SamplingParams
from tests.laws.ahead import Make, Small, around, engines, make_small
from tests.laws.test_engine import some_ids

# What a step asks of the device, in this order; of the next one the launch comes before anything
# of this one is known.
STEP = ["launch", "sample", "draft"]
_CALLS = {"launch": "launch", "sample": "start_sample", "draft": "start_draft"}
ASKS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 3, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 7, "frequency_penalty": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "prompt_logprobs": 2, "presence_penalty": 0.5},
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make_small(tmp_path_factory.mktemp("small"))


@pytest.fixture
def make(small: Small) -> Iterator[Make]:
    with engines(small.network) as one:
        yield one


class Gate:
    """An engine whose device makes a call only when it is let, and whose host runs in a thread.

    asked: calls that the host has asked for. made: those that the device has begun. news: of each
    step that the host has finished.
    """

    def __init__(self, engine: Engine) -> None:
        self.asked: list[str] = []
        self.made: list[str] = []
        self.news: list[list[Delta]] = []
        self._permits = threading.Semaphore(0)
        self._engine = engine
        self._changed = threading.Condition()
        for name, call in _CALLS.items():
            around(engine.lane, name, self._noting(name))
            around(engine.worker, call, self._held(name))
        self._host = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Gate":
        self._host.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.let(10_000)
        self._host.join(60)
        assert not self._host.is_alive()

    def let(self, num_calls: int) -> None:
        """The device may make so many calls more."""
        self._permits.release(num_calls)

    def comes_to(self, asked: list[str], num_made: int, num_steps: int, patience_s: float) -> bool:
        """The host asks for all of these calls, and has finished so many steps, in time; the device
        has begun with so many calls."""
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    (self.asked, len(self.made), len(self.news)) == (asked, num_made, num_steps)
                ),
                patience_s,
            )

    def _run(self) -> None:
        while self._engine.has_work:
            self._note(self.news, self._engine.step())

    def _note(self, to: list[Any], what: Any) -> None:
        with self._changed:
            to.append(what)
            self._changed.notify_all()

    def _noting(self, name: str) -> Callable[..., Any]:
        def ask(inner: Any, plan: Any) -> Any:
            self._note(self.asked, name)
            return inner(plan)

        return ask

    def _held(self, name: str) -> Callable[..., Any]:
        def make(inner: Any, plan: Any) -> Any:
            self._permits.acquire()
            self._note(self.made, name)
            return inner(plan)

        return make


def overlaps(engine: Engine, patience_s: float) -> bool:
    """With the device held, the host gets through all that needs no result, step after step."""
    for n, ask in enumerate(ASKS):
        params = SamplingParams(**ask, max_tokens=20, ignore_eos=True)
        engine.submit(str(n), some_ids(n, 20), params)
    with Gate(engine) as gate:
        # Nothing is known, and a second step is planned and launched.
        is_so = gate.comes_to([*STEP, "launch"], 0, 0, patience_s)
        for number in range(1, 4):
            gate.let(3)
            # The tokens of a step are there, the next one is held in its launch. Of the first all
            # book-keeping is done, the second's tokens are asked for, and a third is launched.
            asked = [*STEP * (number + 1), "launch"]
            is_so = is_so and gate.comes_to(asked, 3 * number, number, patience_s)
    return is_so


def test_the_host_does_not_wait(small: Small, make: Make) -> None:
    """A step is planned only when the one before it is known, or its book-keeping holds up what
    follows: drafts, log-probabilities, penalties, or a request without a seed want it so."""
    assert overlaps(make(3), 60.0)


def wait_in_launch(engine: Engine) -> None:
    def launch(inner: Any) -> Any:
        flight = inner()
        if flight is not None:
            flight.launched.result()
        return flight

    around(engine, "_launch", launch)


def wait_for_the_step_before(engine: Engine) -> None:
    def launch(inner: Any) -> Any:
        if engine._flight is not None:
            engine._flight.sampled.result()
        return inner()

    around(engine, "_launch", launch)


def wait_in_sample(engine: Engine) -> None:
    def sample(inner: Any, flight: Any) -> None:
        inner(flight)
        if flight is not None:
            flight.sampled.result()

    around(engine, "_sample", sample)


def wait_before_sample(engine: Engine) -> None:
    def sample(inner: Any, flight: Any) -> None:
        if flight is not None:
            flight.launched.result()
        inner(flight)

    around(engine, "_sample", sample)


def wait_for_drafts(engine: Engine) -> None:
    def ask(inner: Any, flight: Any, *rest: Any) -> None:
        inner(flight, *rest)
        if flight.drafts is not None:
            flight.drafts.result()

    around(engine.drafting, "ask", ask)


def wait_for_the_thread(engine: Engine) -> None:
    def update(inner: Any, *args: Any) -> Any:
        engine.lane._thread.submit(lambda: None).result()
        return inner(*args)

    around(engine.scheduler, "update", update)


def one_after_the_other(engine: Engine) -> None:
    engine.is_ahead = False


@pytest.mark.parametrize(
    "spoil",
    [
        wait_in_launch,
        wait_for_the_step_before,
        wait_in_sample,
        wait_before_sample,
        wait_for_drafts,
        wait_for_the_thread,
        one_after_the_other,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_a_host_that_waits_is_found(
    small: Small, make: Make, spoil: Callable[[Engine], None]
) -> None:
    """The test above holds for every engine."""
    engine = make(3)
    spoil(engine)
    assert not overlaps(engine, 0.5)


def test_with_confidences_the_launch_comes_first(small: Small, make: Make) -> None:
    """Where drafts must be known before the next step is planned, it is launched before anything
    is told of this one."""
    engine = make(3, "confidence")
    order: list[str] = []

    def launch(inner: Any, plan: Any) -> Any:
        order.append("launch")
        return inner(plan)

    def news(inner: Any, *args: Any) -> Any:
        order.append("news")
        return inner(*args)

    around(engine.lane, "launch", launch)
    around(engine, "_token_news", news)
    engine.submit("it", [5, 6, 7], SamplingParams(max_tokens=9, temperature=0, ignore_eos=True))
    while engine.has_work:
        engine.step()
    assert order[:5] == ["launch", "launch", "news", "launch", "news"]
