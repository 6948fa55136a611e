"""The content address of a block: its key says which tokens it holds and how they were computed.

Knows tokens and hashes: neither where a block lies, nor who wants it, nor what is stored in it.

Whole blocks have keys, others none. A key is a hash of three things, each of a fixed length:

    the key before it      16 bytes; of a sequence's first block it is the `root`
    the hit before it      8 bytes; 0, or H if this is the first block after a bounded hit of H
    the block's tokens     128 x 4 bytes

so it stands for every token from the first on, and for model, format and salt, which the root is
made of. While no block of a chain follows a bounded hit, the chain is exact. One that does is made
of windows that a replay of the last few tokens has rebuilt: an approximation, and another one
after 512 tokens than after 256. The chain turns there. Later keys inherit that, so a turned chain
has no key in common with an exact one from its turn on, nor with one that turned elsewhere.

What the second half of the layers does not see of a prompt (`StepPlan.decoder_starts`) is in no
key: all sources, the last one included, read only what the first half computed.

Digests have 16 bytes. With 8, a large store would meet two equal keys by chance after some 2^32
blocks; with 16 it takes 2^64, and to find a second text for somebody else's key takes 2^128. More
bytes would be kept for every block and buy nothing.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from deepinfer.cache.layout import BLOCK_TOKENS
from deepinfer.step import Int32

KEY_BYTES = 16
# Both are hashed too. Another number is another encoding: keys of an older one are never found.
_ROOT = b"deepinfer root 1"
_BLOCK = b"deepinfer key 1"
# Chains that a look-up follows side by side: it bounds the hashes of one block to twice as many.
MOST_CHAINS = 4


def make_root(model_id: str, cache_format: str, cache_salt: str | None = None) -> bytes:
    """What the first key of a chain follows, 16 bytes.

    model_id: tells weights apart. cache_format: tells apart how blocks are stored and all else that
    decides their values, such as the dtype that is computed in. cache_salt: any text, the empty one
    too, keeps those who use it apart from everybody else.
    """
    text = b"".join(_framed(field) for field in (model_id, cache_format, cache_salt))
    return blake2b(text, digest_size=KEY_BYTES, person=_ROOT).digest()


def block_key(before: bytes, token_ids: Sequence[int] | Int32, hit_tokens: int = 0) -> bytes:
    """The key of 128 tokens that follow the block with key `before`, or a root.

    token_ids: of the block, each below 2^31. hit_tokens: 0, or the length of the bounded hit that
    this block is the first after.
    """
    assert len(token_ids) == BLOCK_TOKENS, f"{len(token_ids)} tokens are no block"
    return _hash(before, _token_bytes(token_ids), hit_tokens)


class Chain:
    """The keys of one sequence's whole blocks, in order. Each block is hashed once.

    keys: 16 bytes each. turns: after how many tokens the chain turned, rising; empty if exact.
    """

    __slots__ = ("_root", "keys", "turns")

    def __init__(self, root: bytes) -> None:
        self._root = root
        self.keys: list[bytes] = []
        self.turns: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Tokens of the blocks that have keys."""
        return len(self.keys) * BLOCK_TOKENS

    def extend(self, token_ids: Sequence[int]) -> list[bytes]:
        """Keys of the blocks that are whole now and were not before; they are in `keys` as well.

        token_ids: all tokens of the sequence so far; of those that have keys none is read. Only
        tokens that stay: a draft that may still be rejected makes a key of what never was.
        """
        first = len(self.keys)
        for start in range(self.num_tokens, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            before = self.keys[-1] if self.keys else self._root
            hit = start if self.turns and self.turns[-1] == start else 0
            self.keys.append(block_key(before, token_ids[start : start + BLOCK_TOKENS], hit))
        return self.keys[first:]

    def turn(self) -> None:
        """What follows the last key is computed downstream of a bounded hit on all the keys.

        Not to be called where the replay begins at the sequence's first token: that is exact.
        """
        assert self.keys, "nothing was hit"
        if self.turns[-1:] != [self.num_tokens]:
            self.turns.append(self.num_tokens)

    def cut(self, num_blocks: int) -> None:
        """Keep the first keys only, and turns between them: less was hit than was found."""
        assert 0 <= num_blocks <= len(self.keys), f"{num_blocks} of {len(self.keys)} keys"
        del self.keys[num_blocks:]
        self.turns = [hit for hit in self.turns if hit < self.num_tokens]


def longest_hit(
    root: bytes, token_ids: Sequence[int], is_kept: Callable[[bytes], bool], *, exact: bool
) -> Chain:
    """The chain with the most blocks of these tokens whose keys are all kept; it may be empty.

    exact: only a chain that never turned will do. Otherwise a chain may have turned anywhere. Of
    equally long ones it is the one that first turned latest, or never; if two first turned at the
    same place, their later turns decide in the same way.

    One place after the other is looked at; at each, every chain found so far may go on or turn. No
    more than MOST_CHAINS go on from a place, the last in that order being dropped: with so many
    kept side by side a hit may be shorter than possible, but never wrong. What is kept may hold
    gaps; nothing behind a gap is found. The time is that of 1 hash a block if exact, else 2 where
    no chain turned, and 2 x MOST_CHAINS at most.
    """
    found = [_Link(root, 0, None)]
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = _token_bytes(token_ids[start : start + BLOCK_TOKENS])
        hits = (0, start) if start and not exact else (0,)
        longer = [
            _Link(key, hit, link)
            for link in found
            for hit in hits
            if is_kept(key := _hash(link.key, block, hit))
        ]
        if not longer:
            break
        found = longer[:MOST_CHAINS]
    return _chain_of(root, found[0])


class _Link(NamedTuple):
    """A key, the hit that it is the first after (0: none), and the link before; None at a root."""

    key: bytes
    hit: int
    before: "_Link | None"


def _chain_of(root: bytes, link: _Link) -> Chain:
    chain = Chain(root)
    while link.before is not None:
        chain.keys.append(link.key)
        if link.hit:
            chain.turns.append(link.hit)
        link = link.before
    chain.keys.reverse()
    chain.turns.reverse()
    return chain


def _hash(before: bytes, block: bytes, hit_tokens: int) -> bytes:
    assert len(before) == KEY_BYTES, f"a key of {len(before)} bytes"
    text = before + hit_tokens.to_bytes(8, "little") + block
    return blake2b(text, digest_size=KEY_BYTES, person=_BLOCK).digest()


def _token_bytes(token_ids: Sequence[int] | Int32) -> bytes:
    return np.asarray(token_ids, dtype="<i4").tobytes()


def _framed(field: str | None) -> bytes:
    """Its length, then itself, so that no two lists of fields read alike. Nothing is no text."""
    if field is None:
        return b"\0"
    # A salt comes from outside: half of a surrogate pair is a text like any other.
    text = field.encode("utf-8", "surrogatepass")
    return b"\1" + len(text).to_bytes(8, "little") + text
