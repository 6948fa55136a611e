"""Tasks that are only trained: nothing is in both splits, and every answer is right."""

import json
import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from random import Random
from typing import Any

import pytest

from deepinfer.tools.eval_examples import Example, Split, Task, split_of, word_key
from training.data.mix import TASKS, WEIGHTS
from training.data.tasks_numbers import column_steps
from training.data.tasks_words import make_copy, word_tasks
from training.data.text import passages

NUM_DRAWS = 150
# Its texts are too few to hold any out.
UNSPLIT = {"greeting"}


def drawn(name: str, split: Split = "held_out") -> Iterator[Example]:
    task: Task = TASKS[name]
    rng = Random(f"test {name} {split}")
    for _ in range(NUM_DRAWS):
        yield task.draw(rng, split, 0.5)


def last(example: Example) -> str:
    return str(example.messages[-1]["content"])


@pytest.mark.parametrize("name", sorted(set(TASKS) - UNSPLIT))
def test_splits_do_not_overlap(name: str) -> None:
    """What is measured was trained."""
    keys = {
        split: {key for example in drawn(name, split) for key in example.keys}
        for split in ("train", "held_out")
    }
    assert keys["train"] and keys["held_out"]
    assert not keys["train"] & keys["held_out"]


def test_weights_name_all_tasks() -> None:
    """A task is written and never trained."""
    assert set(WEIGHTS) == {*TASKS, "text"}


def test_passages_are_split() -> None:
    """Perplexity is of text that was trained."""
    train, held_out = set(passages("train")), set(passages("held_out"))
    assert not train & held_out
    assert 0.02 < sum(map(len, held_out)) / sum(map(len, train)) < 0.08


def sums(text: str) -> list[tuple[str, int]]:
    """Every 'a+b=c' in a text: the left side and what is written right of it."""
    return [(left, int(right)) for left, right in re.findall(r"([\d+*-]+)=(-?\d+)", text)]


@pytest.mark.parametrize("name", ["thought_sum", "product"])
def test_thoughts_are_right(name: str) -> None:
    """A step of a sum on paper is wrong, and so is the model's idea of it."""
    for example in drawn(name):
        asked = re.search(r"What is (.*)\?", last(example))
        assert asked is not None
        assert int(example.answer.content) == eval(asked[1])
        steps = sums(example.answer.thoughts or "")
        assert steps
        assert all(eval(left) == right for left, right in steps)


def test_steps_write_the_result() -> None:
    """The digits that the thoughts write are not the answer's."""
    for a, sign, b in ((58, "+", 67), (999, "+", 1), (100, "-", 1), (7, "-", 7), (40, "+", 2)):
        digits = re.findall(r"write (\d)", column_steps(a, sign, b))
        assert int("".join(reversed(digits))) == (a + b if sign == "+" else a - b)


def test_counting() -> None:
    """A count misses a number or goes too far."""
    for example in drawn("count_up"):
        asked = re.search(r"from (-?\d+) to (-?\d+)", last(example))
        assert asked is not None
        numbers = [int(word) for word in example.answer.content.split()]
        step = int((re.search(r"steps of (\d+)", last(example)) or [0, 1])[1])
        step = -step if "down" in last(example) else step
        assert numbers == list(range(int(asked[1]), int(asked[2]) + step, step))
        assert min(numbers) >= 0
    for example in drawn("how_many"):
        asked = re.fullmatch(r"How many times is (\w+) in: (.*)\?", last(example))
        assert asked is not None
        assert int(example.answer.content) == asked[2].split().count(asked[1])


def test_lists() -> None:
    """A list is not sorted, not turned round, or another word is picked."""
    for example in drawn("sort"):
        numbers = last(example).split(": ")[1].split()
        assert example.answer.content.split() == sorted(numbers, key=int)
    for example in drawn("reverse"):
        words = last(example).split("\n")[1].split()
        assert example.answer.content.split() == words[::-1]
    for example in drawn("pick"):
        words = last(example).split(": ")[1].removesuffix("?").split()
        after = re.search(r"after (\w+)", last(example))
        expected = words[0] if "first" in last(example) else words[-1]
        expected = words[words.index(after[1]) + 1] if after else expected
        assert example.answer.content == expected


def test_copies_have_other_words() -> None:
    """A copy is wrong, has a held-out word of pieces in it, or never a number."""
    (task,) = (task for task in word_tasks(("wi", "nd", "sea")) if task.name == "copy")
    rng, seen = Random("copies"), set[str]()
    for _ in range(NUM_DRAWS):
        example = task.draw(rng, "train")
        words = last(example).split("\n")[1]
        assert example.answer.content == words
        assert 3 <= len(words.split()) <= 60
        assert all(split_of(word_key(word)) == "train" for word in words.split())
        seen.update(words.split())
    assert "wind" not in seen
    assert {"seasea", "Tom", "lamp"} <= seen
    assert any(word.isdigit() for word in seen) and any(word.isupper() for word in seen)


def test_dates() -> None:
    """A date is a day off, or written wrongly."""
    for example in drawn("date"):
        asked, said = last(example), example.answer.content
        iso = re.search(r"\d{4}-\d\d-\d\d", asked)
        if "in words" in asked and iso:
            expected = datetime.strptime(said, "%d %B %Y").date()
            assert date.fromisoformat(iso[0]) == expected
        elif "days" in asked or "day after" in asked:
            assert iso is not None
            (days,) = re.findall(r"is (\d+) day", asked)
            assert date.fromisoformat(said) - date.fromisoformat(iso[0]) == timedelta(int(days))
        else:
            words = asked.removeprefix("Write ").removesuffix(" as YYYY-MM-DD.")
            assert datetime.strptime(words, "%d %B %Y").date() == date.fromisoformat(said)


def texts(example: Example) -> list[str]:
    return [str(message["content"]) for message in example.messages]


@pytest.mark.parametrize("name", ["told", "facts"])
def test_facts_in_turns(name: str) -> None:
    """An answer was never told, or is another fact's."""
    for example in drawn(name):
        told = "\n".join(texts(example))
        thing = re.search(r"(?:code of|has) the (.*)\?", last(example))
        assert thing is not None
        found = re.search(rf"{thing[1]} (?:belongs to|is) (\w+)", told)
        assert found is not None
        assert example.answer.content in (found[1], f"It belongs to {found[1]}.")


def test_talks_remember() -> None:
    """The name asked for is not the one that was given."""
    for example in drawn("talk"):
        given = re.search(r"I am (\w+)\.", texts(example)[0])
        assert given is not None
        assert example.answer.content == f"Your name is {given[1]}."
        for question, answer in zip(texts(example)[2:-1:2], texts(example)[3:-1:2], strict=True):
            (left,) = re.findall(r"\d+ [+-] \d+", question)
            assert eval(left) == int(answer)


def test_results_are_told() -> None:
    """The answer says something else than the tool's result."""
    for example in drawn("tool_result"):
        result: dict[str, Any] = json.loads(last(example))
        for name, value in result.items():
            word = value[0] if isinstance(value, list) else value
            shown = {True: "yes", False: "no"}[word] if isinstance(word, bool) else str(word)
            assert re.search(rf'{name} "?{shown}\b', example.answer.content)


def test_chinese() -> None:
    """A Chinese sum is wrong, or characters get lost."""
    for example in drawn("chinese"):
        text, said = last(example), example.answer.content
        if found := re.fullmatch(r"(\d+)([加减])(\d+)等于几？", text):
            a, b = int(found[1]), int(found[3])
            assert said == f"{a + b if found[2] == '加' else a - b}。"
        else:
            _, given = text.split("：")
            assert said == (given if "重复" in text else given[::-1])


def test_copies_repeat_words():
    """A model learns to copy by looking at one word back, and loses its way where a word comes
    again, as evaluation's few held-out words do.
    """
    rng = Random("copies repeat words")
    lists = [make_copy(rng, "train", 30).answer.content.split() for _ in range(200)]
    repeated = [words for words in lists if len(set(words)) < 0.7 * len(words)]
    assert 40 < len(repeated) < 160
