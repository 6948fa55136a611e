"""`PrefixCache`: what requests find of their tokens in blocks, and what they leave there.

Blocks keep entries and index keys. Windows, pending entries and n-grams are a slot's own: after a
hit of H tokens the last of them run again to rebuild these, from position R on.

bounded: R = H - window. What the rows from R on saw before R is missing, so everything behind is an
    approximation, and its blocks say so in their keys. The cost is the same for every H.
exact: R = H - layers * (window - 1). A row of the last layer sees a window of rows of the layer
    below, each of which sees a window, and so on down: this far back. What comes out is what it
    would be without a hit, to the bit where rows do not depend on their batch.

Rows before H write no entries. Knows requests, keys and blocks; moves no memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from deepinfer.cache.blocks import BlockPool
from deepinfer.cache.layout import BLOCK_TOKENS
from deepinfer.cache.prefix import Chain, longest_hit, make_root
from deepinfer.cache.tiers import Tiers
from deepinfer.config.words import PrefixReplay
from deepinfer.scheduler.request import Request


@dataclass
class PrefixStats:
    """Counted from the start. num_asked, num_hit: tokens of requests that were looked up, and those
    of them that were found; num_replayed: of these, tokens that ran again."""

    num_asked: int = 0
    num_hit: int = 0
    num_replayed: int = 0


@dataclass
class PrefixCache:
    """The rules of one engine.

    model_id, cache_format: as of `make_root`. window: of the model's layers. depth: their number.
    tiers: where blocks are looked for that the pool has no more.
    """

    model_id: str
    cache_format: str
    window: int
    depth: int
    replay: PrefixReplay = "bounded"
    tiers: Tiers | None = None
    stats: PrefixStats = field(default_factory=PrefixStats)

    def find(self, request: Request, blocks: BlockPool) -> Chain:
        """The keys of the request's first blocks whose content is there; maybe none.

        A request whose prompt's log-probabilities are wanted finds nothing: all rows must run. One
        that was preempted goes on from its own blocks. If they are gone as far back as to where it
        once started from a bounded hit, the rest is computed exactly.
        """
        root = self._root(request)
        if request.score_top is not None:
            return Chain(root)

        tiers = self.tiers

        def is_kept(key: bytes) -> bool:
            return blocks.find(key) is not None or (tiers is not None and tiers.has(key))

        own = request.chain
        if own is not None and own.turns:
            num_kept = sum(1 for _ in takewhile(is_kept, own.keys))
            if num_kept * BLOCK_TOKENS >= own.turns[-1]:
                own.cut(num_kept)
                return own
        exact = self.is_exact(request) or own is not None
        return longest_hit(root, request.tokens, is_kept, exact=exact)

    def read_ahead(self, request: Request) -> None:
        """A request has come: what it will want of a disk may be read while it waits. Chains that
        turned are not looked for."""
        if self.tiers is None or self.tiers.disk is None or request.score_top is not None:
            return
        tiers = self.tiers
        chain = longest_hit(self._root(request), request.tokens, tiers.has, exact=True)
        tiers.read_ahead(chain.keys)

    def _root(self, request: Request) -> bytes:
        return make_root(self.model_id, self.cache_format, request.cache_salt)

    def is_exact(self, request: Request) -> bool:
        """Nothing that the request gives may depend on what is cached."""
        return request.is_exact or self.replay == "exact"

    def start(self, request: Request, chain: Chain) -> None:
        """A request that just started owns the blocks of `chain`: say where its rows begin."""
        num_hit = chain.num_tokens
        comes_back = request.chain is not None
        exact_start = max(0, num_hit - self.depth * (self.window - 1))
        if self.is_exact(request) or comes_back:
            first = exact_start
            if chain.turns:
                # The windows behind its turn were rebuilt from here, and never saw more.
                first = max(first, chain.turns[-1] - self.window)
        else:
            first = max(0, num_hit - self.window)
            if first > exact_start:
                chain.turn()
        request.chain = chain
        request.start_from(num_hit, first)
        self.stats.num_asked += len(request.tokens)
        self.stats.num_hit += num_hit
        self.stats.num_replayed += num_hit - first

    def commit(
        self, request: Request, num_stored: int, publish: Callable[[int, bytes], None]
    ) -> None:
        """So many tokens of a running request are stored for good: blocks that are whole now get
        their keys, by publish(number of the block, key)."""
        chain = request.chain
        assert chain is not None, "a running request has a chain"
        if num_stored < chain.num_tokens + BLOCK_TOKENS:
            return
        first = len(chain.keys)
        for number, key in enumerate(chain.extend(request.tokens[:num_stored]), first):
            publish(number, key)

    def distrust(self, request: Request, blocks: BlockPool) -> None:
        """A row of the request was not finite: what it left may not be either."""
        chain = request.chain
        own = [] if chain is None else chain.keys[request.entry_start // BLOCK_TOKENS :]
        blocks.forget(own)
        if self.tiers is not None:
            for key in own:
                self.tiers.remove(key)
