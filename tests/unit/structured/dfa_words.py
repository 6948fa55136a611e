"""Random words of a regular language, for tests that ask others what they think of them."""

from random import Random

from deepinfer.structured.automaton import Dfa


def random_word(dfa: Dfa, random: Random, *, stop: float = 0.3) -> str:
    """A word by a random walk. stop: probability to end where a word may end."""
    word, state = "", 0
    while not (state in dfa.accepting and (random.random() < stop or not dfa.edges[state])):
        chars, state = random.choice(dfa.edges[state])
        low, high = random.choice(chars)
        word += chr(random.choice((low, high, random.randint(low, high))))
    return word
