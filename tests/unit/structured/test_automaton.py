"""Regular languages, against sets of all words up to a length."""

from itertools import product
from random import Random

import pytest

from deepinfer.structured import automaton, charset
from deepinfer.structured.automaton import ANY, NOTHING, Dfa, TooManyStates
from tests.effort import effort

LETTERS = "ab\U0001f600"
WORDS = ["".join(word) for length in range(5) for word in product(LETTERS, repeat=length)]


def random_dfa(random: Random) -> Dfa:
    """Of a random automaton that is neither minimal nor complete."""
    num_states = random.randint(1, 6)
    edges = [
        [
            (charset.of(one), random.randrange(num_states))
            for one in LETTERS
            if random.random() < 0.8
        ]
        for _ in range(num_states)
    ]
    accepting = {state for state in range(num_states) if random.random() < 0.4}
    return automaton.build(0, lambda state: edges[state], lambda state: state in accepting)


def words_of(dfa: Dfa) -> set[str]:
    return {word for word in WORDS if automaton.accepts(dfa, word)}


def check_form(dfa: Dfa) -> None:
    """The promises that Dfa makes about its shape."""
    seen = [0]
    for state in seen:
        chars = [one for one, _ in dfa.edges[state]]
        assert sum(map(charset.size, chars)) == charset.size(charset.union(*chars))
        assert chars == sorted(chars)
        targets = [target for _, target in dfa.edges[state]]
        assert len(set(targets)) == len(targets)
        seen.extend(target for target in targets if target not in seen)
    assert seen == list(range(len(dfa.edges)))


def test_operations():
    """A wrong product: two constraints on one string, of which one is lost (D07)."""
    random = Random(2)
    for _ in range(200):
        a, b = random_dfa(random), random_dfa(random)
        in_a, in_b = words_of(a), words_of(b)
        results = {
            automaton.intersect(a, b): in_a & in_b,
            automaton.union(a, b): in_a | in_b,
            automaton.subtract(a, b): in_a - in_b,
            automaton.complement(a): set(WORDS) - in_a,
        }
        for dfa, expected in results.items():
            check_form(dfa)
            assert words_of(dfa) == expected


def test_equal_languages_are_equal_objects():
    """Two names for one language: grammars that grow with every way to say the same."""
    random = Random(3)
    for _ in range(200):
        a, b = random_dfa(random), random_dfa(random)
        joined = automaton.union(a, b)
        apart = automaton.complement(
            automaton.intersect(automaton.complement(a), automaton.complement(b))
        )
        assert joined == apart
        assert hash(joined) == hash(apart)
        assert automaton.complement(automaton.complement(a)) == a
        assert automaton.subtract(a, b) == automaton.intersect(a, automaton.complement(b))
        assert automaton.subtract(a, a) == NOTHING
        assert automaton.union(a, automaton.complement(a)) == ANY


def test_minimal():
    """States that mean the same: each costs a rule, and a mask when it is first met."""
    for dfa in (random_dfa(Random(seed)) for seed in range(100)):
        futures = []
        for state in range(len(dfa.edges)):
            from_here = automaton.build(
                state, lambda at, dfa=dfa: dfa.edges[at], lambda at, dfa=dfa: at in dfa.accepting
            )
            futures.append(from_here)
        assert len(set(futures)) == len(futures)
        assert dfa == NOTHING or NOTHING not in futures


def test_literals():
    """An enumeration with a word too many, or whose words that begin alike are mixed up."""
    random = Random(4)
    for _ in range(50):
        texts = set(random.sample(WORDS, random.randint(0, 12)))
        dfa = automaton.literals(texts)
        check_form(dfa)
        assert words_of(dfa) == texts
        assert sorted(automaton.words(dfa, 12)) == sorted(texts)
    assert automaton.literals(["\ud800"]) == NOTHING
    assert automaton.is_empty(automaton.literals([]))


@pytest.mark.parametrize("low", [0, 1, 2, 3])
@pytest.mark.parametrize("high", [0, 1, 2, 3, 4, None])
def test_length_between(low, high):
    """A length limit off by one."""
    dfa = automaton.length_between(low, high)
    check_form(dfa)
    expected = {word for word in WORDS if low <= len(word) and (high is None or len(word) <= high)}
    assert words_of(dfa) == expected
    if dfa != NOTHING:
        assert automaton.length_range(dfa) == (low, high)
    assert automaton.build(0, lambda at: dfa.edges[at], lambda at: at in dfa.accepting) == dfa


def test_words_and_lengths():
    """A finite language taken for an infinite one, or listed with words missing."""
    random = Random(5)
    for _ in range(200):
        dfa = automaton.intersect(random_dfa(random), automaton.length_between(0, 4))
        found = words_of(dfa)
        assert set(automaton.words(dfa, 10_000) or ()) == found
        assert automaton.words(dfa, len(found) - 1) is None
        if found:
            lengths = [len(word) for word in found]
            assert automaton.length_range(dfa) == (min(lengths), max(lengths))
    assert automaton.words(ANY, 10**9) is None
    assert automaton.length_range(ANY) == (0, None)
    assert automaton.length_range(NOTHING) == (0, 0)
    assert automaton.words(NOTHING, 0) == []
    # 2**200 words are counted, not listed.
    many = automaton.build(0, lambda n: [(charset.of("ab"), n + 1)] * (n < 200), lambda n: n == 200)
    assert automaton.words(many, 10**6) is None


def test_any_and_nothing():
    """A constraint that allows all is not seen as such, and costs the fast way."""
    assert automaton.is_any(ANY)
    assert not automaton.is_any(automaton.length_between(1, None))
    assert automaton.complement(ANY) == NOTHING
    assert automaton.complement(NOTHING) == ANY
    assert automaton.union(ANY, NOTHING) == ANY
    assert automaton.intersect(ANY, automaton.literals(["a"])) == automaton.literals(["a"])
    assert not automaton.accepts(NOTHING, "")


def test_limits():
    """A hostile combination that keeps everybody waiting (E10)."""
    a = automaton.length_between(0, 1500)
    b = automaton.build(
        0,
        lambda n: [(charset.of("a"), (n + 1) % 1499), (charset.of("b"), n)],
        lambda n: n == 0,
    )
    with effort(200):
        for refused in (
            lambda: automaton.intersect(a, b),
            lambda: automaton.length_between(0, 10**9),
            lambda: automaton.literals([f"{n:060}" for n in range(10**5)]),
            lambda: automaton.literals([str(n) * 50 for n in range(100)]),
            lambda: automaton.build(0, lambda n: [(charset.ALL, n + 1)], bool),
            lambda: automaton.length_between(5, 10, limit=10),
        ):
            with pytest.raises(TooManyStates):
                refused()
