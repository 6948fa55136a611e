"""What is trained on, and how much of it: tasks with weights, and natural text.

Knows names and weights. Does not know how documents become rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Final

from deepinfer.tools.eval_examples import Split, Task
from deepinfer.tools.eval_stories import STORY
from deepinfer.tools.eval_structured import CALL, JSON
from deepinfer.tools.eval_tasks import COPY, SUM
from training.data.render import Document, TrainingTokenizer, document_of, text_document
from training.data.tasks_numbers import NUMBER_TASKS
from training.data.tasks_turns import TURN_TASKS, make_facts_task
from training.data.text import draw_passage

TEXT: Final = "text"
FACTS: Final = "facts"
# Questions and answers around a long text.
_FACTS_FRAME: Final = 160
# Shares of documents. By tokens the shares are others: a document of facts has 1,000, a sum 14.
# There is little text: more of it is only learned by heart.
# There is little text: more of it is only learned by heart.
WEIGHTS: Final[Mapping[str, float]] = {
    TEXT: 3,
    "sum": 50,
    "small_sum": 4,
    "copy": 30,
    FACTS: 20,
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


def _roughly(sentence: str) -> int:
    return len(sentence) // 4 + 1


# Every task by name; the sizes of facts are rough here, and exact in a `Mix` with its tokenizer.
TASKS: Final[Mapping[str, Task]] = {
    task.name: task
    for task in (
        *(SUM, COPY, make_facts_task(_roughly), JSON, CALL, STORY),
        *NUMBER_TASKS,
        *TURN_TASKS,
    )
}


@dataclass(frozen=True)
class Mix:
    """Draws documents.

    level: 0 to 1, how far up each task's sizes go. longest: tokens that a document may have at
    most; where a task's example is longer another is drawn. weights: by name; a name that is
    missing is not drawn.
    """

    tokenizer: TrainingTokenizer
    longest: int
    level: float = 1.0
    split: Split = "train"
    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)

    def draw(self, rng: Random) -> Document:
        """One document."""
        names = list(self.weights)
        (name,) = rng.choices(names, [self.weights[name] for name in names])
        if name == TEXT:
            return text_document(draw_passage(rng, self.split), self.tokenizer, self.longest)
        task = facts_task(self.tokenizer, self.longest) if name == FACTS else TASKS[name]
        while True:
            document = document_of(task.draw(rng, self.split, self.level), self.tokenizer)
            if len(document.token_ids) <= self.longest:
                return document


def facts_task(tokenizer: TrainingTokenizer, longest: int) -> Task:
    """Facts in texts of up to 2,000 tokens, or as many as a document may have."""
    task = make_facts_task(token_counter(tokenizer))
    low, high = task.sizes
    return Task(task.name, task.make, (low, max(low, min(high, longest - _FACTS_FRAME))))


@cache
def token_counter(tokenizer: TrainingTokenizer) -> Callable[[str], int]:
    """Tokens of a sentence in the middle of a text. Sentences come again and again: remembered."""

    @cache
    def count(sentence: str) -> int:
        return len(tokenizer.encode(f" {sentence}", add_bos=False))

    return count
