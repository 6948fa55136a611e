"""Tasks about lists of words: say them again, turn them round, pick one, count one.

Training's lists have other words than evaluation's. A model copies a token badly that it never saw
copied, so a third of the words is put together from pieces: the letters of a vocabulary's
tokens. Knows what is asked and the right answer. Does not know tokens: whoever makes the tasks
hands in the pieces; without any, there are more made-up words.
"""

from functools import partial
from random import Random
from typing import Final

from deepinfer.tools.eval_examples import (
    Answer,
    Example,
    Split,
    Task,
    draw_until,
    made_up,
    of_split,
    user,
    word_key,
    word_keys,
)
from deepinfer.tools.eval_stories import HEROES, PLACES
from deepinfer.tools.eval_tasks import COPIES, COPY
from deepinfer.tools.eval_words import ADJECTIVES, CITIES, NAMES, NOUNS, THINGS, VERBS

Pieces = tuple[str, ...]

_KNOWN: Final = tuple(
    dict.fromkeys((*NOUNS, *ADJECTIVES, *NAMES, *CITIES, *HEROES, *PLACES, *VERBS, *THINGS))
)
# Of 100 words so many are out of the lists, and so many more made up; the rest is of pieces.
_KNOWN_PART: Final = 0.45
_MADE_UP_PART: Final = 0.20
_MOST_PIECES: Final = 3
# One copy in so many has numbers and capitals among its words, half of them.
_ODD_PART: Final = 8
# Half of the copies have so few different words that most come again. What follows a word is then
# not told by that word alone, and evaluation's few held-out words come again as often.
_REPEATED_PART: Final = 0.5
_FEWEST_WORDS: Final = 4


def draw_word(rng: Random, split: Split, pieces: Pieces) -> str:
    """A word of the split: known, made up, or of pieces."""
    kind = rng.random()
    if kind < _KNOWN_PART:
        return rng.choice(of_split(_KNOWN, split))
    if kind < _KNOWN_PART + _MADE_UP_PART or not pieces:
        return made_up(rng, split)

    def draw() -> str:
        return "".join(rng.choice(pieces) for _ in range(rng.randint(1, _MOST_PIECES)))

    return draw_until(draw, split, word_key)[0]


def draw_odd_word(rng: Random, split: Split, pieces: Pieces) -> str:
    """A number of up to four digits, or a word that begins with a capital or is all capitals."""

    def draw() -> str:
        if rng.random() < 0.5:
            return str(rng.randrange(10 ** rng.randint(1, 4)))
        word = draw_word(rng, split, pieces)
        return word.capitalize() if rng.random() < 0.7 else word.upper()

    return draw_until(draw, split, word_key)[0]


def draw_different(rng: Random, split: Split, pieces: Pieces, count: int) -> list[str]:
    """`count` words, no two the same."""
    words = dict[str, None]()
    while len(words) < count:
        words[draw_word(rng, split, pieces)] = None
    return list(words)


def make_copy(rng: Random, split: Split, size: int, pieces: Pieces = ()) -> Example:
    """`size` words to say again, asked for as evaluation does."""
    odd = rng.randrange(_ODD_PART) == 0

    def draw() -> str:
        is_odd = odd and rng.random() < 0.5
        return (draw_odd_word if is_odd else draw_word)(rng, split, pieces)

    if size > _FEWEST_WORDS and rng.random() < _REPEATED_PART:
        few = [draw() for _ in range(rng.randint(_FEWEST_WORDS, size))]
        words = [rng.choice(few) for _ in range(size)]
    else:
        words = [draw() for _ in range(size)]
    question = rng.choice(COPIES).format(words=" ".join(words))
    return Example("copy", (user(question),), Answer(" ".join(words)), keys=word_keys(words))


def make_how_many(rng: Random, split: Split, size: int, pieces: Pieces = ()) -> Example:
    """How often one of two words stands in a list of `size`."""
    words = draw_different(rng, split, pieces, 2)
    listed = [rng.choice(words) for _ in range(size)]
    key = f"how many {' '.join(words)}"
    question = user(f"How many times is {words[0]} in: {' '.join(listed)}?")
    answer = Answer(str(listed.count(words[0])))
    return Example("how_many", (question,), answer, keys=(key, *word_keys(words)))


def make_reverse(rng: Random, split: Split, size: int, pieces: Pieces = ()) -> Example:
    """Words in the opposite order; size: how many."""
    words = [draw_word(rng, split, pieces) for _ in range(size)]
    question = user(f"Reverse the order of these words:\n{' '.join(words)}")
    answer = Answer(" ".join(reversed(words)))
    return Example("reverse", (question,), answer, keys=word_keys(words))


def make_pick(rng: Random, split: Split, size: int, pieces: Pieces = ()) -> Example:
    """Which of `size` words comes first, last, or after another."""
    words = draw_different(rng, split, pieces, size)
    place = rng.randrange(size - 1)
    questions = (
        ("Which word is first", words[0]),
        ("Which word is last", words[-1]),
        (f"Which word comes after {words[place]}", words[place + 1]),
    )
    question, answer = rng.choice(questions)
    return Example(
        "pick", (user(f"{question} in: {' '.join(words)}?"),), Answer(answer), keys=word_keys(words)
    )


_MAKERS: Final = (
    ("copy", make_copy, COPY.sizes),
    ("how_many", make_how_many, (2, 12)),
    ("reverse", make_reverse, (2, 20)),
    ("pick", make_pick, (2, 8)),
)


def word_tasks(pieces: Pieces = ()) -> tuple[Task, ...]:
    """All of these tasks, with words of these pieces among the others."""
    return tuple(Task(name, partial(make, pieces=pieces), sizes) for name, make, sizes in _MAKERS)
