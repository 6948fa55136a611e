"""Asynchronous engines for tests: made and closed, watched between steps, failed at chosen places.

Everything is put around an engine's own functions; nothing of it is written again here. The network
is smaller than the toy: what is tested here goes on around it.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from deepinfer.checkpoint.tiny import tiny_config, write_tiny
from deepinfer.engine.engine import Engine
from deepinfer.model.network import Network
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.scheduler.plan import Scheduled
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.laws.drafters import Answers, Place, Script, perfect
from tests.laws.engines import Drafts, Job, make_engine, poison_free, run_jobs
from tests.laws.networks import Source, open_source
from tests.laws.test_engine import some_ids

Make = Callable[..., Engine]

# Both ratios, candidates, Engram, and one draft block.
_SMALL: dict[str, Any] = {
    "num_hidden_layers": 3,
    "compress_ratios": [2, 1, 1, 0],
    "kv_source_layer_ids": [0, 1],
    "index_source_layer_ids": [0, 1, 2],
    "candidate_source_layer_id": 1,
    "engram_layer_ids": [1],
    "dspark_target_layer_ids": [1, 2],
    "num_nextn_predict_layers": 1,
    "hidden_size": 64,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 2,
    "index_n_heads": 8,
    "n_routed_experts": 4,
    "dspark_n_routed_experts": 4,
}


class Small(NamedTuple):
    """A checkpoint of three layers, and its network in float32."""

    source: Source
    network: Network
    tokenizer: Tokenizer


def make_small(folder: Path) -> Small:
    """Write it to an empty folder and load it."""
    write_tiny(folder, config=tiny_config(**_SMALL))
    source = open_source(folder)
    return Small(source, source.network("fp32"), load_tokenizer(folder, source.config))


@contextmanager
def engines(network: Network) -> Iterator[Make]:
    """A function that makes asynchronous engines, all of which are closed at the end."""
    made: list[Engine] = []

    def one(num_drafts: int = 0, schedule: Any = "fixed", **sizes: Any) -> Engine:
        drafts = Drafts(num_drafts, schedule)
        made.append(make_engine(network, drafts=drafts, **({"is_ahead": True} | sizes)))
        return made[-1]

    try:
        yield one
    finally:
        for engine in made:
            engine.close()


def in_turn(small: Small, jobs: Sequence[Job], **sizes: Any) -> list[RequestOutput]:
    """What the requests give step by step, without drafts."""
    return run_jobs(make_engine(small.network, **sizes), small.tokenizer, jobs)


def around(owner: Any, name: str, outer: Callable[..., Any]) -> None:
    """Put `outer(inner, *arguments)` in the place of the owner's function."""
    inner = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        return outer(inner, *args, **options)

    setattr(owner, name, wrapped)


# ---- requests ------------------------------------------------------------------------------------


def jobs_of(lengths: Sequence[int], **params: Any) -> list[Job]:
    """Requests with prompts of these lengths: greedy unless said otherwise, 14 tokens."""
    asked: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 14} | params
    return [Job(some_ids(length, length), SamplingParams(**asked)) for length in lengths]


def mixed_jobs(num: int, lengths: Sequence[int], **params: Any) -> list[Job]:
    """Greedy ones and seeded ones, which come one after the other."""
    asked = {"ignore_eos": True, "max_tokens": 14, "logprobs": 1} | params
    return [
        Job(
            some_ids(n, lengths[n % len(lengths)]),
            SamplingParams(temperature=n % 2, seed=n, **asked),
            arrival=n,
        )
        for n in range(num)
    ]


def by_chance(answers: Answers, chances: Sequence[float], seed: int = 0) -> Script:
    """A drafter: each draft of request i is right with chance number i."""
    right, rng = perfect(answers), random.Random(seed)

    def script(place: Place, num: int) -> tuple[Sequence[int], Sequence[float]]:
        chance = chances[int(place.request_id[0]) % len(chances)]
        ids = right(place, num)[0]
        return [one if rng.random() < chance else (one + 1) % 500 for one in ids], [0.5] * num

    return script


# ---- between steps -------------------------------------------------------------------------------


def wait_for_calls(engine: Engine) -> None:
    """Wait until the device has made all calls that were asked for."""
    if engine.lane._thread is not None:
        engine.lane._thread.submit(lambda: None).result()


def poison_after_calls(engine: Engine) -> None:
    """`poison_free`, when no call writes there any more."""
    wait_for_calls(engine)
    poison_free(engine)


def recorded(engine: Engine) -> dict[tuple[str, int], list[int]]:
    """The tokens that the engine hands out from now on, by request and choice."""
    said: dict[tuple[str, int], list[int]] = {}

    def step(inner: Any) -> Any:
        deltas = inner()
        for delta in deltas:
            if delta.token_id is not None:
                said.setdefault((delta.request_id, delta.choice), []).append(delta.token_id)
        return deltas

    around(engine, "step", step)
    return said


def check_said(said: dict[tuple[str, int], list[int]], outputs: list[RequestOutput]) -> None:
    """Each token of these requests of one continuation was handed out once."""
    assert said == {(str(n), 0): output.token_ids for n, output in enumerate(outputs)}


def launches(engine: Engine) -> list[Scheduled]:
    """The steps that are launched from now on."""
    found: list[Scheduled] = []

    def launch(inner: Any, plan: Any) -> Any:
        found.append(engine.scheduler._in_flight[-1])
        return inner(plan)

    around(engine.lane, "launch", launch)
    return found


# ---- faults --------------------------------------------------------------------------------------


class Fault(RuntimeError):
    """Something broke."""


def failing(owner: Any, name: str, call: int, error: type[BaseException]) -> None:
    """The owner's function raises an error in its call number `call`, from 1."""
    calls = 0

    def wrapped(inner: Any, *args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return inner(*args, **options)

    around(owner, name, wrapped)


def forgiving(engine: Engine) -> list[BaseException]:
    """Whoever steps the engine goes on after an error, not for ever. Errors are collected."""
    errors: list[BaseException] = []

    def step(inner: Any) -> Any:
        try:
            return inner()
        except (KeyboardInterrupt, Fault) as error:
            errors.append(error)
            if len(errors) > 20:
                raise
            return []

    around(engine, "step", step)
    return errors
