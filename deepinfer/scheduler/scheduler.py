"""`Scheduler`: which requests run in the next step and with how many rows.

Rules, in the order in which a step applies them:

1. Memory. A running request whose newest token needs a block gets one. If none is free, the request
   that arrived last among the running ones is preempted: it gives all back, waits in front of
   everybody else, and computes its tokens again later; it may be the very one that needed the
   block. The oldest is never preempted, so somebody always gets ahead.
2. Admission, strictly in order of arrival: the first that waits is admitted if a slot is free; if
   all blocks for the tokens that it has are free, and a spare block for every two that run; and if
   there are rows for it: what running requests leave, or a share beside at most
   `max_catching_up - 1` others that have more than one token to catch up with.
3. Rows. The budget is shared equally among the running requests, see `share_rows`: who generates
   needs one row; the others divide the rest. Every running request gets a row in every step.
4. Drafts. What is left of rows and free blocks goes to drafts of those who generate, as many as
   `VerifyLengths` says. So drafts keep nobody waiting, and their blocks go back after the step.

Example, 8 rows, no lack of blocks: A and B generate, C has 20 prompt tokens to go, D arrives with a
prompt of 3. The step runs A 1, B 1, C 3, D 3 rows; A, B and D draw a token, C draws none.

So every running request is ahead of every waiting one in order of arrival. Knows nothing of text,
of probabilities, or of the device.

A step may be planned before the one before it is known. A request whose token is being drawn there
has one more token then, at a place of which only bounds are known; blocks are for the highest. Who
is certain to end there is passed over. Who ends there unforeseen has run a row in vain; what an
ended or preempted request is still to get is dropped.
"""

from collections import OrderedDict, deque

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.layout import blocks_for
from deepinfer.cache.slots import SlotPool
from deepinfer.errors import ConfigError, RequestError
from deepinfer.scheduler.budget import demand_of, share_rows
from deepinfer.scheduler.config import Counters, SchedulerConfig, Totals
from deepinfer.scheduler.memory import Memory, spare_blocks
from deepinfer.scheduler.plan import Scheduled, schedule_rows
from deepinfer.scheduler.prefix_cache import PrefixCache
from deepinfer.scheduler.request import Reason, Request, RequestId, State
from deepinfer.scheduler.update import Progress, stored_tokens, take_step
from deepinfer.scheduler.verify_lengths import VerifyLengths
from deepinfer.step import Bool, Int32

# Planned steps whose results are not known yet.
MAX_STEPS = 2


class Scheduler:
    """All requests that have not finished, and what they own."""

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockPool,
        slots: SlotPool,
        verify_lengths: VerifyLengths | None = None,
        prefix: PrefixCache | None = None,
    ) -> None:
        need = blocks_for(config.max_model_len)
        if need > blocks.num_blocks:
            raise ConfigError(
                f"a request of {config.max_model_len} tokens needs {need} blocks, the pool has "
                f"{blocks.num_blocks}",
                where="max_model_len",
                hint="lower it, or give the caches more memory",
            )
        self.config = config
        self.verify_lengths = verify_lengths or VerifyLengths(config)
        self.memory = Memory(blocks, slots, config.max_model_len, prefix)
        # Both in order of arrival, and all of the first before all of the second.
        self._running: dict[RequestId, Request] = {}
        self._waiting: OrderedDict[RequestId, Request] = OrderedDict()
        self._num_arrived = 0
        self.totals = Totals()
        # The oldest first.
        self._in_flight: deque[Scheduled] = deque()

    @property
    def has_work(self) -> bool:
        """There are requests; with no step under way, `schedule` returns one."""
        return bool(self._running or self._waiting)

    @property
    def running(self) -> list[Request]:
        """Those that own memory, in order of arrival."""
        return list(self._running.values())

    @property
    def waiting(self) -> list[Request]:
        """Those that own none, in order of arrival; all arrived after the running ones."""
        return list(self._waiting.values())

    @property
    def counters(self) -> Counters:
        """How it stands now."""
        return Counters(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_free_blocks=self.memory.blocks.num_free,
            num_free_slots=self.memory.slots.num_free,
            num_preemptions=self.totals.num_preemptions,
        )

    def add(self, request: Request) -> None:
        """Put a new request behind all others. Raises as `check` does."""
        assert request.arrival < 0, f"{request.request_id!r} was added before"
        self.check(request)
        request.arrival, self._num_arrived = self._num_arrived, self._num_arrived + 1
        self._waiting[request.request_id] = request
        if (prefix := self.memory.prefix) is not None:
            prefix.read_ahead(request)

    def check(self, request: Request) -> None:
        """Raise RequestError for a request that cannot be added.

        That is: an empty prompt, one that leaves no room for a token, or an id that a request has
        which is not finished.
        """
        if (request_id := request.request_id) in self._running or request_id in self._waiting:
            raise RequestError(
                f"{request_id!r} is being worked on",
                field="request_id",
                hint="give every request an id of its own",
            )
        self.config.check_prompt(len(request.tokens))

    def abort(self, request_id: RequestId) -> bool:
        """End a request that nobody wants any more, wherever it stands.

        False if there is none. What it owned is free at once; a token under way is dropped.
        """
        return self.finish(request_id, "abort")

    def finish(self, request_id: RequestId, reason: Reason) -> bool:
        """End a request for a reason that its tokens do not show, a stop text; as `abort`."""
        request = self._running.get(request_id) or self._waiting.get(request_id)
        if request is None:
            return False
        self._end(request, reason)
        return True

    def schedule(self) -> Scheduled | None:
        """The next step, None if there is nothing to run in it. `update` must follow."""
        assert len(self._in_flight) < MAX_STEPS, "the steps before have not been updated"
        self._make_room()
        self._admit()
        if not (requests := [one for one in self._running.values() if not self._is_ending(one)]):
            assert self._in_flight or not self.has_work, "the oldest alone does not fit"
            return None
        needs = [request.num_due for request in requests]
        num_rows = share_rows(needs, self.config.max_num_batched_tokens)
        sampled = [
            place
            for place, (need, num) in enumerate(zip(needs, num_rows, strict=True))
            if need == num
        ]
        num_drafts = self.verify_lengths.choose_drafts(requests, num_rows, sampled, self.memory)
        scheduled = schedule_rows(requests, num_rows, sampled, num_drafts, self.memory.tables)
        self._in_flight.append(scheduled)
        return scheduled

    def lose_step(self) -> None:
        """Broken-off steps may have stored anything: compute again all that runs."""
        while self._in_flight:
            self._in_flight.pop().lose()
        while self._running:
            self._preempt_youngest()
        self.memory.forget_all()

    def update(self, scheduled: Scheduled, token_ids: Int32, bad_rows: Bool) -> list[Progress]:
        """Take in what the oldest step brought; its drafts are known.

        token_ids int32 [R], bad_rows bool [R]: for each of `scheduled.sampled` the row of its last
        token, then those of its drafts. Returns one Progress for each token that was emitted, in
        order, and one for each bad row, which ends its own request with "error" and touches no
        other; without those that were aborted while the step ran.
        """
        assert self._in_flight, "no step is under way"
        assert scheduled is self._in_flight[0], "not the oldest step"
        self._in_flight.popleft()
        self.totals.num_steps += 1
        assert len(token_ids) == len(bad_rows) == scheduled.num_drawn, "one token a sampled row"
        live = [place for place in range(len(scheduled.requests)) if scheduled.is_live(place)]
        progress: list[Progress] = []
        ended: list[tuple[Request, Reason]] = []
        for request, news in take_step(scheduled, token_ids, bad_rows, self.config.max_model_len):
            progress += news
            reason = news[-1].finish_reason
            if reason is not None:
                ended.append((request, reason))
            else:
                self.memory.trim(request)
        for request, num_stored in stored_tokens(scheduled, live):
            self.memory.commit(request, num_stored)
        for request, reason in ended:
            if reason == "error":
                self.memory.distrust(request)
            self._end(request, reason)
        self.totals.num_output_tokens += sum(one.token_id is not None for one in progress)
        return progress

    def _is_ending(self, request: Request) -> bool:
        return request.tokens_left(self.config.max_model_len) < 1

    def _make_room(self) -> None:
        """Rule 1: a block for each running request that needs one, the oldest first."""
        for request in self.running:
            if request.state is not State.RUNNING:
                return  # preempted for an older one, as all are that follow
            if self._is_ending(request):
                continue
            while not self.memory.grow(request):
                if self._preempt_youngest() is request:
                    return

    def _preempt_youngest(self) -> Request:
        request_id, request = self._running.popitem()
        self.memory.release(request)
        request.preempt()
        self._waiting[request_id] = request
        self._waiting.move_to_end(request_id, last=False)
        self.totals.num_preemptions += 1
        return request

    def _admit(self) -> None:
        """Rule 2: start requests in order of arrival while there are memory and rows for them."""
        config, running = self.config, self._running
        if not self._waiting or len(running) >= config.max_num_seqs:
            return
        demand, catching_up = demand_of(request.num_due for request in running.values())
        while self._waiting and len(running) < config.max_num_seqs:
            if demand >= config.max_num_batched_tokens and catching_up >= config.max_catching_up:
                return
            request = next(iter(self._waiting.values()))
            if not self.memory.admit(request, num_spare=spare_blocks(len(running))):
                return
            del self._waiting[request.request_id]
            running[request.request_id] = request
            if not request.num_preemptions:
                self.totals.num_prompt_tokens += len(request.tokens)
            demand += len(request.tokens)
            catching_up += len(request.tokens) > 1

    def _end(self, request: Request, reason: Reason) -> None:
        self.memory.release(request)
        request.finish(reason)
        if self._running.pop(request.request_id, None) is None:
            del self._waiting[request.request_id]
