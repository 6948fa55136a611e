"""Every output that ends with "stop" is valid: many schemas, a toy model, a high temperature."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from deepinfer import LLM, RequestError, SamplingParams
from deepinfer.structured.schema import schema_grammar
from tests.unit.structured.random_schemas import random_document
from tests.unit.structured.refused_schemas import REFUSED
from tests.unit.structured.schema_cases import ACCEPTED

NUM_OUTPUTS = 20
MAX_TOKENS = 400
NUM_RANDOM = 260


@pytest.fixture(scope="module")
def llm(tiny_dir: Path) -> Iterator[LLM]:
    with LLM(tiny_dir, device="cpu", dtype="float32", max_num_seqs=256, max_model_len=1400) as made:
        yield made


def random_schemas() -> list[Any]:
    return [random_document(random.Random(f"law schema {n}")) for n in range(NUM_RANDOM)]


def is_accepted(schema: Any) -> bool:
    try:
        schema_grammar(schema)
    except RequestError:
        return False
    return True


def can_be_met(schema: Any) -> bool:
    """Random text meets no pattern that asks for a certain word somewhere, however long it is."""
    if isinstance(schema, list):
        return all(can_be_met(part) for part in schema)
    if not isinstance(schema, dict):
        return True
    pattern = schema.get("pattern", "^")
    patterns = [*schema.get("patternProperties", ()), pattern if isinstance(pattern, str) else "^"]
    return all(one.startswith("^") for one in patterns) and all(map(can_be_met, schema.values()))


def closing_bias(llm: LLM, weight: float) -> dict[int, float]:
    """Random weights know no ends: without a push, a string or a list goes on and on, and an
    address never comes to its sign."""
    tokenizer = llm.get_tokenizer()
    weights = dict.fromkeys('"]}', weight) | dict.fromkeys("@.", min(weight, 4.0))
    return {tokenizer.encode(mark, add_bos=False)[0]: one for mark, one in weights.items()}


def generated(llm: LLM, schemas: list[Any], count: int, **params: Any) -> list[Any]:
    asked = [
        SamplingParams(
            temperature=1.5,
            n=count,
            seed=number,
            max_tokens=MAX_TOKENS,
            logit_bias=closing_bias(llm, 4.0),
            so_args={"schema_type": "json", "schema": schema},
        )
        for number, schema in enumerate(schemas)
    ]
    return llm.generate(["Say it in JSON:"] * len(asked), asked, use_tqdm=False)


def check(llm: LLM, schemas: list[Any], count: int) -> None:
    """All that ends is valid, nearly all ends, and what was cut can be brought to an end."""
    unfinished = []
    for schema, result in zip(schemas, generated(llm, schemas, count), strict=True):
        assert result.error is None, (schema, result.error)
        validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        ended = [one for one in result.outputs if one.finish_reason == "stop"]
        for one in ended:
            validator.validate(json.loads(one.text))
        if len(ended) < 0.9 * count:
            unfinished.append((len(ended), schema))
        for one in result.outputs:
            if one.finish_reason != "stop":
                assert one.finish_reason == "length"
                assert len(one.token_ids) == MAX_TOKENS
                validator.validate(json.loads(finished(llm, schema, one.token_ids)))
    assert not unfinished


def finished(llm: LLM, schema: Any, token_ids: list[int]) -> str:
    """The text that begins with these tokens and was brought to an end."""
    params = SamplingParams(
        temperature=1.5,
        seed=1,
        max_tokens=3 * MAX_TOKENS,
        golden_token_ids=token_ids,
        logit_bias=closing_bias(llm, 30.0),
        so_args={"schema_type": "json", "schema": schema},
    )
    (result,) = llm.generate("Say it in JSON:", params, use_tqdm=False)
    (one,) = result.outputs
    assert one.finish_reason == "stop"
    return str(one.text)


@pytest.mark.slow
def test_many_schemas(llm: LLM) -> None:
    """D, E: a schema is accepted, and one of its outputs does not validate."""
    written = [one for schemas in ACCEPTED.values() for one in schemas if can_be_met(one)]
    drawn = [one for one in random_schemas() if can_be_met(one)]
    accepted = [schema for schema in drawn if is_accepted(schema)]
    assert len(written) + len(REFUSED) + len(drawn) >= 300
    assert len(written) + len(accepted) >= 200
    check(llm, written + accepted, NUM_OUTPUTS)


def test_some_schemas(llm: LLM) -> None:
    """The same, a few of each kind."""
    chosen = [schema for schemas in ACCEPTED.values() for schema in schemas[::12]]
    chosen = [schema for schema in chosen if can_be_met(schema)]
    check(llm, chosen, 5)
