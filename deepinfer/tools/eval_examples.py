"""One example of a task: a conversation, the answer that is wanted, and which split it is in.

Knows how things are drawn and split. Does not know the tasks, the recipe or a model.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final, Literal, TypeVar

from deepinfer.recipe.conversation import ToolCall
from deepinfer.tools.eval_words import CODAS, ONSETS, VOWELS

Split = Literal["train", "held_out"]
Judge = Literal["text", "call", "json"]
Drawn = TypeVar("Drawn")

# One key in so many is held out.
HELD_OUT_PART: Final = 8


@dataclass(frozen=True)
class Answer:
    """What the assistant should say. thoughts: None where thinking is off."""

    content: str = ""
    thoughts: str | None = None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Example:
    """A conversation up to a question, and its answer.

    messages, options: as LLM.chat takes them. judge: what is compared, the text, the call, or
    whether the text is JSON of the schema that `options` asks for. keys: all that was drawn
    and must never be in both splits.
    """

    task: str
    messages: tuple[Mapping[str, Any], ...]
    answer: Answer
    judge: Judge = "text"
    options: Mapping[str, Any] = field(default_factory=lambda: {"thinking": False})
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """A kind of examples. make(rng, split, size); sizes: smallest and largest, as words, digits or
    tokens; what a size means is the task's business."""

    name: str
    make: Callable[[Random, Split, int], Example]
    sizes: tuple[int, int]

    def draw(self, rng: Random, split: Split, level: float = 1.0) -> Example:
        """One example, up to `level` (0 to 1) of the largest size."""
        low, high = self.sizes
        return self.make(rng, split, rng.randint(low, low + round(level * (high - low))))


def split_of(key: str, one_in: int = HELD_OUT_PART) -> Split:
    """Where everything with this key belongs: the same on every machine, for ever."""
    digest = hashlib.blake2b(key.encode("utf-8"), digest_size=8).digest()
    return "train" if int.from_bytes(digest, "big") % one_in else "held_out"


def draw_until(
    draw: Callable[[], Drawn], split: Split, key: Callable[[Drawn], str]
) -> tuple[Drawn, str]:
    """The first draw whose key is in the split, and that key."""
    while True:
        drawn = draw()
        if split_of(found := key(drawn)) == split:
            return drawn, found


@cache
def of_split(words: tuple[str, ...], split: Split) -> tuple[str, ...]:
    """The words that the split may use."""
    return tuple(word for word in words if split_of(word_key(word)) == split)


def word_key(word: str) -> str:
    """The key of a word, whatever it is used for."""
    return f"word {word.lower()}"


def made_up(rng: Random, split: Split) -> str:
    """A word that means nothing, of two or three syllables."""

    def draw() -> str:
        syllables = [rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.randint(2, 3))]
        return "".join(syllables) + rng.choice(CODAS)

    return draw_until(draw, split, word_key)[0]


def draw_words(rng: Random, split: Split, known: tuple[str, ...], count: int) -> list[str]:
    """`count` words of the split: most of them out of `known`, a third made up."""
    pool = of_split(known, split)
    return [made_up(rng, split) if rng.random() < 1 / 3 else rng.choice(pool) for _ in range(count)]


def user(text: str) -> dict[str, str]:
    """A message of the user."""
    return {"role": "user", "content": text}


def word_keys(words: Sequence[str]) -> tuple[str, ...]:
    """The keys of several words."""
    return tuple(word_key(word) for word in words)
