"""Drafters for tests: they take the place of the draft module of an engine, whatever they know."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from deepinfer.engine.engine import Engine
from deepinfer.model.network import Network
from deepinfer.outputs import RequestOutput
from deepinfer.scheduler.request import Request
from deepinfer.step import DraftPlan
from deepinfer.step import Drafts as Proposals
from deepinfer.worker.follow import Proposed
from tests.laws.engines import Drafts, make_engine


class Place(NamedTuple):
    """A request as far as a script knows it: drafts follow so many output tokens."""

    request_id: tuple[str, int]
    num_output: int


# What follows the request's tokens, and how sure the drafter is: n tokens, n confidences.
Script = Callable[[Place, int], tuple[Sequence[int], Sequence[float]]]
# The output of each continuation of each request without drafts.
Answers = dict[tuple[str, int], list[int]]


def play(engine: Engine, script: Script) -> Engine:
    """Let the script draft for the engine."""
    worker: Any = engine.worker
    lane: Any = engine.lane

    def propose(plan: DraftPlan, by_slot: dict[int, Request]) -> Callable[[], Proposals]:
        sampled = worker._sampled
        slots = sampled.slots(plan.sequences).tolist()
        anchors = sampled.sample_plan.positions[sampled.first_rows] + sampled.num_accepted.numpy()
        found = []
        for slot, anchor in zip(slots, anchors[plan.sequences].tolist(), strict=True):
            request = by_slot[slot]
            place = Place(request.request_id, anchor + 1 - request.num_prompt)
            found.append(script(place, plan.num_drafts))
        token_ids = np.array([ids for ids, _ in found], np.int32)
        assert token_ids.shape == (len(slots), plan.num_drafts)
        # To `rejection` they are drafts that could not have been others.
        vocab_size = worker.network.setup.config.vocab_size
        logprobs = torch.full((*token_ids.shape, vocab_size), -torch.inf)
        logprobs.scatter_(-1, torch.tensor(token_ids).long()[..., None], 0.0)
        worker.drafter._places = {slot: place for place, slot in enumerate(slots)}
        worker.drafter._logprobs = logprobs
        rows = np.full(len(sampled.first_rows), -1, np.int64)
        rows[plan.sequences] = np.arange(len(slots))
        worker._proposed = Proposed(rows, torch.tensor(token_ids).long())
        sure = np.array([sure for _, sure in found], np.float32)
        return lambda: Proposals(token_ids, sure)

    def draft(plan: DraftPlan) -> Any:
        # Whose slots they are is known now; the lane may come to it later.
        by_slot = {request.slot_id: request for request in engine.scheduler.running}
        return lane._call(partial(propose, plan, by_slot))

    lane.draft = draft
    return engine


def perfect(answers: Answers) -> Script:
    """Knows what will be said. Beyond the end it says 7."""

    def script(request: Place, num: int) -> tuple[Sequence[int], Sequence[float]]:
        rest = answers[request.request_id][request.num_output :]
        return [*rest, *[7] * num][:num], [0.99] * num

    return script


def wrong(answers: Answers) -> Script:
    """Never says what will be said."""
    right = perfect(answers)

    def script(request: Place, num: int) -> tuple[Sequence[int], Sequence[float]]:
        return [(token_id + 1) % 500 for token_id in right(request, num)[0]], [0.9] * num

    return script


def coin(answers: Answers, seed: int = 0) -> Script:
    """Says what will be said, or anything else, with a chance of its own for each request."""
    right, rng = perfect(answers), random.Random(seed)

    def script(request: Place, num: int) -> tuple[Sequence[int], Sequence[float]]:
        chance = 0.5 + int(request.request_id[0]) % 5 / 10
        ids = [
            one if rng.random() < chance else rng.randrange(500) for one in right(request, num)[0]
        ]
        return ids, [rng.random() for _ in ids]

    return script


SCRIPTS = {"perfect": perfect, "wrong": wrong, "coin": coin}
OWN = "own"  # the draft module's
DRAFTERS = (OWN, *SCRIPTS)


def answers_of(outputs: list[RequestOutput]) -> Answers:
    """By request and choice, as they are numbered in a run."""
    return {
        (str(number), one.index): one.token_ids
        for number, output in enumerate(outputs)
        for one in output.outputs
    }


def with_drafter(engine: Engine, name: str, expected: list[RequestOutput]) -> Engine:
    return engine if name == OWN else play(engine, SCRIPTS[name](answers_of(expected)))


def drafting(network: Network, drafts: Drafts, **sizes: Any) -> Engine:
    return make_engine(network, drafts=drafts, **sizes)
