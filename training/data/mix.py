"""What is trained on, and how much of it: tasks with weights, and natural text.

Knows names and weights. Does not know how documents become rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Final

from deepinfer.tools.eval_examples import Split, Task
from deepinfer.tools.eval_stories import STORY
from deepinfer.tools.eval_structured import CALL, JSON
from deepinfer.tools.eval_tasks import SUM
from training.data.render import Document, TrainingTokenizer, document_of, text_document
from training.data.tasks_numbers import NUMBER_TASKS
from training.data.tasks_turns import TURN_TASKS, make_facts_task
from training.data.tasks_words import Pieces, word_tasks
from training.data.text import draw_passage

TEXT: Final = "text"
FACTS: Final = "facts"
# Questions and answers around a long text.
_FACTS_FRAME: Final = 160
_REMEMBERED: Final = 2**16
# Each part of the work that goes to another process comes with a tokenizer of its own.
_TOKENIZERS: Final = 4
# Shares of documents in rows of 512. By tokens the shares are others: a document of facts has 250,
# a sum 16. There is little text: more of it is only learned by heart.
WEIGHTS: Final[Mapping[str, float]] = {
    TEXT: 4.5,
    "sum": 50,
    "small_sum": 4,
    "copy": 30,
    FACTS: 42,
    "json": 14,
    "call": 12,
    "story": 5,
    "thought_sum": 12,
    "product": 4,
    "count_up": 3,
    "how_many": 4,
    "sort": 3,
    "date": 6,
    "reverse": 5,
    "tool_result": 3,
    "no_call": 1,
    "talk": 2,
    "told": 4,
    "greeting": 1,
    "chinese": 3,
    "pick": 4,
}
# In longer rows texts and facts are longer and the rest is not: without this, facts would be all.
_LONG: Final = 1024
_LONG_WEIGHTS: Final = {**WEIGHTS, TEXT: 5.7, FACTS: 30}
# Towards the end, what is learned last counts more: exact sums, and facts by way of selections.
_LATE: Final = {"sum": 1.6, FACTS: 1.5}


def _tasks(pieces: Pieces, count: Callable[[str], int]) -> Mapping[str, Task]:
    made = (SUM, JSON, CALL, STORY, make_facts_task(count), *NUMBER_TASKS, *TURN_TASKS)
    return {task.name: task for task in (*made, *word_tasks(pieces))}


# Every task by name, as far as it can be had without a tokenizer: the sizes of facts are rough,
# and no word is made of a vocabulary's pieces. A `Mix` has both.
TASKS: Final = _tasks((), lambda sentence: len(sentence) // 4 + 1)


@dataclass(frozen=True)
class Mix:
    """Draws documents.

    level: 0 to 1, how far up each task's sizes go. longest: tokens that a document may have at
    most; where a task's example is longer another is drawn. weights: by name, unless given those
    of `weights_for`; a name that is missing is not drawn. is_late: for the later stages.
    """

    tokenizer: TrainingTokenizer
    longest: int
    level: float = 1.0
    split: Split = "train"
    weights: Mapping[str, float] | None = None
    is_late: bool = False

    def draw(self, rng: Random) -> Document:
        """One document."""
        weights = self.weights or weights_for(self.longest, is_late=self.is_late)
        (name,) = rng.choices(list(weights), list(weights.values()))
        if name == TEXT:
            return text_document(draw_passage(rng, self.split), self.tokenizer, self.longest)
        task = tasks_for(self.tokenizer, self.longest)[name]
        while True:
            document = document_of(task.draw(rng, self.split, self.level), self.tokenizer)
            if len(document.token_ids) <= self.longest:
                return document


def weights_for(longest: int, *, is_late: bool = False) -> Mapping[str, float]:
    """Shares of documents in rows as long as this, for the first stage or the later ones."""
    weights = WEIGHTS if longest < _LONG else _LONG_WEIGHTS
    return {name: share * (_LATE.get(name, 1) if is_late else 1) for name, share in weights.items()}


@lru_cache(maxsize=_TOKENIZERS)
def tasks_for(tokenizer: TrainingTokenizer, longest: int) -> Mapping[str, Task]:
    """Every task by name: words of this vocabulary's pieces, and facts in texts of up to 2,000
    tokens, or as many as a document may have."""
    tasks = dict(_tasks(letter_pieces(tokenizer), token_counter(tokenizer)))
    low, high = tasks[FACTS].sizes
    sizes = (low, max(low, min(high, longest - _FACTS_FRAME)))
    return {**tasks, FACTS: replace(tasks[FACTS], sizes=sizes)}


def letter_pieces(tokenizer: TrainingTokenizer) -> Pieces:
    """The tokens that are letters and nothing else, without the space that some begin with."""
    spelled = (
        tokenizer.token_bytes(token_id).decode("utf-8", errors="replace").removeprefix(" ")
        for token_id in range(tokenizer.vocab_len)
    )
    return tuple(sorted({text for text in spelled if text.isalpha()}))


def token_counter(tokenizer: TrainingTokenizer) -> Callable[[str], int]:
    """Tokens of a sentence in the middle of a text. Sentences come again and again: remembered,
    though not for ever, for there are millions of them."""

    @lru_cache(maxsize=_REMEMBERED)
    def count(sentence: str) -> int:
        return len(tokenizer.encode(f" {sentence}", add_bos=False))

    return count
