"""Keys: equal where tokens, origin and way of computing are equal, and nowhere else."""

import random
import struct
from hashlib import blake2b
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepinfer.cache import prefix
from deepinfer.cache.layout import BLOCK_TOKENS
from deepinfer.cache.prefix import MOST_CHAINS, Chain, block_key, longest_hit, make_root
from tests.effort import effort

ROOT = make_root("model", "packed")
steady = settings(max_examples=200, deadline=None, derandomize=True)


def tokens(num_blocks: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(129280) for _ in range(num_blocks * BLOCK_TOKENS)]


def chain_of(token_ids: list[int], turns: tuple[int, ...] = (), root: bytes = ROOT) -> Chain:
    """The keys of all whole blocks of a sequence that turned after so many blocks each."""
    chain = Chain(root)
    for num_blocks in turns:
        chain.extend(token_ids[: num_blocks * BLOCK_TOKENS])
        chain.turn()
    chain.extend(token_ids)
    return chain


# -- What a key is made of -------------------------------------------------------------------------

ORIGINS = [
    ("model", "packed", None),
    ("model", "packed", ""),
    ("model", "packed", "a"),
    ("model", "packed", "b"),
    ("model", "packed", "\ud800"),  # half of a pair, which JSON can spell
    ("model", "packed", "\0"),
    ("model", "float32", None),
    ("model", "", "packed"),
    ("modelp", "acked", None),
    ("mode", "lpacked", None),
    ("other", "packed", None),
    ("", "modelpacked", None),
]


def test_origins_differ_from_the_first_block_on() -> None:
    """Tenants, models or formats share a block; or what ends one name begins the next."""
    roots = [make_root(*origin) for origin in ORIGINS]
    chains = [chain_of(tokens(2), root=root).keys for root in roots]
    for keys in (roots, *zip(*chains, strict=True)):
        assert len(set(keys)) == len(ORIGINS)
    kept = set(chains[0])
    found = [
        len(longest_hit(root, tokens(2), kept.__contains__, exact=False).keys) for root in roots
    ]
    assert found == [2] + [0] * (len(ORIGINS) - 1)


names = st.text(st.characters(exclude_categories=()), max_size=6)
origins = st.tuples(names, names, st.none() | names)


@steady
@given(origins, origins)
@example(("a", "b", None), ("a", "b", ""))
@example(("ab", "", ""), ("a", "b", ""))
def test_no_two_origins_are_one(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    """Two lists of names have one encoding."""
    assert (make_root(*one) == make_root(*other)) == (one == other)


def test_the_encoding_stays() -> None:
    """The encoding changes and nobody notices: a store that outlives the process holds blocks under
    keys that mean something else now."""
    text = b""
    for name in (b"model", b"packed", b"salt"):
        text += b"\1" + struct.pack("<Q", len(name)) + name
    key = blake2b(text, digest_size=16, person=b"deepinfer root 1").digest()
    assert make_root("model", "packed", "salt") == key
    chain = chain_of(tokens(3), turns=(1,), root=key)
    for number, (hit, found) in enumerate(zip((0, 128, 0), chain.keys, strict=True)):
        block = tokens(3)[128 * number : 128 * (number + 1)]
        text = key + struct.pack("<Q128i", hit, *block)
        key = blake2b(text, digest_size=16, person=b"deepinfer key 1").digest()
        assert found == key


@steady
@given(st.integers(0, 4 * BLOCK_TOKENS - 1), st.integers(1, 2**31 - 129280))
def test_one_token_changes_its_key_and_all_later(place: int, more: int) -> None:
    """Two sequences share a block whose tokens, or those before it, differ."""
    changed = tokens(4)
    changed[place] += more
    same = [a == b for a, b in zip(chain_of(changed).keys, chain_of(tokens(4)).keys, strict=True)]
    first = place // BLOCK_TOKENS
    assert same == [True] * first + [False] * (4 - first)


def test_mistakes_are_noticed() -> None:
    """A part of a block gets a key, an id is cut to 32 bits and is another one's, a text is a key
    that is not."""
    for num_tokens in (0, 127, 129):
        with pytest.raises(AssertionError, match=f"{num_tokens} tokens are no block"):
            block_key(ROOT, [0] * num_tokens)
    with pytest.raises(OverflowError):
        block_key(ROOT, [2**32] + [0] * 127)
    with pytest.raises(AssertionError, match="a key of 4 bytes"):
        block_key(b"root", [0] * 128)
    with pytest.raises(AssertionError, match="nothing was hit"):
        Chain(ROOT).turn()
    with pytest.raises(AssertionError, match="1 of 0 keys"):
        Chain(ROOT).cut(1)


# -- A sequence grows ------------------------------------------------------------------------------


def test_token_by_token_is_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generated block has another key than the same text in a prompt, so a second turn finds
    nothing; or each new token hashes all that came before."""
    token_ids, hashed = tokens(5)[:-1], []
    whole = chain_of(token_ids).keys
    real = prefix._hash
    monkeypatch.setattr(prefix, "_hash", lambda *given: hashed.append(given) or real(*given))
    chain, new = Chain(ROOT), []
    for num_tokens in range(len(token_ids) + 1):
        added = chain.extend(token_ids[:num_tokens])
        assert len(added) == (num_tokens > 0 and num_tokens % BLOCK_TOKENS == 0)
        assert chain.num_tokens == num_tokens // BLOCK_TOKENS * BLOCK_TOKENS
        new += added
    assert new == chain.keys == whole
    assert len(hashed) == len(whole) == 4


def test_hashing_is_fast() -> None:
    """The keys of a long prompt take longer than its first chunk."""
    token_ids = tokens(100_000 // BLOCK_TOKENS)
    with effort(10):
        for _ in range(3):
            chain_of(token_ids)


# -- Chains that turn ------------------------------------------------------------------------------


def test_a_turned_chain_is_another_from_there_on() -> None:
    """What was computed after a bounded hit answers as if it were exact, or as if the hit had been
    a longer one."""
    token_ids = tokens(6)
    all_turns = [(), (1,), (2,), (5,), (1, 2), (1, 3), (2, 3), (1, 2, 3)]
    chains = [chain_of(token_ids, turns) for turns in all_turns]
    for turns, chain in zip(all_turns, chains, strict=True):
        assert chain.turns == [128 * turn for turn in turns]
    for number in range(6):
        before = {tuple(turn for turn in turns if turn <= number) for turns in all_turns}
        assert len({chain.keys[number] for chain in chains}) == len(before)


def test_turning_twice_at_a_place_is_once() -> None:
    """A hit that is taken, given up and taken again makes keys that nobody else finds."""
    chain = chain_of(tokens(2))
    chain.turn()
    chain.turn()
    chain.extend(tokens(3))
    assert (chain.keys, chain.turns) == (chain_of(tokens(3), (2,)).keys, [256])


@pytest.mark.parametrize("num_blocks", range(6))
def test_cut(num_blocks: int) -> None:
    """A hit that is made shorter leaves a turn behind that did not happen, or loses one that did:
    then it is computed in one way and found as if in another."""
    token_ids = tokens(5)
    chain = chain_of(token_ids, (2, 4))
    chain.cut(num_blocks)
    turns = tuple(turn for turn in (2, 4) if turn < num_blocks)
    assert chain.keys == chain_of(token_ids[: num_blocks * BLOCK_TOKENS], turns).keys
    chain.extend(token_ids)
    assert chain.keys == chain_of(token_ids, turns).keys


# -- Looking up ------------------------------------------------------------------------------------


def test_a_turned_chain_never_answers_an_exact_look_up() -> None:
    """An exact request reads what a replay of one window has approximated."""
    token_ids = tokens(8)
    kept = {key for turns in [(2,), (3,), (2, 4)] for key in chain_of(token_ids, turns).keys}
    exact = longest_hit(ROOT, token_ids, kept.__contains__, exact=True)
    assert (exact.keys, exact.turns) == (chain_of(token_ids).keys[:3], [])
    bounded = longest_hit(ROOT, token_ids, kept.__contains__, exact=False)
    assert bounded.keys == chain_of(token_ids, (3,)).keys


def test_a_conversation_is_found_turn_after_turn() -> None:
    """B07: from the third turn on a conversation finds only what its first one left."""
    kept: set[bytes] = set()
    token_ids = tokens(20)
    for turn, num_blocks in enumerate((3, 6, 11, 20)):
        now = token_ids[: num_blocks * BLOCK_TOKENS]
        chain = longest_hit(ROOT, now, kept.__contains__, exact=False)
        assert len(chain.keys) == (0, 3, 6, 11)[turn]
        if chain.keys:
            chain.turn()
        chain.extend(now)
        assert chain.turns == [3 * 128, 6 * 128, 11 * 128][:turn]
        kept.update(chain.keys)


def test_who_came_while_the_prefix_was_half_computed_finds_its_own() -> None:
    """B07: a request hits the half of a system prompt that is there; then the other half becomes
    known, and its next turn, which looks behind the whole, finds nothing of its own."""
    token_ids = tokens(8)
    own, system = chain_of(token_ids, (2,)), chain_of(token_ids[: 5 * BLOCK_TOKENS])
    kept = {*own.keys, *system.keys}
    found = longest_hit(ROOT, token_ids, kept.__contains__, exact=False)
    assert (found.keys, found.turns) == (own.keys, own.turns)
    kept.remove(own.keys[5])  # now both end at the same place
    found = longest_hit(ROOT, token_ids, kept.__contains__, exact=False)
    assert (found.keys, found.turns) == (system.keys, [])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_look_up_is_what_trying_all_finds(data: st.DataObject) -> None:
    """A hit is shorter than it could be, behind a gap, of other tokens or of a chain that turned
    where it says that it did not."""
    length, wanted = 5, data.draw(st.integers(0, 5 * BLOCK_TOKENS + 127))
    token_ids = tokens(6)[:wanted]
    places = st.sets(st.integers(1, length - 1)).map(lambda turns: tuple(sorted(turns)))
    stored = data.draw(st.lists(places, max_size=MOST_CHAINS))
    keys = sorted({key for turns in stored for key in chain_of(tokens(length), turns).keys})
    gone = data.draw(st.sets(st.sampled_from(keys), max_size=4)) if keys else set()
    kept = set(keys) - gone
    exact = data.draw(st.booleans())

    # All ways to turn, those first that stay exact for longest.
    best = Chain(ROOT)
    for flags in product((False, True), repeat=length - 1):
        turns = tuple(place for place, flag in enumerate(flags, 1) if flag)
        if (exact and turns) or any(turn * BLOCK_TOKENS >= wanted for turn in turns):
            continue
        chain = chain_of(token_ids, turns)
        num_found = next((i for i, k in enumerate(chain.keys) if k not in kept), len(chain.keys))
        chain.cut(num_found)
        if len(chain.keys) > len(best.keys):
            best = chain
    found = longest_hit(ROOT, token_ids, kept.__contains__, exact=exact)
    assert (found.keys, found.turns) == (best.keys, best.turns)
    assert (
        found.extend(tokens(6))
        == chain_of(tokens(6), tuple(t // 128 for t in best.turns)).keys[len(best.keys) :]
    )


def test_a_look_up_takes_bounded_time() -> None:
    """Somebody who lets a prompt be computed in many ways makes each look-up try all of them."""
    token_ids, asked = tokens(31)[:-1], []

    def ask(*, answer: bool, exact: bool) -> tuple[list[bytes], list[int]]:
        asked.clear()

        def is_kept(key: bytes) -> bool:
            asked.append(key)
            assert len(asked) <= 30 * 2 * MOST_CHAINS
            return answer

        chain = longest_hit(ROOT, token_ids, is_kept, exact=exact)
        return chain.keys, chain.turns

    every_block = (chain_of(token_ids).keys, [])
    assert ask(answer=True, exact=True) == every_block
    assert len(asked) == 30
    assert ask(answer=True, exact=False) == every_block
    assert len(asked) > 30
    assert ask(answer=False, exact=False) == ([], [])
    assert len(asked) == 1


def test_who_turned_first_is_dropped_where_many_stand_side_by_side() -> None:
    """So many ways to compute a prompt are kept that a look-up takes one at random, or none."""
    token_ids, last = tokens(10), MOST_CHAINS + 1
    chains = [chain_of(token_ids[: 9 * BLOCK_TOKENS], (turn,)) for turn in range(1, last)]
    kept = {key for chain in chains for key in chain.keys}
    longest = chain_of(token_ids, (1,))
    kept.update(longest.keys)  # the last of as many as are followed
    found = longest_hit(ROOT, token_ids, kept.__contains__, exact=False)
    assert (found.keys, found.turns) == (longest.keys, [128])
    kept.update(chain_of(token_ids[: 9 * BLOCK_TOKENS], (last,)).keys)  # one more
    found = longest_hit(ROOT, token_ids, kept.__contains__, exact=False)
    assert (len(found.keys), found.turns) == (9, [last * 128])
