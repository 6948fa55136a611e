"""Schemas become grammars whose every text validates, or are refused by the place's name."""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from deepinfer.errors import RequestError
from deepinfer.structured.control_chars import plain
from deepinfer.structured.formats import FORMATS
from deepinfer.structured.grammar import Grammar
from deepinfer.structured.grammar_check import check
from deepinfer.structured.keywords import KEYWORDS
from deepinfer.structured.schema import schema_grammar
from tests.effort import effort
from tests.unit.structured.derive import Derivation
from tests.unit.structured.random_schemas import random_document
from tests.unit.structured.refused_schemas import REFUSED
from tests.unit.structured.schema_cases import ACCEPTED

CASES = [
    pytest.param(schema, id=f"{kind} {number}")
    for kind, schemas in ACCEPTED.items()
    for number, schema in enumerate(schemas)
]


def grammar_of(schema: Any) -> Grammar:
    grammar = plain(schema_grammar(schema))
    check(grammar)
    return grammar


def assert_valid(grammar: Grammar, schema: Any, rng: random.Random, count: int) -> None:
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    derivation = Derivation(grammar)
    for _ in range(count):
        text = derivation.draw(rng)
        validator.validate(json.loads(text))


@pytest.mark.parametrize("schema", CASES)
def test_every_text_validates(schema: Any) -> None:
    """A keyword is passed over, and a client's validator refuses what we called valid."""
    assert_valid(grammar_of(schema), schema, random.Random(json.dumps(schema)), count=25)


def test_random_schemas() -> None:
    """Two keywords are right alone and wrong together."""
    num_accepted = 0
    for number in range(400):
        rng = random.Random(f"random schema {number}")
        schema = random_document(rng)
        Draft202012Validator.check_schema(schema)
        try:
            grammar = grammar_of(schema)
        except RequestError:
            continue
        num_accepted += 1
        assert_valid(grammar, schema, rng, count=6)
    assert num_accepted >= 250


@pytest.mark.parametrize(("schema", "pointer", "word"), REFUSED, ids=str)
def test_refused(schema: Any, pointer: str, word: str) -> None:
    """What cannot be enforced is accepted, or the error leaves the user searching."""
    with pytest.raises(RequestError) as caught:
        schema_grammar(schema)
    where = caught.value.field.removeprefix("so_args.schema").removeprefix("#")
    assert where == pointer
    assert word in caught.value.what
    assert caught.value.hint


def test_the_document_lists_every_keyword() -> None:
    """A user reads that a keyword is enforced, and it is refused; or does not find it."""
    text = (Path(__file__).parents[3] / "docs" / "structured_output.md").read_text()
    table = text.split("## JSON schemas", 1)[1].split("Formats:", 1)[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    told = {row[0].removeprefix("| "): row[1] for row in rows}
    assert told == {keyword: status for keyword, (status, _) in KEYWORDS.items()}
    assert all(name in text for name in FORMATS)


def test_every_refused_keyword_is_refused() -> None:
    """The table says refused, and the keyword passes."""
    for keyword, (status, _) in KEYWORDS.items():
        if status == "refused":
            with pytest.raises(RequestError) as caught:
                schema_grammar({keyword: 1})
            assert caught.value.field == f"so_args.schema#/{keyword}"


HOLES: list[Any] = [
    {"type": "number", "not": {"type": "integer"}},
    {"type": "number", "not": {"enum": [1, 2]}},
    {"type": "number", "minimum": 0, "maximum": 3, "not": {"multipleOf": 2}},
    {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 0, "maximum": 2}]},
    {
        "type": "number",
        "if": {"type": "integer"},
        "then": {"maximum": 5},
        "else": {"minimum": 100, "maximum": 101},
    },
    {"type": "number", "minimum": 0.5, "maximum": 1.5, "not": {"const": 1}},
]


@pytest.mark.parametrize("schema", HOLES)
def test_whole_numbers_that_are_left_out(schema: Any) -> None:
    """2 is excluded, and 2.0 is written; or neither is excluded from numbers at all."""
    assert_valid(grammar_of(schema), schema, random.Random(json.dumps(schema)), count=300)


def test_anchors_are_those_of_schemas() -> None:
    """What looks like a schema in an example or a constant takes the place of the real one."""
    schema: Any = {
        "properties": {"a": {"$ref": "#x"}},
        "required": ["a"],
        "additionalProperties": False,
        "examples": [{"$anchor": "x", "type": "string"}],
        "$defs": {"q": {"$anchor": "x", "type": "integer"}},
    }
    assert_valid(grammar_of(schema), schema, random.Random("anchors"), count=50)
    only = {"$ref": "#x", "$defs": {"a": {"const": {"$anchor": "x", "type": "integer"}}}}
    twice = {"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}}
    for wrong, word in ((only, "no $anchor"), (twice, "twice")):
        with pytest.raises(RequestError) as caught:
            schema_grammar(wrong)
        assert word in caught.value.what


def hostile() -> dict[str, Any]:
    """Texts and schemas that once ended in another error, or did not end."""
    deep: Any = 1
    for _ in range(190):
        deep = {"a": deep}
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}", "title": "x"} for i in range(500)}
    pair = ("a", "b")
    dag: dict[str, Any] = {
        f"d{i}": {"properties": {k: {"$ref": f"#/$defs/d{i + 1}"} for k in pair}, "required": ["a"]}
        for i in range(20)
    }

    def ring(name: str, **more: Any) -> dict[str, Any]:
        keys = [f"k{i}" for i in range(8)]
        inner = {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]}
        return {"type": "object", "properties": dict.fromkeys(keys, inner), "required": keys} | more

    rings = {"n": ring("n"), "m": ring("m", minProperties=1)}
    return {
        "infinity": '{"const": 1e400}',
        "no number": '{"const": NaN}',
        "inside": '{"enum": [[1e400], 1]}',
        "bound": f'{{"minimum": {10**400}}}',
        "step": f'{{"multipleOf": {10**400}}}',
        "length": f'{{"maxLength": {10**400}}}',
        "one": "1",
        "one inside": {"properties": {"a": 1}},
        "deep constant": {"const": deep},
        "chain": {"$ref": "#/$defs/d0", "$defs": links | {"d500": {"type": "null"}}},
        "doubling": {"not": {"$ref": "#/$defs/d0"}, "$defs": dag | {"d20": {"type": "null"}}},
        "rings": {"oneOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/m"}], "$defs": rings},
        "many words": {"enum": [f"country name {i * 7919}" for i in range(5000)]},
        "no room": {"type": "number", "minimum": 1e-20, "maximum": 2e-20},
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_schemas_end_soon(name: str) -> None:
    """E08, E10: a number, a depth or a doubling ends the program, or keeps it busy for ever."""
    with effort(200), contextlib.suppress(RequestError):
        grammar_of(hostile()[name])
