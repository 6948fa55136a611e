"""Tasks whose answer has a form: JSON of a schema, and calls of tools.

Each task is a pure function of a random generator, a split and a size. Both are made of the same
fields: a schema, or a tool's parameters, is a choice of them. Knows schemas and calls. Does not
know their markup, which is the recipe's.
"""

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from deepinfer.recipe.conversation import ToolCall
from deepinfer.tools.eval_examples import (
    Answer,
    Example,
    Split,
    Task,
    draw_until,
    draw_words,
    made_up,
    of_split,
    user,
)
from deepinfer.tools.eval_words import CITIES, COLOURS, NAMES, NOUNS, THINGS, VERBS

_STRING: Mapping[str, Any] = {"type": "string"}
_INTEGER: Mapping[str, Any] = {"type": "integer"}
_BOOLEAN: Mapping[str, Any] = {"type": "boolean"}
_COLOUR: Mapping[str, Any] = {"enum": list(COLOURS)}
_WORDS: Mapping[str, Any] = {"type": "array", "items": {"type": "string"}}


def _name(rng: Random, split: Split) -> str:
    return draw_words(rng, split, NAMES, 1)[0].capitalize()


def _city(rng: Random, split: Split) -> str:
    pool = of_split(CITIES, split)
    return rng.choice(pool) if rng.random() < 0.5 else made_up(rng, split).capitalize()


def _thing(rng: Random, split: Split) -> str:
    return draw_words(rng, split, NOUNS, 1)[0]


def _things(rng: Random, split: Split) -> list[str]:
    return draw_words(rng, split, NOUNS, rng.randint(1, 3))


def _number(rng: Random, split: Split) -> int:
    return draw_until(lambda: rng.randrange(1000), split, lambda n: f"number {n}")[0]


def _flag(rng: Random, split: Split) -> bool:
    return rng.random() < 0.5


def _colour(rng: Random, split: Split) -> str:
    return rng.choice(COLOURS)


# Name, schema, and how a value is drawn.
FIELDS: Final[Mapping[str, tuple[Mapping[str, Any], Callable[[Random, Split], Any]]]] = {
    "name": (_STRING, _name),
    "owner": (_STRING, _name),
    "city": (_STRING, _city),
    "home": (_STRING, _city),
    "item": (_STRING, _thing),
    "gift": (_STRING, _thing),
    "topic": (_STRING, _thing),
    "age": (_INTEGER, _number),
    "count": (_INTEGER, _number),
    "days": (_INTEGER, _number),
    "price": (_INTEGER, _number),
    "size": (_INTEGER, _number),
    "open": (_BOOLEAN, _flag),
    "paid": (_BOOLEAN, _flag),
    "urgent": (_BOOLEAN, _flag),
    "color": (_COLOUR, _colour),
    "tags": (_WORDS, _things),
    "parts": (_WORDS, _things),
}


def draw_fields(rng: Random, split: Split, count: int) -> tuple[list[str], str]:
    """Names of `count` fields and their key; it does not depend on their order."""
    return draw_until(
        lambda: rng.sample(sorted(FIELDS), count), split, lambda names: f"schema {sorted(names)}"
    )


def object_schema(names: list[str]) -> dict[str, Any]:
    """The schema of an object with just these fields."""
    return {
        "type": "object",
        "properties": {name: dict(FIELDS[name][0]) for name in names},
        "required": list(names),
        "additionalProperties": False,
    }


def in_words(values: Mapping[str, Any]) -> str:
    """The values as a user says them: city "Oslo", days 3, open yes, tags "map" and "key".

    In quotes a word is the same tokens as in JSON and in a call.
    """
    said = []
    for name, value in values.items():
        if isinstance(value, bool):
            text = "yes" if value else "no"
        elif isinstance(value, list):
            text = " and ".join(f'"{word}"' for word in value)
        else:
            text = f'"{value}"' if isinstance(value, str) else str(value)
        said.append(f"{name} {text}")
    return ", ".join(said)


def make_json(rng: Random, split: Split, size: int) -> Example:
    """An object of a schema; size: fields. The user says them in another order."""
    names, key = draw_fields(rng, split, size)
    values = {name: FIELDS[name][1](rng, split) for name in names}
    said = {name: values[name] for name in rng.sample(names, len(names))}
    schema = {"name": "answer", "schema": object_schema(names)}
    return Example(
        "json",
        (user(f"Write as JSON: {in_words(said)}."),),
        Answer(json.dumps(values)),
        "json",
        {"thinking": False, "response_format": {"type": "json_schema", "json_schema": schema}},
        keys=(key,),
    )


def draw_tool(rng: Random, split: Split) -> tuple[str, dict[str, Any], str]:
    """(name, definition, key) of a tool with one to three parameters. Its name is split."""
    name, key = draw_until(
        lambda: f"{rng.choice(VERBS)}_{rng.choice(THINGS)}", split, lambda name: f"tool {name}"
    )
    fields = rng.sample(sorted(FIELDS), rng.randint(1, 3))
    parameters = {
        "type": "object",
        "properties": {field: dict(FIELDS[field][0]) for field in fields},
        "required": fields,
    }
    function = {
        "name": name,
        "description": name.replace("_", " ").capitalize() + ".",
        "parameters": parameters,
    }
    return name, {"type": "function", "function": function}, key


def make_call(rng: Random, split: Split, size: int) -> Example:
    """A wish that one of `size` tools fulfils, and the call."""
    drawn = {name: (tool, key) for name, tool, key in (draw_tool(rng, split) for _ in range(size))}
    name = rng.choice(sorted(drawn))
    fields = drawn[name][0]["function"]["parameters"]["required"]
    values = {field: FIELDS[field][1](rng, split) for field in fields}
    wish = f"Please {name.replace('_', ' ')}: {in_words(values)}."
    return Example(
        "call",
        (user(wish),),
        Answer(calls=(ToolCall("call_1", name, json.dumps(values)),)),
        "call",
        {"thinking": False, "tools": [tool for tool, _ in drawn.values()]},
        keys=tuple(key for _, key in drawn.values()),
    )


JSON: Final = Task("json", make_json, (2, 4))
CALL: Final = Task("call", make_call, (1, 3))
