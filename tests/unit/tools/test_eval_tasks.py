"""Held-out tasks: nothing is in both splits, and every wanted answer is right."""

import json
import re
from collections.abc import Iterator
from random import Random

import pytest

from deepinfer.tools.eval_examples import Example, Split, Task, split_of
from deepinfer.tools.eval_stories import STORY
from deepinfer.tools.eval_structured import CALL, JSON, in_words
from deepinfer.tools.eval_tasks import COPY, SUM, make_fact_task

NUM_DRAWS = 300


def count(text: str) -> int:
    return len(text.split())


FACT = make_fact_task(count)
TASKS = (SUM, COPY, FACT, JSON, CALL, STORY)


def drawn(task: Task, split: Split, level: float = 0.3) -> Iterator[Example]:
    rng = Random(f"test {task.name} {split}")
    for _ in range(NUM_DRAWS):
        yield task.draw(rng, split, level)


def question(example: Example) -> str:
    return str(example.messages[-1]["content"])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_splits_do_not_overlap(task: Task) -> None:
    """What is measured was trained, and a score is memory."""
    keys = {
        split: {key for example in drawn(task, split) for key in example.keys}
        for split in ("train", "held_out")
    }
    assert keys["train"] and keys["held_out"]
    assert not keys["train"] & keys["held_out"]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_same_generator_same_example(task: Task) -> None:
    """Two runs of an evaluation ask different questions, and their difference is luck."""
    assert list(drawn(task, "held_out"))[:20] == list(drawn(task, "held_out"))[:20]


def test_one_key_in_eight_is_held_out() -> None:
    """A split that depends on the shape of a key leaves whole kinds of it out of one side."""
    held_out = sum(split_of(f"sum + [{a}, {b}]") == "held_out" for a in range(99) for b in range(a))
    assert held_out / (99 * 98 / 2) == pytest.approx(1 / 8, abs=0.02)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_sums(split: Split) -> None:
    """A sum's answer is wrong, or a difference goes below 0."""
    for example in drawn(SUM, split, 1.0):
        found = re.search(r"(\d+) ([+-]) (\d+)", question(example))
        assert found is not None
        a, sign, b = int(found[1]), found[2], int(found[3])
        assert int(example.answer.content) == (a + b if sign == "+" else a - b) >= 0
        assert example.keys == (f"sum {sign} {sorted((a, b))}",)
        assert split_of(example.keys[0]) == split


def test_copies() -> None:
    """A copy has other words than the list, or another length than was asked for."""
    for example in drawn(COPY, "held_out", 1.0):
        words = question(example).split("\n")[1]
        assert example.answer.content == words
        assert 3 <= len(words.split()) <= 60
        assert all(split_of(f"word {word}") == "held_out" for word in words.split())


def test_facts() -> None:
    """The fact is not in the text, is there twice with two answers, or always at one place."""
    places = []
    for example in drawn(FACT, "held_out", 0.1):
        _, text, asked = question(example).split("\n")
        found = re.fullmatch(r"(?:What is the code of|Who has) the (.*)\?", asked)
        assert found is not None
        statements = re.findall(rf"The code of the {found[1]} is (\d+)\.", text)
        owners = re.findall(rf"The {found[1]} belongs to (\w+)\.", text)
        answer = statements if "code" in asked else [f"It belongs to {name}." for name in owners]
        assert answer == [example.answer.content]
        places.append(text.index(found[1]) / len(text))
    assert min(places) < 0.1 and max(places) > 0.8


def test_fact_sizes() -> None:
    """A text of 1,500 tokens has a thousand, and fits what it should not fit."""
    rng = Random("sizes")
    for size in (100, 500, 1500):
        text = question(FACT.make(rng, "held_out", size)).split("\n")[1]
        assert size <= count(text) < size + 20


def test_json_values_are_said() -> None:
    """The user leaves out a value that the answer must have."""
    for example in drawn(JSON, "held_out", 1.0):
        values = json.loads(example.answer.content)
        schema = example.options["response_format"]["json_schema"]["schema"]
        assert list(values) == schema["required"] == list(schema["properties"])
        for name, value in values.items():
            assert in_words({name: value}) in question(example)


def test_calls_are_possible() -> None:
    """The wanted tool is not among those shown, or its arguments are not its parameters."""
    for example in drawn(CALL, "held_out", 1.0):
        (call,) = example.answer.calls
        tools = {tool["function"]["name"]: tool["function"] for tool in example.options["tools"]}
        assert set(json.loads(call.arguments)) == set(tools[call.name]["parameters"]["properties"])
        assert call.name.replace("_", " ") in question(example)
        assert all(split_of(f"tool {name}") == "held_out" for name in tools)


def test_stories_keep_their_words() -> None:
    """A field of a template is left unfilled, or the story is about something else."""
    for example in drawn(STORY, "held_out", 1.0):
        _, hero, _, thing = example.keys[0].split(" ")
        text = example.answer.content
        assert "{" not in text
        assert hero in text and thing in text
        assert not re.search(r"\b[Aa] [aeiou]", text)
