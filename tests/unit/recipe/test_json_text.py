"""JSON text, read and written by the recipe's rules."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.recipe.json_text import MAX_DEPTH, compact, read_json, spaced
from tests.effort import effort

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_strings_and_spaces_are_those_of_the_standard_library(value: Any) -> None:
    """An escape or a space of our own makes other tokens than the model was trained on."""
    assert spaced(value, "v4") == spaced(value, "v4.1") == json.dumps(value, ensure_ascii=False)
    assert compact(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert read_json(compact(value)) == value


@pytest.mark.parametrize(
    ("text", "v4", "v41"),
    [
        ("1e-4", "0.0001", "0.0001"),
        ("1e-5", "0.00001", "1e-05"),
        ("-15e-6", "-0.000015", "-1.5e-05"),
        ("1e-6", "1e-6", "1e-06"),
        ("2.5e-9", "2.5e-9", "2.5e-09"),
        ("1e-10", "1e-10", "1e-10"),
        ("1e15", "1000000000000000.0", "1000000000000000.0"),
        ("1e16", "1e+16", "1e+16"),
        ("-1.50", "-1.5", "-1.5"),
        ("5e-324", "5e-324", "5e-324"),
        ("1e-400", "0.0", "0.0"),
        ("-0", "-0.0", "-0.0"),
        ("18446744073709551615", "18446744073709551615", "18446744073709551615"),
        ("18446744073709551616", "1.8446744073709552e+19", "1.8446744073709552e+19"),
        ("-9223372036854775809", "-9.223372036854776e+18", "-9.223372036854776e+18"),
        ("9" * 300, "1e+300", "1e+300"),
    ],
)
def test_numbers(text: str, v4: str, v41: str) -> None:
    """A number is written in the other version's way, or as an integer of any size."""
    value = read_json(text)
    assert (spaced(value, "v4"), spaced(value, "v4.1"), compact(value)) == (v4, v41, v4)


def test_equal_keys() -> None:
    """The first value wins, or the key moves to the end."""
    assert spaced(read_json('{"a": 1, "b": 2, "a": 3}'), "v4") == '{"a": 3, "b": 2}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[1,]", "{a:1}", "1 2", "01", "1.", ".5", "-", "\ufeff{}", "\x0b{}", "'a'"),
        *("NaN", "[Infinity]", "-Infinity", "1e400", "-1e400", "9" * 400, "9" * 5000),
        *(
            '"\x01"',
            '"\\x"',
            '"\\ud800"',
            '"\\ude00\\ud83d"',
            '{"\\ud800": 1}',
            '"\\ud83d\\\\ude00"',
        ),
        *('{"a": "\\ud800", "a": 1}', "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "[" * 100_000),
    ],
)
def test_refused(text: str) -> None:
    """Text that is no JSON is read as some; or one text ends the process with a stack overflow."""
    with pytest.raises(ValueError):
        read_json(text)


def test_what_only_looks_wrong() -> None:
    """Brackets and escapes within strings are counted as if they were outside."""
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert spaced(read_json(deep), "v4") == deep
    assert read_json('"' + "[" * 500 + '\\""') == "[" * 500 + '"'
    assert read_json('"\\\\ud800"') == "\\ud800"
    assert read_json(' \t\r\n["\\ud83d\\ude00"] ') == ["😀"]


@pytest.mark.parametrize("text", ["[" * 200 + '"' + '\\"' * 300_000, "[" * 200 + '"' * 300_001])
def test_time_is_linear(text: str) -> None:
    """One request with many quotes keeps a server busy for minutes."""
    with effort(300), pytest.raises(ValueError):
        read_json(text)


def test_no_json_value_is_refused() -> None:
    """A schema that holds some object is written as that object's name."""
    with pytest.raises(TypeError):
        spaced({"a": {1, 2}}, "v4")
