"""Schemas become grammars whose every text validates, or are refused by the place's name."""

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
