"""A world whose users begin alike: trees of prompts, talks that go on, salts, tiers that forget.

Knows, beside what a `World` checks, what every key stands for: by the texts that the device holds.
"""

import random
from functools import partial

import numpy as np

from deepinfer.cache.host_tier import HostTier
from deepinfer.cache.layout import BLOCK_TOKENS
from deepinfer.cache.prefix import block_key, make_root
from deepinfer.cache.tiers import Tiers
from deepinfer.config.words import PrefixReplay
from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.plan import Scheduled
from deepinfer.scheduler.prefix_cache import PrefixCache
from deepinfer.scheduler.request import Request
from deepinfer.scheduler.update import Progress
from deepinfer.step import StepPlan
from tests.sim.fake_device import VOCAB_SIZE
from tests.sim.loop import Interrupted
from tests.sim.texts import START, advance, next_token
from tests.sim.world import BAD, World

BLOB_BYTES = BLOCK_TOKENS * 8
SALTS = (None, "", "a")
# (window, depth) of layers: exact replays of a few tokens, of some blocks, of more than there are.
LAYERS = ((8, 3), (20, 12), (128, 2), (60, 40))


class ForgetfulTier(HostTier):
    """A host tier that now and then has lost what it said it had, as a disk may."""

    rng = random.Random(0)

    def get(self, key: bytes) -> bytes | None:
        """As of `HostTier`."""
        if self.rng.random() < 0.3:
            self.remove(key)
        return super().get(key)


def with_bad_row(prompt: list[int], rng: random.Random) -> list[int]:
    """Its last row is not finite, if that can be, and the row before ends a new block, if it has
    one."""
    num_blocks = len(prompt) // BLOCK_TOKENS
    if num_blocks:
        prompt = prompt[: num_blocks * BLOCK_TOKENS - 9] + rng.choices(range(VOCAB_SIZE), k=10)
    state = advance(START, prompt[:-1])
    last = (one for one in range(VOCAB_SIZE) if next_token(advance(state, [one])) == BAD)
    return [*prompt[:-1], next(last, prompt[-1])]


class PrefixWorld(World):
    """One random run with a prefix cache; by number with or without salts and a host tier."""

    def __init__(self, seed: int, replay: PrefixReplay, *, ahead: float = 0.0) -> None:
        rng = random.Random(-1 - seed)
        self.tier = ForgetfulTier(rng.choice([2, 10, 60]) * BLOB_BYTES) if seed % 2 else None
        if self.tier is not None:
            self.tier.rng = random.Random(seed)
        tiers = None if self.tier is None else Tiers(BLOB_BYTES, self.tier)
        window, depth = rng.choice(LAYERS)
        self.prefix = PrefixCache("m", "f", window, depth, replay, tiers)
        self.salts = SALTS if seed // 2 % 2 else SALTS[:1]
        self._num_loaded = 0
        self._turned: set[Request] = set()
        self._keys: dict[tuple[str | None, int], bytes] = {}
        super().__init__(seed, tight=seed % 4 != 3, ahead=ahead, prefix=self.prefix)
        limit = self.config.max_model_len
        self.trunks = [[rng.randrange(VOCAB_SIZE) for _ in range(limit)] for _ in range(3)]
        self.talks = [trunk[: limit // 2] for trunk in self.trunks]

    def new_request(self, limits: Limits) -> Request:
        """A branch of a trunk, a talk that goes on, one that is said again, or something new."""
        rng, limit = self.rng, self.config.max_model_len
        kind = rng.random()
        if kind < 0.3:
            return super().new_request(limits)
        if kind < 0.5:
            tokens = rng.choice(self.trunks)[: rng.randrange(limit)]
        else:
            tokens = rng.choice(self.talks)
        new = [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([0, 1, 20]))]
        prompt = [*tokens, *new][: limit - 1] or [5]
        if rng.random() < 0.05:
            prompt = with_bad_row(prompt, rng)[: limit - 1]
        scored = rng.choice([None] * 9 + [1])
        salt, is_exact = rng.choice(self.salts), rng.random() < 0.2
        request = Request(
            self.num_added, prompt, limits, scored, cache_salt=salt, is_exact=is_exact
        )
        self.talks[rng.randrange(len(self.talks))] = request.tokens  # with all that will follow
        if len(self.talks) < 8:
            self.talks.append(prompt)
        return request

    def gap(self) -> None:
        """An interrupt comes most of all where blobs are under way."""
        super().gap()
        num_loaded = 0 if self.tier is None else self.tier.counters().num_hits
        chance = 0.3 if num_loaded > self._num_loaded else 0.05 * bool(self.loop.tiering._saves)
        self._num_loaded = num_loaded
        if self.rng.random() < chance:
            raise Interrupted

    def step(self, *, check: bool) -> None:
        super().step(check=check)
        self._check_free()
        if check:
            self._check_keys()

    def planned(self, scheduled: Scheduled, plan: StepPlan, before: Scheduled | None) -> None:
        super().planned(scheduled, plan, before)
        self._check_owners()
        for place, request in enumerate(scheduled.requests):
            start, num_hit = scheduled.starts[place], request.entry_start
            if num_hit and start == request.window_start:
                block_ids = request.block_ids[: num_hit // BLOCK_TOKENS]
                keys = [self.blocks.key(block_id) for block_id in block_ids]
                tokens = request.tokens[:num_hit]
                # Who comes back goes on as it began.
                is_exact = request.num_preemptions > 0 and request not in self._turned
                is_exact = is_exact or self.prefix.is_exact(request)
                if request.chain is not None and request.chain.turns:
                    self._turned.add(request)
                check = partial(self._check_hit, block_ids, keys, tokens, request.cache_salt)
                self.device.call(partial(check, is_exact=is_exact))
                self.counts["hits"] += 1
                self.counts["hits of one that was preempted"] += request.num_preemptions > 0

    def news(self, progress: list[Progress]) -> None:
        for request, _, reason, *_ in progress:
            if reason == "error":
                assert request.chain is not None
                saved = {key for keys, _ in self.loop.tiering._saves for key in keys}
                for key in request.chain.keys[request.entry_start // BLOCK_TOKENS :]:
                    assert key not in saved, "what is not finite is saved"
                    assert self.blocks.find(key) is None, "what is not finite may be found"
                    assert self.tier is None or not self.tier.has(key)
        super().news(progress)

    def _check_free(self) -> None:
        """Each block is owned, kept or empty, and only one of these; keys lead to one block."""
        blocks = self.blocks
        owned = [i for i in range(blocks.num_blocks) if blocks.num_owners(i)]
        everywhere = sorted([*owned, *blocks._kept, *blocks._empty])
        assert everywhere == list(range(blocks.num_blocks)), "a block is lost, or in two places"
        keys = {i: key for i in range(blocks.num_blocks) if (key := blocks.key(i)) is not None}
        assert blocks._block_of == {key: i for i, key in keys.items()}
        assert set(blocks._kept) == set(keys) - set(owned), "kept without a key, or the reverse"

    def _check_hit(
        self,
        block_ids: list[int],
        keys: list[bytes | None],
        tokens: list[int],
        salt: str | None,
        *,
        is_exact: bool,
    ) -> None:
        """Just before its first rows: the blocks hold its text, under keys of its own salt."""
        texts = self.device.texts
        held = self.device.blocks[block_ids].reshape(-1).tolist()
        assert texts.last(held[-1], len(tokens) + 1) == held, "pieces of several texts"
        assert [texts.tokens[text] for text in held] == tokens, "a hit on another text"
        assert keys == [self.key_of(salt, text) for text in held[BLOCK_TOKENS - 1 :: BLOCK_TOKENS]]
        turn = texts.turns[held[-1]]
        assert not (turn and is_exact), "an approximation for who wants none"
        self.counts["hits behind a turn"] += turn > 0

    def _check_keys(self) -> None:
        """Every block that can be found holds what its key stands for, in the tier, too."""
        owners = {i: request for request in self.scheduler.running for i in request.block_ids}
        held = {}
        for i in range(self.blocks.num_blocks):
            if (key := self.blocks.key(i)) is not None:
                salts = (owners[i].cache_salt,) if i in owners else self.salts
                held[key] = self.device.blocks[i], salts
        for key, blob in () if self.tier is None else self.tier._blobs.items():
            self._check_key(key, np.frombuffer(blob, np.int64), self.salts)
        for key, (block, salts) in held.items():
            self._check_key(key, block, salts)

    def _check_key(self, key: bytes, block: np.ndarray, salts: tuple[str | None, ...]) -> None:
        texts = self.device.texts
        assert texts.last(int(block[-1]), BLOCK_TOKENS) == block.tolist(), "of several texts"
        assert key in {self.key_of(salt, int(block[-1])) for salt in salts}, "another text's key"

    def key_of(self, salt: str | None, text: int) -> bytes:
        """The key of the block that ends with this text; an empty text's is the root."""
        if (salt, text) not in self._keys:
            texts = self.device.texts
            tokens = texts.last(text, BLOCK_TOKENS)
            if not tokens:
                return make_root("m", "f", salt)
            before = texts.parents[tokens[0]]
            turn = texts.turns[tokens[0]]
            # It turned with this block, or with one before.
            turn = turn if turn != texts.turns[before] else 0
            ids = [texts.tokens[one] for one in tokens]
            self._keys[salt, text] = block_key(self.key_of(salt, before), ids, turn)
        return self._keys[salt, text]
