"""A scheduler, a fake device and users who come, wait and leave at random. Checks as it goes."""

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.layout import BLOCK_TOKENS, blocks_for
from deepinfer.cache.slots import SlotPool
from deepinfer.scheduler.config import SchedulerConfig
from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.plan import Scheduled
from deepinfer.scheduler.prefix_cache import PrefixCache
from deepinfer.scheduler.request import Request, State
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.scheduler.step_time import StepTime
from deepinfer.scheduler.update import Progress
from deepinfer.scheduler.verify_lengths import VerifyLengths
from deepinfer.step import StepPlan
from tests.sim.fake_device import VOCAB_SIZE, FakeDevice
from tests.sim.loop import Interrupted, Loop, Watcher
from tests.sim.texts import START, advance, next_token

EOS = 0
BAD = 13  # the row that would draw it is not finite


@dataclass
class Watch:
    """What a user sees of a request, and by which step it must have ended."""

    request: Request
    last_step: int
    received: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    is_stopped: bool = False  # the text layer has seen a stop text


class World(Watcher):
    """One random run. `tight` pools hold little more than the longest request.

    ahead: the chance that the next step is planned before the tokens of this one are known.
    prefix: None finds nothing of what others left.
    """

    def __init__(
        self,
        seed: int,
        *,
        tight: bool = True,
        ahead: float = 0.0,
        prefix: PrefixCache | None = None,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.ahead = ahead
        max_num_seqs = rng.randrange(2, 9)
        max_model_len = rng.randrange(150, 700)
        budget = max_num_seqs + rng.choice([0, 1, 7, 60, 300])
        self.config = SchedulerConfig(max_num_seqs, budget, max_model_len, rng.choice([1, 4]))
        num_blocks = blocks_for(max_model_len) * (1 if tight else max_num_seqs)
        self.blocks = BlockPool(num_blocks + (rng.randint(0, max_num_seqs) if tight else 0))
        self.slots = SlotPool(max_num_seqs)
        self.growing = rng.random() < 0.5  # short prompts, long outputs: many preemptions
        curve = {1: 5.0, 100: rng.choice([5.0, 30.0, 300.0])}
        lengths = VerifyLengths(
            self.config,
            rng.choice(["fixed", "fixed", "confidence"]),
            StepTime(curve, graphs=rng.random() < 0.5),
        )
        self.scheduler = Scheduler(self.config, self.blocks, self.slots, lengths, prefix)
        replayed = {} if prefix is None else {"window": prefix.window, "depth": prefix.depth}
        self.device = FakeDevice(self.blocks.num_blocks, max_num_seqs, seed, **replayed)
        self.loop = Loop(
            self.scheduler,
            self.device,
            self,
            num_drafts=rng.choice([0, 1, 3, 5]),
            asked=0.9,
            bad_id=BAD,
            seed=seed,
        )
        self.watches: dict[int | str, Watch] = {}
        self.ends: Counter[str | None] = Counter()
        self.counts: Counter[str] = Counter()
        self.num_steps = self.num_added = 0
        self.checks = False

    def run(self, num_steps: int, check_every: int) -> None:
        """So many steps, then no more arrivals until all is done; everything must be back."""
        while self.num_steps < num_steps:
            self._arrivals()
            self.step(check=self.num_steps % check_every == 0)
        while self.loop.has_work:
            self.step(check=self.num_steps % check_every == 0)
        assert not self.watches
        assert self.blocks.num_free == self.blocks.num_blocks
        assert self.slots.num_free == self.slots.num_slots
        assert (self.scheduler.memory.tables == -1).all()

    def step(self, *, check: bool) -> None:
        """One step of the loop, with aborts, stop texts and interrupts in every gap."""
        self.num_steps += 1
        self.checks = check
        self._abort_somebody(0.01)
        num_lost = self.loop.num_lost
        self.loop.step(is_ahead=self.rng.random() < self.ahead)
        if self.loop.num_lost > num_lost:
            self._all_again()
        for watch in [one for one in self.watches.values() if one.is_stopped]:
            assert self.scheduler.finish(watch.request.request_id, "stop")
            self._ended(watch)
        if check:
            self._check_stored()
            late = [w for w in self.watches.values() if w.last_step < self.num_steps]
            assert not late, "somebody waits longer than the bound"

    def gap(self) -> None:
        self._abort_somebody(0.01)
        if self.rng.random() < 0.001:
            raise Interrupted

    def news(self, progress: list[Progress]) -> None:
        for request, token_id, reason, _, is_draft in progress:
            watch = self.watches.get(request.request_id)
            if watch is None:
                continue  # a stop text, and drafts behind it
            assert watch.request is request
            if not watch.is_stopped:
                self.counts["accepted"] += is_draft
                if token_id is not None:
                    watch.received.append(token_id)
                watch.is_stopped = reason is None and self.rng.random() < 0.002
            if reason is not None:
                self._ended(watch)
            elif watch.is_stopped and self.rng.random() < 0.5:  # else when the step is over
                self.scheduler.finish(request.request_id, "stop")
                self._ended(watch)

    def scored(self, request: Request, positions: range) -> None:
        watch = self.watches.get(request.request_id)
        if watch is not None and watch.request is request:
            watch.scored += positions

    def planned(self, scheduled: Scheduled, plan: StepPlan, before: Scheduled | None) -> None:
        self._check_rows(scheduled, plan, before)
        if before is not None:
            # K02: what the step before draws for them is dropped, and drawn again.
            self.counts["preempted while drawn"] += sum(
                before.requests[place].state is not State.FINISHED
                for place in before.sampled
                if not before.is_live(place)
            )
        if self.checks:
            self._check_owners()

    def _arrivals(self) -> None:
        rng, limit = self.rng, self.config.max_model_len
        if len(self.watches) >= 3 * self.config.max_num_seqs or rng.random() < 0.5:
            return
        limits = Limits(
            max_tokens=limit if self.growing else rng.choice([1, 5, 40, 200, limit]),
            min_tokens=rng.choice([0, 0, 3]),
            stop_token_ids=frozenset(rng.sample(range(VOCAB_SIZE), rng.choice([0, 0, 5]))),
            ignore_eos=self.growing or rng.random() < 0.3,
            eos_ids=frozenset({EOS}),
        )
        request = self.new_request(limits)
        self.num_added += 1
        self.scheduler.add(request)
        before = max((w.last_step for w in self.watches.values()), default=self.num_steps)
        self.watches[request.request_id] = Watch(request, before + self._most_steps(request))

    def new_request(self, limits: Limits) -> Request:
        """With number `num_added`."""
        rng, limit = self.rng, self.config.max_model_len
        longest = 20 if self.growing else rng.choice([20, BLOCK_TOKENS, limit - 1])
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, min(longest, limit - 1)))]
        return Request(self.num_added, prompt, limits, rng.choice([None, None, None, 0, 2]))

    def _most_steps(self, request: Request) -> int:
        """Who arrived first gets a row in every step and is never preempted, so it ends within as
        many steps as it has tokens: in turn, all before this one, then this one. A step that was
        planned too early to know that it comes first, or has ended, does not count."""
        most = min(request.num_prompt + request.limits.max_tokens, self.config.max_model_len)
        return most + 2 * (self.ahead > 0)

    def _all_again(self) -> None:
        """Steps were lost: it is as if all that are there had just come."""
        last = self.num_steps
        for watch in self.watches.values():
            watch.last_step = last = last + self._most_steps(watch.request)

    def _abort_somebody(self, chance: float) -> None:
        if self.rng.random() >= chance or not self.num_added:
            return
        recent = range(max(0, self.num_added - 20), self.num_added + 1)  # finished, unknown as well
        request_id = self.rng.choice(recent)
        watch = self.watches.get(request_id)
        was_running = watch is not None and watch.request.state is State.RUNNING
        assert self.scheduler.abort(request_id) == (watch is not None)
        if watch is not None:
            self.counts["aborted while it ran"] += was_running
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
        if watch.received:
            wanted = request.num_prompt - 1 if request.score_top is not None else 0
            assert watch.scored == list(range(wanted)), "scores are missing, or come twice"
        self.ends[request.finish_reason] += 1

    def _check_rows(self, scheduled: Scheduled, plan: StepPlan, before: Scheduled | None) -> None:
        """Who is in a step, with which rows, if all that is known is what steps said."""
        requests, config = scheduled.requests, self.config
        # Of those whose token is being drawn, the drafts that may bring more.
        drawing = {
            id(before.requests[place]): before.num_drafts[place]
            for place in (before.sampled if before is not None else [])
            if before.is_live(place)
        }
        left = {
            id(request): min(
                request.limits.max_tokens - request.num_output,
                config.max_model_len - len(request.tokens),
            )
            - (id(request) in drawing)
            for request in self.scheduler.running
        }
        # K08: nobody who is certain to end; everybody else.
        assert requests == [one for one in self.scheduler.running if left[id(one)] > 0]
        assert min(scheduled.num_rows) >= 1
        assert sum(scheduled.num_rows) <= config.max_num_batched_tokens
        self.counts["verified"] += sum(scheduled.num_drafts)
        self.counts["planned ahead"] += max(scheduled.follows) >= 0
        self.counts["passed over"] += len(self.scheduler.running) - len(requests)
        written: Counter[int] = Counter()
        for place, request in enumerate(requests):
            num_drafts, start = scheduled.num_drafts[place], scheduled.starts[place]
            verifying = drawing.get(id(request), 0)
            assert num_drafts <= max(0, left[id(request)] - verifying - 1)
            if before is not None and id(request) in drawing:
                number = scheduled.follows[place]
                assert before.requests[before.sampled[number]] is request
                assert start == len(request.tokens)
                assert scheduled.num_rows[place] == 1 + num_drafts
            else:
                assert scheduled.follows[place] == -1
                assert start + scheduled.num_rows[place] - num_drafts <= len(request.tokens)
            # Wherever its rows may come to stand, they have blocks.
            end = start + verifying + scheduled.num_rows[place]
            assert end <= config.max_model_len
            table = plan.block_tables[place].tolist()
            assert table[: blocks_for(end)] == request.block_ids[: blocks_for(end)]
            first = max(start, request.entry_start)
            written.update(table[first // BLOCK_TOKENS : blocks_for(end)])
        assert written[-1] == 0, "a row without a block"
        assert max(written.values(), default=1) == 1, "two write to one block"
        for block_id in written:
            assert self.blocks.num_owners(block_id) == 1, "somebody else may read it"
            assert self.blocks.key(block_id) is None, "somebody may find it"
        assert len(set(plan.slot_ids.tolist())) == len(requests), "two write to one slot"
        order = [one.arrival for one in (*self.scheduler.running, *self.scheduler.waiting)]
        assert order == sorted(order), "somebody was overtaken"

    def _check_owners(self) -> None:
        """Each block has as many owners as are counted, each slot one; tables say the same."""
        running, memory = self.scheduler.running, self.scheduler.memory
        owners = Counter(block_id for request in running for block_id in request.block_ids)
        counted = [self.blocks.num_owners(i) for i in range(self.blocks.num_blocks)]
        assert counted == [owners[i] for i in range(self.blocks.num_blocks)]
        assert max(counted) <= 1 or memory.prefix is not None
        assert self.blocks.num_free == counted.count(0)
        slot_ids = {request.slot_id for request in running}
        assert len(slot_ids) == len(running) == self.slots.num_slots - self.slots.num_free
        expected = np.full_like(memory.tables, -1)
        for request in running:
            expected[request.slot_id, : len(request.block_ids)] = request.block_ids
        assert (memory.tables == expected).all()
        for request in self.scheduler.waiting:
            assert (request.slot_id, request.block_ids, request.num_computed) == (-1, [], 0)
            assert (request.num_drawing, request.num_verifying, request.num_drafts) == (0, 0, 0)

    def _check_stored(self) -> None:
        """Every running request finds its own tokens in its blocks."""
        self.device.catch_up()
        for request in self.scheduler.running:
            stored = self.device.stored(request.block_ids, request.num_computed)
            assert stored == request.tokens[: request.num_computed]
