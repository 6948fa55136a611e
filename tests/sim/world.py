"""A scheduler, a fake device and users who come, wait and leave at random. Checks as it goes."""

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.layout import BLOCK_TOKENS, blocks_for
from deepinfer.cache.slots import SlotPool
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.draft_schedule import survival_rates
from deepinfer.scheduler.plan import Scheduled, make_plan
from deepinfer.scheduler.request import Limits, Request, State
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.scheduler.step_time import StepTime
from deepinfer.scheduler.verify_lengths import VerifyLengths
from tests.sim.fake_device import START, VOCAB_SIZE, FakeDevice, advance, next_token

EOS = 0
BAD = 13  # the row that would draw it is not finite


@dataclass
class Watch:
    """What a user sees of a request, and by which step it must have ended."""

    request: Request
    last_step: int
    received: list[int]


class World:
    """One random run. `tight` pools hold little more than the longest request."""

    def __init__(self, seed: int, *, tight: bool = True) -> None:
        self.rng = rng = random.Random(seed)
        max_num_seqs = rng.randrange(2, 9)
        max_model_len = rng.randrange(150, 700)
        budget = max_num_seqs + rng.choice([0, 1, 7, 60, 300])
        self.config = SchedulerConfig(max_num_seqs, budget, max_model_len, rng.choice([1, 4]))
        num_blocks = blocks_for(max_model_len) * (1 if tight else max_num_seqs)
        self.blocks = BlockPool(num_blocks + (rng.randint(0, max_num_seqs) if tight else 0))
        self.slots = SlotPool(max_num_seqs)
        self.growing = rng.random() < 0.5  # short prompts, long outputs: many preemptions
        self.num_drafts = rng.choice([0, 1, 3, 5])
        curve = {1: 5.0, 100: rng.choice([5.0, 30.0, 300.0])}
        lengths = VerifyLengths(
            self.config,
            rng.choice(["fixed", "confidence"]),
            StepTime(curve, graphs=rng.random() < 0.5),
        )
        self.scheduler = Scheduler(self.config, self.blocks, self.slots, lengths)
        self.device = FakeDevice(self.blocks.num_blocks, max_num_seqs)
        self.watches: dict[int | str, Watch] = {}
        self.ends: Counter[str | None] = Counter()
        self.num_steps = self.num_added = self.num_rows = self.num_tokens = 0
        self.num_verified = self.num_accepted = 0

    def run(self, num_steps: int, check_every: int) -> None:
        """So many steps, then no more arrivals until all is done; everything must be back."""
        while self.num_steps < num_steps:
            self._arrivals()
            self.step(check=self.num_steps % check_every == 0)
        while self.scheduler.has_work:
            self.step(check=self.num_steps % check_every == 0)
        assert not self.watches
        assert self.blocks.num_free == self.blocks.num_blocks
        assert self.slots.num_free == self.slots.num_slots
        assert (self.scheduler.memory.tables == -1).all()

    def step(self, *, check: bool) -> None:
        """schedule, run, update, with aborts in every gap."""
        self.num_steps += 1
        self._abort_somebody(0.01)
        scheduled = self.scheduler.schedule()
        if scheduled is None:
            return
        self._check_rows(scheduled)
        plan = make_plan(scheduled)
        if check:
            self._check_owners()
        token_ids = self.device.run(plan)
        self._abort_somebody(0.01)
        progress = self.scheduler.update(scheduled, token_ids, token_ids == BAD)
        for request, token_id, reason, _, is_draft in progress:
            watch = self.watches.get(request.request_id)
            if watch is None:
                continue  # a stop text, and drafts behind it
            self.num_accepted += is_draft
            if token_id is not None:
                watch.received.append(token_id)
            if reason is not None:
                self._ended(watch)
            elif self.rng.random() < 0.002:  # the text layer sees a stop text
                self.scheduler.finish(request.request_id, "stop")
                self._ended(watch)
        for request in {id(one.request): one.request for one in progress}.values():
            self._propose(request)
        if check:
            self._check_stored()
            late = [w for w in self.watches.values() if w.last_step < self.num_steps]
            assert not late, "somebody waits longer than the bound"

    def _arrivals(self) -> None:
        rng, limit = self.rng, self.config.max_model_len
        if len(self.watches) >= 3 * self.config.max_num_seqs or rng.random() < 0.5:
            return
        longest = 20 if self.growing else rng.choice([20, BLOCK_TOKENS, limit - 1])
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, min(longest, limit - 1)))]
        limits = Limits(
            max_tokens=limit if self.growing else rng.choice([1, 5, 40, 200, limit]),
            min_tokens=rng.choice([0, 0, 3]),
            stop_token_ids=frozenset(rng.sample(range(VOCAB_SIZE), rng.choice([0, 0, 5]))),
            ignore_eos=self.growing or rng.random() < 0.3,
            eos_ids=frozenset({EOS}),
        )
        request = Request(self.num_added, prompt, limits, rng.choice([None, None, None, 0, 2]))
        self.num_added += 1
        self.scheduler.add(request)
        # Who arrived first gets a row in every step and is never preempted, so it ends within as
        # many steps as it has tokens: in turn, all before this one, then this one.
        before = max((w.last_step for w in self.watches.values()), default=self.num_steps)
        most = min(len(prompt) + limits.max_tokens, limit)
        self.watches[request.request_id] = Watch(request, before + most, [])

    def _propose(self, request: Request) -> None:
        """Drafts of all sorts: right, wrong, right for a while."""
        assert request.draft_ids == [], "drafts of an earlier step"
        if request.state is not State.RUNNING or not self.num_drafts or self.rng.random() < 0.1:
            return
        state, ids = advance(START, request.tokens), []
        for _ in range(self.num_drafts):
            right = self.rng.random() < 0.8
            ids.append(next_token(state) if right else self.rng.randrange(VOCAB_SIZE))
            state = advance(state, ids[-1:])
        request.propose(ids, survival_rates([self.rng.random() for _ in ids]))

    def _abort_somebody(self, chance: float) -> None:
        if self.rng.random() >= chance or not self.num_added:
            return
        recent = range(max(0, self.num_added - 20), self.num_added + 1)  # finished, unknown as well
        request_id = self.rng.choice(recent)
        watch = self.watches.get(request_id)
        assert self.scheduler.abort(request_id) == (watch is not None)
        if watch is not None:
            self._ended(watch)

    def _ended(self, watch: Watch) -> None:
        """What the user received is what the device says of these tokens, each once, in order."""
        request = watch.request
        del self.watches[request.request_id]
        assert request.state is State.FINISHED
        received = request.tokens[request.num_prompt :][: len(watch.received)]
        assert received == watch.received
        state = advance(START, request.tokens[: request.num_prompt])
        for token_id in watch.received:
            assert token_id == next_token(state)
            state = advance(state, [token_id])
        is_cut = len(watch.received) < request.num_output  # by a stop text before drafts
        if request.finish_reason == "error" and not is_cut:
            assert next_token(state) == BAD
        if request.finish_reason == "length" and not is_cut:
            full = len(request.tokens) == self.config.max_model_len
            assert full or len(watch.received) == request.limits.max_tokens
        self.ends[request.finish_reason] += 1
        self.num_tokens += len(watch.received)

    def _check_rows(self, scheduled: Scheduled) -> None:
        requests = scheduled.requests
        assert requests == self.scheduler.running
        assert min(scheduled.num_rows) >= 1
        assert sum(scheduled.num_rows) <= self.config.max_num_batched_tokens
        self.num_rows += sum(scheduled.num_rows)
        self.num_verified += sum(map(len, scheduled.drafts))
        for request, draft_ids in zip(scheduled.requests, scheduled.drafts, strict=True):
            left = request.limits.max_tokens - request.num_output
            assert len(draft_ids) <= max(0, left - 1)
            assert len(request.tokens) + len(draft_ids) < self.config.max_model_len
            assert blocks_for(len(request.tokens) + len(draft_ids)) <= len(request.block_ids)
        order = [request.arrival for request in (*requests, *self.scheduler.waiting)]
        assert order == sorted(order), "somebody was overtaken"

    def _check_owners(self) -> None:
        """Each block has as many owners as are counted, each slot one; tables say the same."""
        running, memory = self.scheduler.running, self.scheduler.memory
        owners = Counter(block_id for request in running for block_id in request.block_ids)
        counted = [self.blocks.num_owners(i) for i in range(self.blocks.num_blocks)]
        assert counted == [owners[i] for i in range(self.blocks.num_blocks)]
        assert max(counted) == 1
        assert self.blocks.num_free == counted.count(0)
        slot_ids = {request.slot_id for request in running}
        assert len(slot_ids) == len(running) == self.slots.num_slots - self.slots.num_free
        expected = np.full_like(memory.tables, -1)
        for request in running:
            expected[request.slot_id, : len(request.block_ids)] = request.block_ids
        assert (memory.tables == expected).all()
        for request in self.scheduler.waiting:
            assert (request.slot_id, request.block_ids, request.num_computed) == (-1, [], 0)

    def _check_stored(self) -> None:
        """Every running request finds its own tokens in its blocks."""
        for request in self.scheduler.running:
            stored = self.device.stored(request.block_ids, request.num_computed)
            assert stored == request.tokens[: request.num_computed]
