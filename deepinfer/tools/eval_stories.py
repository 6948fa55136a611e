"""Short stories and single sentences out of a small grammar of our own.

A story has a beginning, a trouble, a turn and an end, and keeps its hero, place and thing. Knows
templates. Does not know the words' split: whoever draws them does.
"""

from random import Random
from typing import Final

from deepinfer.tools.eval_examples import (
    Answer,
    Example,
    Split,
    Task,
    draw_until,
    user,
)
from deepinfer.tools.eval_words import ADJECTIVES, NAMES, NOUNS

HEROES: Final = tuple(
    """
    bear bird boy camel cat cook cow crow dog donkey duck farmer fisherman fox frog girl goat goose
    hen horse king lamb lion mole monkey mouse owl parrot pig pilot pony prince queen rabbit raven
    robot sailor sheep soldier swan tailor tiger turtle whale wolf zebra
    """.split()
)
PLACES: Final = tuple(
    """
    barn beach bridge castle cave church city desert farm field forest garden harbor hill hotel
    house island kitchen lake library lighthouse market meadow mill mountain museum palace park
    river school station street tower town valley village
    """.split()
)
_BEGINNINGS = (
    "Once there was a {a} {hero} who lived near a {place}.",
    "Long ago a {a} {hero} lived alone beside the {place}.",
    "In a {place} far away there lived a {a} {hero}.",
    "One morning a {a} {hero} walked to the {place}.",
)
_NAMINGS = (
    "Everyone called the {hero} {name}.",
    "The name of the {hero} was {name}.",
    "{name}, as the {hero} was called, liked quiet days.",
)
_TROUBLES = (
    "One day {name} lost a {b} {thing} and could not find it.",
    "On a {b} day somebody took the {thing} away.",
    "{name} wanted a {thing} more than anything, but had nothing to give for it.",
    "That night the wind carried the {thing} into the {place}.",
)
_TURNS = (
    '"Have you seen my {thing}?" asked {name}. "No," said the {other}, "but I will help you."',
    "The {other} came by and said that it had seen the {thing} behind the {place}.",
    "{name} looked everywhere, and at last a {other} showed the way.",
    'The {other} laughed and said: "Look under the old tree."',
)
_ENDS = (
    "So {name} found the {thing}, and the two were friends from that day on.",
    "There it was, and {name} gave half of the {thing} to the {other}.",
    "{name} took the {thing} home and slept well that night.",
    "Since then the {hero} and the {other} meet at the {place} every evening.",
)
_SENTENCES = (
    "The {a} {hero} walked slowly to the {place}.",
    "A {b} {thing} was lying near the {place}.",
    "Nobody in the {place} knew where the {thing} came from.",
    "{name} put the {thing} on the table and went out.",
    "In the evening the {hero} and the {other} sat by the fire.",
    "It rained all day, and the {place} was empty.",
    "The {other} asked {name} for a {b} {thing}.",
    "Some people said that the {place} was too {a} to live in.",
    "{name} opened the window and heard a {hero}.",
    "There was a {thing} in every house of the town.",
    "The road to the {place} was long and {b}.",
    "Next morning the {hero} was gone.",
)
_REQUESTS = (
    "Tell me a short story about a {hero} and a {thing}.",
    "Write a story with a {hero}, a {place} and a {thing}.",
    "Please tell a story about a {a} {hero}.",
)


def story_words(rng: Random) -> dict[str, str]:
    """One word for every field of the templates."""
    hero, other = rng.sample(HEROES, 2)
    first, second = rng.sample(ADJECTIVES, 2)
    return {
        "hero": hero,
        "other": other,
        "place": rng.choice(PLACES),
        "thing": rng.choice(NOUNS),
        "name": rng.choice(NAMES),
        "a": first,
        "b": second,
    }


def sentence(rng: Random) -> str:
    """One sentence that says nothing of interest, to hide facts among."""
    return with_articles(rng.choice(_SENTENCES).format_map(story_words(rng)))


def story(rng: Random, words: dict[str, str], length: int) -> str:
    """`length` sentences or one more."""
    middles = [rng.choice(_TROUBLES), rng.choice(_TURNS)]
    extra = max(0, length - 5)
    middles[1:1] = rng.sample(_SENTENCES, min(extra, len(_SENTENCES)))
    parts = [rng.choice(_BEGINNINGS), rng.choice(_NAMINGS), *middles, rng.choice(_ENDS)]
    return with_articles(" ".join(parts).format_map(words))


def with_articles(text: str) -> str:
    """'a old owl' -> 'an old owl'."""
    words = text.split(" ")
    for place, word in enumerate(words[:-1]):
        if word in ("a", "A") and words[place + 1][0] in "aeiou":
            words[place] = word + "n"
    return " ".join(words)


def make_story(rng: Random, split: Split, size: int) -> Example:
    """A story on demand; size: sentences. Its hero, place and thing together are split."""

    def key_of(words: dict[str, str]) -> str:
        return "story {hero} {place} {thing}".format_map(words)

    words, key = draw_until(lambda: story_words(rng), split, key_of)
    request = with_articles(rng.choice(_REQUESTS).format_map(words))
    return Example("story", (user(request),), Answer(story(rng, words, size)), keys=(key,))


STORY: Final = Task("story", make_story, (5, 9))
