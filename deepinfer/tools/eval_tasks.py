"""Tasks whose answer is a plain text: sums, copies, and a fact in a long text.

Each task is a pure function of a random generator, a split and a size. Knows what is asked and the
right answer. Does not know the recipe, a model, or how an answer is judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from deepinfer.tools.eval_examples import (
    Answer,
    Example,
    Split,
    Task,
    draw_until,
    draw_words,
    user,
    word_keys,
)
from deepinfer.tools.eval_stories import sentence
from deepinfer.tools.eval_words import ADJECTIVES, NAMES, NOUNS

_SUMS = ("What is {sum}?", "{sum} =", "Compute {sum}.")
# A new line before the list: its first word is then the same tokens as in the answer.
COPIES: Final = ("Repeat these words:\n{words}", "Copy:\n{words}", "Say again:\n{words}")
_FACT_INTRODUCTION = "Read this and remember it."
# Tokens of the text with a fact.
FACT_SIZES: Final = (50, 2000)


def draw_sum(rng: Random, split: Split, digits: int) -> tuple[int, str, int, str]:
    """(a, sign, b, key): a sum or a difference that is not below 0, of numbers with `digits`
    digits. 47 + 38 and 38 + 47 have the same key."""
    sign = rng.choice("+-")
    low = 10 ** (digits - 1) if digits > 1 else 0

    def draw() -> tuple[int, int]:
        first, second = rng.randrange(low, 10**digits), rng.randrange(low, 10**digits)
        return (max(first, second), min(first, second)) if sign == "-" else (first, second)

    (a, b), key = draw_until(draw, split, lambda pair: f"sum {sign} {sorted(pair)}")
    return a, sign, b, key


def make_sum(rng: Random, split: Split, size: int) -> Example:
    """A sum without thinking; size: digits of both numbers."""
    a, sign, b, key = draw_sum(rng, split, size)
    question = rng.choice(_SUMS).format(sum=f"{a} {sign} {b}")
    result = a + b if sign == "+" else a - b
    return Example("sum", (user(question),), Answer(str(result)), keys=(key,))


def make_copy(rng: Random, split: Split, size: int) -> Example:
    """Words to say again; size: how many. Every word is split."""
    words = draw_words(rng, split, NOUNS, size)
    question = rng.choice(COPIES).format(words=" ".join(words))
    return Example("copy", (user(question),), Answer(" ".join(words)), keys=word_keys(words))


@dataclass(frozen=True)
class Fact:
    """A sentence, the question that it answers, the answer, and the key."""

    statement: str
    question: str
    answer: str
    key: str


def draw_fact(rng: Random, split: Split) -> Fact:
    """A fact of the split: what the code of a thing is, or whom the thing belongs to."""

    def draw() -> str:
        return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"

    thing, key = draw_until(draw, split, lambda thing: f"fact {thing}")
    if rng.random() < 0.5:
        (name,) = draw_words(rng, split, NAMES, 1)
        name = name.capitalize()
        return Fact(
            f"The {thing} belongs to {name}.",
            f"Who has the {thing}?",
            f"It belongs to {name}.",
            f"{key} is {name}",
        )
    code, _ = draw_until(lambda: f"{rng.randrange(10000):04d}", split, lambda c: f"code {c}")
    return Fact(
        f"The code of the {thing} is {code}.",
        f"What is the code of the {thing}?",
        code,
        f"{key} is {code}",
    )


def fact_text(
    rng: Random,
    split: Split,
    size: int,
    count: Callable[[str], int],
    num_facts: int | None = None,
) -> tuple[str, list[Fact]]:
    """A text of about `size` tokens, and the facts in it, in no order.

    count: tokens of a sentence. The text ends with the sentence that reaches the size. Unless
    `num_facts` says another number it has two facts, and one more for each 200 tokens. They are
    anywhere; no two answer the same question, so that now and then there is one less.
    """
    wanted = 2 + size // 200 if num_facts is None else num_facts
    drawn = (draw_fact(rng, split) for _ in range(wanted))
    facts = list({fact.question: fact for fact in drawn}.values())
    num_tokens, sentences = sum(count(fact.statement) for fact in facts), list[str]()
    while num_tokens < size:
        sentences.append(sentence(rng))
        num_tokens += count(sentences[-1])
    for fact in facts:
        sentences.insert(rng.randint(0, len(sentences)), fact.statement)
    return f"{_FACT_INTRODUCTION}\n{' '.join(sentences)}", facts


def make_fact_task(count: Callable[[str], int]) -> Task:
    """The task to find one fact in a long text; size: tokens of the text, as `count` has them."""

    def make(rng: Random, split: Split, size: int) -> Example:
        text, facts = fact_text(rng, split, size, count)
        wanted = rng.choice(facts)
        return Example(
            "fact",
            (user(f"{text}\n{wanted.question}"),),
            Answer(wanted.answer),
            keys=tuple(fact.key for fact in facts),
        )

    return Task("fact", make, FACT_SIZES)


SUM: Final = Task("sum", make_sum, (2, 2))
COPY: Final = Task("copy", make_copy, (3, 60))
