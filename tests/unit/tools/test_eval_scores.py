"""Figures of an evaluation, and the judging of answers."""

import json
import math
from dataclasses import replace
from random import Random

import jsonschema
import pytest

from deepinfer.recipe.conversation import ToolCall
from deepinfer.recipe.message import ParsedMessage
from deepinfer.tools.eval_judge import has_right_values, is_right, is_valid
from deepinfer.tools.eval_scores import (
    as_json,
    as_text,
    calibration_error,
    mean,
    paired,
    perplexity,
    rise,
    share,
    wilson,
)
from deepinfer.tools.eval_structured import CALL, JSON, object_schema
from deepinfer.tools.eval_tasks import SUM


@pytest.mark.parametrize(
    ("num_right", "num_cases", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson(num_right: int, num_cases: int, low: float, high: float) -> None:
    """All cases right is said to be certain, or an interval leaves 0 to 1. Known values."""
    assert wilson(num_right, num_cases) == pytest.approx((low, high), abs=1e-4)


def test_wilson_solves_its_equation() -> None:
    """The bounds are shares from which the seen one is 1.96 deviations away."""
    for bound in wilson(37, 100):
        deviation = math.sqrt(bound * (1 - bound) / 100)
        assert abs(bound - 0.37) / deviation == pytest.approx(1.959964, abs=1e-5)


def test_lines() -> None:
    """A mean or a ratio is of other numbers than its line says."""
    assert share("s", [True, False, False, True]).value == 50
    assert paired("p", [True, True, False], [True, False, False]).value == pytest.approx(100 / 3)
    assert perplexity("x", [math.log(2), math.log(8)]).value == pytest.approx(4)
    found = rise("r", [1.0, 1.0], [1.0 + math.log(1.05)] * 2)
    assert (found.value, found.low) == pytest.approx((5, 5))
    assert "50.0 %" in as_text(share("s", [True, False]))


def test_json_has_no_infinity() -> None:
    """One case has no interval; infinity is no JSON, and a reader of the file fails."""
    assert json.loads(json.dumps(as_json(mean("m", [1.0])), allow_nan=False))["low"] is None


def test_calibration_error() -> None:
    """A head that is right about itself gets an error, or one that is wrong gets none."""
    rng = Random(0)
    said = [rng.random() for _ in range(20_000)]
    right = [rng.random() < chance for chance in said]
    assert calibration_error("c", said, right, 10).value < 0.02
    assert calibration_error("c", [0.9] * 10, [False] * 10, 10).value == pytest.approx(0.9)
    assert calibration_error("c", [1.0], [True], 10).value == 0


def test_judge_of_schemas() -> None:
    """A valid answer counts as wrong, or the other way round; jsonschema says which it is."""
    schemas = [{"type": kind} for kind in ("string", "integer", "boolean")]
    schemas += [{"enum": ["red", 1]}, {"type": "array", "items": {"type": "string"}}]
    for schema in schemas:
        for value in [0, 2, True, "red", "x", None, 1.5, ["a"], ["a", 1], [], {}]:
            expected = jsonschema.Draft202012Validator(schema).is_valid(value)
            assert is_valid(value, schema) == expected, (value, schema)


def test_judge_of_objects() -> None:
    """A missing, a foreign or a wrong property passes."""
    schema = object_schema(["city", "days"])
    for value in (
        {"city": "Oslo", "days": 1},
        {"days": 1, "city": "Oslo"},
        {"city": "Oslo"},
        {"city": "Oslo", "days": "1"},
        {"city": "Oslo", "days": 1, "x": 1},
        [],
        "city",
    ):
        expected = jsonschema.Draft202012Validator(schema).is_valid(value)
        assert is_valid(value, schema) == expected, value


def test_judge_of_texts() -> None:
    """An answer counts that is nearly right, or that was cut off."""
    example = SUM.make(Random(0), "held_out", 2)
    said = ParsedMessage(example.answer.content, finish_reason="stop")
    assert is_right(example, said)
    assert not is_right(example, replace(said, content=said.content + "."))
    assert not is_right(example, replace(said, content=""))
    assert not is_right(example, replace(said, finish_reason="length"))


def test_judge_of_json() -> None:
    """JSON of the schema with other values is not valid, or its values are called right."""
    example = JSON.make(Random(1), "held_out", 3)
    said = ParsedMessage(example.answer.content, finish_reason="stop")
    assert is_right(example, said) and has_right_values(example, said)
    for wrong in ("{", "", "1", "{}", example.answer.content + "}"):
        assert not is_right(example, replace(said, content=wrong))
        assert not has_right_values(example, replace(said, content=wrong))


def test_judge_of_calls() -> None:
    """A call of another tool, with other arguments, or twice, counts."""
    example = CALL.make(Random(2), "held_out", 2)
    (call,) = example.answer.calls
    said = ParsedMessage(tool_calls=(replace(call, id="x"),), finish_reason="tool_calls")
    assert is_right(example, said)
    wrong_calls: tuple[tuple[ToolCall, ...], ...] = (
        (),
        (replace(call, name="other"),),
        (replace(call, arguments="{}"),),
        (replace(call, arguments="{"),),
        (call, call),
    )
    for calls in wrong_calls:
        assert not is_right(example, replace(said, tool_calls=calls))
    assert not is_right(example, replace(said, finish_reason="length"))
